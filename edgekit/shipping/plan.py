"""Plan a board's package before anything is downloaded or written.

    plan = plan_deploy(read_bundle("digits.ekb"), load("raspberry-pi-4"), None)
    plan.name, plan.engine, plan.extras              # "digits", "litert", ("image",)
    unit("digits", "digits version 2", "python3 /home/pi/app.py {bundle}")

Rules:
- the engine is the first in the runtime's order that installs for the bundle's first artifact; its version is the one
  that made the golden answers, if the index has it for the board;
- names are valid for files, Debian and systemd;
- a service's program without a path is looked up in the package's environment first; `{bundle}`, `{python}` and
  `{prefix}` stand for installed paths;
- the unit gives the application a user, a state folder, network and devices, and nothing else to write;
- it does not wait for a network; systemd restarts it when the runtime stops reporting healthy models.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass

from edgekit_profiles import Profile, installable
from edgekit_profiles.profile import Accelerator
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.bundle.reader import Bundle
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.errors import EdgekitError


class ShippingError(EdgekitError):
    """A package for a board cannot be made or delivered."""

    code = "shipping"


class NoWheelError(ShippingError):
    """A requirement has neither a wheel for the board nor a Debian package."""

    code = "no-wheel"


class WheelDownloadError(ShippingError):
    """The package index cannot be reached, or sent other bytes than promised."""

    code = "download"


class DebError(ShippingError):
    """A .deb cannot be made here."""

    code = "deb"


class SshError(ShippingError):
    """The board cannot be reached over SSH, or a command there failed."""

    code = "ssh"


class BoardRefusedError(ShippingError):
    """The machine is not the board that the package is for; raised before anything is copied."""

    code = "board-refused"


@dataclass(frozen=True)
class DeployPlan:
    """name: of files and folders on the board.
    version: Debian's.
    extras: of edgekit, in addition to the engine's.
    proven: the engine's version that made the golden answers, None if another engine did.
    accelerator: of the board, if the engine can try it.
    notes: sentences that a person should read.
    """

    name: str
    title: str
    version: str
    engine: str
    extras: tuple[str, ...]
    proven: str | None
    accelerator: Accelerator | None = None
    notes: tuple[str, ...] = ()


def plan_deploy(bundle: Bundle, profile: Profile, engine: str | None, extras: tuple[str, ...] = ()) -> DeployPlan:
    """engine: None to choose. extras: more than the bundle itself needs. Raises NoWheelError."""
    manifest = bundle.manifest
    chosen = choose_engine(manifest, profile, engine)
    kinds = {extra for spec in manifest.contract.caller_inputs for extra in kind_of(spec).extras}
    kinds |= {"text"} if manifest.contract.text is not None else set()
    version = re.sub(r"[^A-Za-z0-9.+~]+", "+", manifest.version).strip("+.~") or "0"
    recipes = [artifact.recipe for artifact in manifest.artifacts if artifact.format in ENGINES[chosen].formats]
    made = [a for golden in manifest.golden for a in golden.answers if a.engine == chosen and a.recipe in recipes]
    notes = []
    if manifest.target.profile != profile.name:
        note = f"the bundle was built for {manifest.target.profile}: its latencies were not judged for {profile.name}"
        if profile.name not in manifest.compatible:
            note += f", and a board that is known as one refuses it: build it with --compatible {profile.name}"
        notes.append(note)
    usable = [one for one in profile.accelerators if ENGINES[chosen].delegates and not one.unusable(profile.os)]
    return DeployPlan(
        name=package_name(manifest.name),
        title=f"{manifest.name} version {manifest.version} for {profile.name}",
        version=version if version[0].isdigit() else f"0~{version}",
        engine=chosen,
        extras=tuple(sorted({*kinds, *extras})),
        proven=made[0].engine_version if made else None,
        accelerator=next(iter(usable), None),
        notes=tuple(notes),
    )


def package_name(name: str) -> str:
    """A name for Debian and systemd: a-z, 0-9, '.' and '-', with a letter or digit first."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"


def choose_engine(manifest: Manifest, profile: Profile, asked: str | None = None) -> str:
    """The board's engine for the first artifact that it can run. Raises NoWheelError."""
    formats: list[str] = [artifact.format for artifact in manifest.artifacts]  # the primary one is first
    fitting = [support for support in installable(profile) if support.format in formats]
    if asked is not None:
        fitting = [support for support in fitting if support.engine == asked]
    able = sorted((support for support in fitting if support.ok), key=lambda one: formats.index(one.format))
    if able:
        return able[0].engine
    why = "; ".join(dict.fromkeys(support.reason for support in fitting))
    if not why and asked is not None and not set(formats).isdisjoint(ENGINES[asked].formats):
        why = f"no known wheel of {asked} for boards"
    if asked is not None and why:
        do = "Omit --engine, or name another; `edgekit profiles show` lists what installs there"
        raise NoWheelError(f"{asked} does not run on {profile.name}: {why}", where=profile.name, do=do)
    why = why or f"it has only {', '.join(sorted(set(formats)))}"
    raise NoWheelError(
        f"no engine for {manifest.name} installs on {profile.name}: {why}",
        where=profile.name,
        do="See `edgekit profiles show`; build for another image, or for the other format",
    )


_PLACES = {"bundle": "@PREFIX@/model", "python": "@PREFIX@/env/bin/python", "prefix": "@PREFIX@"}
_UNIT = """\
[Unit]
Description={title}

[Service]
Type=notify
NotifyAccess=all
ExecStart={command}
WorkingDirectory=@PREFIX@
Environment=PATH=@PREFIX@/env/bin:/usr/local/bin:/usr/bin:/bin
Environment=EDGEKIT_BUNDLE=@PREFIX@/model
Environment=EDGEKIT_STATE_DIR=%S/edgekit/{name}/state
Environment=EDGEKIT_NOTIFY=1
{delegate}StateDirectory=edgekit/{name}/state
StateDirectoryMode=0700
TimeoutStartSec=300
WatchdogSec=60
Restart=on-failure
RestartSec=5
NoNewPrivileges=yes
# The system's section: a service of the system has a user of its own and sees little of the machine.
User=@USER@
UMask=0077
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
RemoveIPC=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# end

[Install]
WantedBy=multi-user.target
"""
_LONGEST_USER = 31


def user_name(name: str) -> str:
    """The system user of a package's service: at most 31 of a-z, 0-9 and '-'."""
    plain = f"edgekit-{name.replace('.', '-')}"
    if len(plain) <= _LONGEST_USER:
        return plain
    return f"{plain[: _LONGEST_USER - 9].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def unit(name: str, title: str, command: str, delegate: str = "") -> str:
    """The unit's text, with @PREFIX@ and @USER@ for the installer. Raises ShippingError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _bad_command(command, str(error)) from error
    if not words or any(ord(letter) < 32 for letter in command):
        raise _bad_command(command, "it must be one line that names a program")
    if "@" in command and ("@PREFIX@" in command or "@USER@" in command):
        raise _bad_command(command, "write {prefix} for the installed folder")
    for place in re.findall(r"(?<!\$)\{(\w+)\}", command):  # ${NAME} is systemd's
        if place not in _PLACES:
            raise _bad_command(command, f"{{{place}}} is not a placeholder: use {{bundle}}, {{python}} or {{prefix}}")
    line = command.strip().replace("%", "%%")  # systemd's own sign for what it fills in
    for word, place in _PLACES.items():
        line = line.replace(f"{{{word}}}", place)
    if not line.startswith(("/", "@PREFIX@")):
        line = f"/usr/bin/env {line}"
    tried = f"Environment=EDGEKIT_DELEGATE={delegate}\n" if delegate else ""
    return _UNIT.format(name=name, title=title.replace("%", "%%"), command=line, delegate=tried)


def _bad_command(command: str, why: str) -> ShippingError:
    return ShippingError(
        f"{command!r:.80} is not a valid service command: {why}",
        where="--service",
        do='Write it as in a shell, for example: --service "python3 /home/pi/app.py {bundle}"',
    )
