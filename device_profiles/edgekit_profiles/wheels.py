"""Which engines install on a board, by its architecture, Python and glibc.

    installable(load("raspberry-pi-5"))[0]      # RuntimeSupport(engine="litert", format="tflite", ok=True, ...)

Rules:
- the newest wheel that fits counts, or else a package of the image's Debian release;
- a pin of the profile leaves only that version, and no other engine for its format;
- a refusal follows from `wheels.toml` and names its reason; edgekit itself must run on that Python, too;
- an engine that is not in `wheels.toml` was tried on no board and gets no verdict.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from dataclasses import dataclass

from edgekit_profiles.profile import Profile
from edgekit_profiles.schema import Table, parse_toml
from edgekit_runtime.engines.registry import ENGINES


@dataclass(frozen=True)
class Wheel:
    """One published wheel line: its machines, its first and last CPython, its least glibc.

    package, debian: of a Debian package, its name and release; "" for a wheel.
    """

    engine: str
    version: str
    python: tuple[str, ...]
    glibc: str
    arch: tuple[str, ...]
    needs: str = ""
    package: str = ""
    debian: str = ""


@dataclass(frozen=True)
class DebianPackage:
    """Debian's name of a distribution on the package index, and the release's version."""

    distribution: str
    package: str
    version: str


@dataclass(frozen=True)
class RuntimeSupport:
    """Whether an engine installs.

    version: the newest that does, or None.
    reason: a sentence either way.
    package: the Debian package that brings it, or "".
    """

    engine: str
    format: str
    ok: bool
    version: str | None
    reason: str
    package: str = ""


@functools.cache
def wheels() -> tuple[Wheel, ...]:
    """Return the wheels of `wheels.toml`, newest first within an engine."""
    top = _facts()
    found = tuple(table.record(Wheel) for table in top.tables("wheels"))
    top.refuse()
    return found


@functools.cache
def runtime_python() -> str:
    """Return the lowest CPython that edgekit runs on, as in `requires-python`."""
    return _facts().table("edgekit").text("python")


def debian_packages(profile: Profile) -> tuple[DebianPackage, ...]:
    """Return the Debian packages for edgekit's base install, if the image is Debian."""
    tables, release = _facts().tables("packages"), profile.os.debian
    rows = [(row.text("distribution"), row.text("package"), row.mapping("versions")) for row in tables]
    return tuple(DebianPackage(name, package, known[release]) for name, package, known in rows if release in known)


def installable(profile: Profile) -> tuple[RuntimeSupport, ...]:
    """Return a verdict for each engine and format, in the runtime's order of preference."""
    lines = {engine: [wheel for wheel in wheels() if wheel.engine == engine] for engine in ENGINES}
    return tuple(
        _support(profile, engine, form, lines[engine])
        for engine, kind in ENGINES.items()
        for form in kind.formats
        if lines[engine]
    )


def _support(profile: Profile, engine: str, form: str, lines: list[Wheel]) -> RuntimeSupport:
    kind = ENGINES[engine]
    pin = profile.pins.get(engine)
    others = [name for name in profile.pins if name in ENGINES and form in ENGINES[name].formats]
    if pin is None and others:
        what = f"{ENGINES[others[0]].distribution} {profile.pins[others[0]]}"
        return RuntimeSupport(engine, form, False, None, f"the profile pins its image to {what}")
    if pin is not None:
        lines = [wheel for wheel in lines if wheel.version == pin]
    found, why = _newest(profile, f"{kind.distribution} {pin}" if pin else kind.distribution, lines)
    if found is None:
        return RuntimeSupport(engine, form, False, None, why)
    needs = f", with {found.needs}" if found.needs else ""
    if version_parts(profile.os.python) < version_parts(runtime_python()):
        lacks = f"edgekit's runtime needs Python {runtime_python()}, and the image has {profile.os.python}"
        reason = f"{lacks} ({kind.distribution} {found.version} would install)"
        return RuntimeSupport(engine, form, False, None, reason)
    if found.package:
        reason = f"Debian {found.debian} packages {found.package} {found.version} for {profile.arch}{needs}"
        return RuntimeSupport(engine, form, True, found.version, reason, found.package)
    reason = (
        f"{kind.distribution} {found.version} has a wheel for {profile.arch}, CPython {profile.os.python} "
        f"and glibc {profile.os.glibc}{needs}"
    )
    return RuntimeSupport(engine, form, True, found.version, reason)


def _newest(profile: Profile, what: str, lines: list[Wheel]) -> tuple[Wheel | None, str]:
    """Return the first line that fits, or why none does: machine, Python, or glibc."""
    if not profile.os.glibc:
        return None, f"{profile.os.name} has no glibc, which every wheel for Linux needs"
    lines = [wheel for wheel in lines if wheel.debian in ("", profile.os.debian)]
    if not lines:
        return None, f"{what} has no wheel known to edgekit"
    built = [wheel for wheel in lines if profile.arch in wheel.arch]
    if not built:
        machines = sorted({arch for wheel in lines for arch in wheel.arch})
        return None, f"{what} has wheels for {', '.join(machines)} and none for {profile.arch}"
    python = version_parts(profile.os.python)
    served = [
        wheel for wheel in built if version_parts(wheel.python[0]) <= python[:2] <= version_parts(wheel.python[1])
    ]
    if not served:
        low = min((wheel.python[0] for wheel in built), key=version_parts)
        high = max((wheel.python[1] for wheel in built), key=version_parts)
        return None, f"Python {profile.os.python} is supported by no current wheel of {what} (CPython {low} to {high})"
    fitting = [wheel for wheel in served if version_parts(wheel.glibc) <= version_parts(profile.os.glibc)]
    if not fitting:
        low = min((wheel.glibc for wheel in served), key=version_parts)
        return None, f"glibc {profile.os.glibc} is older than the {low} that {what} needs on Python {profile.os.python}"
    return fitting[0], ""


def _facts() -> Table:
    text = (importlib.resources.files("edgekit_profiles") / "wheels.toml").read_text(encoding="utf-8")
    return Table(parse_toml(text), "wheels.toml")


def version_parts(version: str) -> tuple[int, ...]:
    """Return the leading numbers: 3, 13, 0 of `3.13.0rc1`."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
