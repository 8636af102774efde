"""A systemd unit for the application that embeds a bundle.

Rules: a program without a path is looked for in the package's own environment first; `{bundle}`, `{python}` and `{prefix}`
stand for the installed places; the unit gives the application a user of its own, its state folder, the network and devices,
and nothing else to write; it waits for no network; systemd restarts it where the runtime stops saying that its models are
healthy (`edgekit_runtime.systemd`).

    unit("digits", "digits version 2", "python3 /home/pi/app.py {bundle}")
"""

from __future__ import annotations

import hashlib
import re
import shlex

from edgekit.shipping.errors import ShippingError

__all__ = ["unit", "user_name"]

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
StateDirectory=edgekit/{name}/state
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
    """The system user of a package's service: at most 31 of a-z, 0-9 and '-', which useradd takes."""
    plain = f"edgekit-{name.replace('.', '-')}"
    if len(plain) <= _LONGEST_USER:
        return plain
    return f"{plain[: _LONGEST_USER - 9].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def unit(name: str, title: str, command: str) -> str:
    """The unit's text, with @PREFIX@ and @USER@ for the installer to fill in. Raises ShippingError for what is no command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _refused(command, str(error)) from error
    if not words or any(ord(letter) < 32 for letter in command):
        raise _refused(command, "it must be one line that names a program")
    if "@" in command and ("@PREFIX@" in command or "@USER@" in command):
        raise _refused(command, "write {prefix} for the installed folder")
    for place in re.findall(r"(?<!\$)\{(\w+)\}", command):  # ${NAME} is systemd's
        if place not in _PLACES:
            raise _refused(command, f"{{{place}}} stands for nothing: {{bundle}}, {{python}} and {{prefix}} do")
    line = command.strip().replace("%", "%%")  # systemd's own sign for what it fills in
    for word, place in _PLACES.items():
        line = line.replace(f"{{{word}}}", place)
    if not line.startswith(("/", "@PREFIX@")):
        line = f"/usr/bin/env {line}"
    return _UNIT.format(name=name, title=title.replace("%", "%%"), command=line)


def _refused(command: str, why: str) -> ShippingError:
    return ShippingError(
        f"{command!r:.80} is no command for a service: {why}",
        where="--service",
        do='Write it as in a shell, for example: --service "python3 /home/pi/app.py {bundle}"',
    )
