"""What must agree within one profile, and that every figure in it has a source.

Rules: a figure is covered by a source under its own dotted key or its table's, and a source covers something; threads
and modes stay within the cores; the mode that is set is the clock that is written; a name says what it is once; a pin names an engine and an
exact version of it that edgekit knows. What was
already found to be of the wrong kind is not complained of again.

    check(table, data, profile, images)     # notes mistakes in table.mistakes
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

from edgekit_profiles.cores import features_of
from edgekit_profiles.profile import Core, Profile
from edgekit_profiles.schema import Table
from edgekit_profiles.wheels import wheels
from edgekit_runtime.engines.registry import ENGINES

__all__ = ["check"]

_FIGURES = ("core", "little", "caches", "memory", "os", "thermal", "power")
_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")

Mistake = tuple[str, str, str]
"""key, what, do"""


def check(top: Table, data: dict[str, Any], profile: Profile, images: Sequence[str]) -> None:
    """Notes what does not agree. A rule whose own keys are broken already waits until they are mended."""
    broken = {key.split(".")[0].split("[")[0] for key in top.mistakes}
    rules: dict[tuple[str, ...], Callable[[], Iterator[Mistake]]] = {
        ("name", "images", "modes"): lambda: _names(profile, images),
        ("threads", "core", "little"): lambda: _cores(profile),
        ("power_mode", "modes", "core"): lambda: _modes(profile),
        ("anchors", "modes", "core"): lambda: _anchors(profile),
        ("arch", "core", "little"): lambda: _machine(profile),
        ("os",): lambda: _system(profile),
        ("memory",): lambda: _memory(profile),
        ("thermal",): lambda: _temperatures(profile),
        ("pins",): lambda: _pins(profile),
        (): lambda: _sources(data),
    }
    found = [mistake for keys, rule in rules.items() if not broken.intersection(keys) for mistake in rule()]
    for key, what, do in found:
        top.wrong(key, what, do)


def _names(profile: Profile, images: Sequence[str]) -> Iterator[Mistake]:
    """A name becomes part of file names and of `--profile` arguments, where `@` has a meaning."""
    plain = "Use small letters, digits, and - or . between them"
    if not _NAME.fullmatch(profile.name):
        yield "name", f"is '{profile.name}', which is no plain name", plain
    for index, name in enumerate(images):
        if name and not _NAME.fullmatch(name):
            yield f"images[{index}].image", f"is '{name}', which is no plain name", plain
        if name in images[:index]:
            yield f"images[{index}].image", f"is '{name}' a second time", "Give each image its own name"
    modes = [mode.name for mode in profile.modes]
    for index, name in enumerate(modes):
        if name and not _NAME.fullmatch(name):
            yield f"modes[{index}].name", f"is '{name}', which is no plain name", plain
        if name in modes[:index]:
            yield f"modes[{index}].name", f"is '{name}' a second time", "Give each mode its own name"


def _cores(profile: Profile) -> Iterator[Mistake]:
    if profile.threads > profile.core.count:
        why = ": engines run on the fast cores" if profile.little else ""
        yield "threads", f"is {profile.threads}, more than the {profile.core.count} cores{why}", ""


def _pins(profile: Profile) -> Iterator[Mistake]:
    """A pin that no rule knows would hold the image to nothing."""
    names = {kind.distribution: engine for engine, kind in ENGINES.items()}
    for engine, version in profile.pins.items():
        if engine not in ENGINES:
            spelled = engine.lower().replace("_", "-")
            near = difflib.get_close_matches(spelled, [*ENGINES, *names], n=1)
            meant = names.get(spelled) or (names.get(near[0], near[0]) if near else "")
            do = f"Did you mean '{meant}'?" if meant else f"Engines: {', '.join(ENGINES)}"
            yield f"pins.{engine}", "is no engine of edgekit", do
            continue
        known = list(dict.fromkeys(wheel.version for wheel in wheels() if wheel.engine == engine))
        if version not in known:
            exact = re.fullmatch(r"\d+(\.\d+)+", version)
            why = "of which edgekit knows no wheel" if exact else "not an exact version"
            yield f"pins.{engine}", f"is '{version}', {why}", f"Name one of {', '.join(known)}" if known else ""


def _modes(profile: Profile) -> Iterator[Mistake]:
    modes = {mode.name: mode for mode in profile.modes}
    if profile.power_mode and profile.power_mode not in modes:
        known = f"Modes: {', '.join(modes)}" if modes else "Describe it in a [[modes]] table"
        yield "power_mode", f"is '{profile.power_mode}', which no [[modes]] table describes", known
    if modes and not profile.power_mode:
        yield "power_mode", "is missing", f"Say which of the modes is set: {', '.join(modes)}"
    for index, mode in enumerate(profile.modes):
        now = mode.name == profile.power_mode
        if now and mode.cores != profile.core.count:
            yield f"modes[{index}].cores", f"is {mode.cores}, and core.count is {profile.core.count}", "Make them agree"
        if now and mode.clock_ghz != profile.core.clock_ghz:
            clock = profile.core.clock_ghz
            yield (
                f"modes[{index}].clock_ghz",
                f"is {mode.clock_ghz:g}, and core.clock_ghz is {clock:g}",
                "Make them agree",
            )


def _anchors(profile: Profile) -> Iterator[Mistake]:
    cores = max((profile.core.count, *(mode.cores for mode in profile.modes)))
    clocks = {profile.core.clock_ghz, *(mode.clock_ghz for mode in profile.modes)}
    for index, anchor in enumerate(profile.anchors):
        if anchor.threads > cores:
            yield f"anchors[{index}].threads", f"is {anchor.threads}, more than the {cores} cores", ""
        # A clock far from all of the board's is another board's time, or a slip of a factor of 1000.
        if not any(0.5 <= anchor.clock_ghz / clock <= 1.5 for clock in clocks):
            shown = ", ".join(f"{clock:g}" for clock in sorted(clocks))
            yield f"anchors[{index}].clock_ghz", f"is {anchor.clock_ghz:g}, and the board runs at {shown} GHz", ""


def _machine(profile: Profile) -> Iterator[Mistake]:
    for name, core in (("core", profile.core), ("little", profile.little)):
        if core is not None:
            yield from _features(name, core, profile.arch)


def _system(profile: Profile) -> Iterator[Mistake]:
    android = not profile.os.glibc
    if android != (not profile.os.python):
        key = "os.python" if android else "os.glibc"
        yield key, "must be empty where the other is", "A system without glibc takes no wheel for Linux"


def _memory(profile: Profile) -> Iterator[Mistake]:
    sold = profile.memory.sold_mb
    if sold and profile.memory.ram_mb != min(sold):
        yield (
            "memory.ram_mb",
            f"is {profile.memory.ram_mb}, and the smallest of sold_mb is {min(sold)}",
            "Make them agree",
        )


def _features(name: str, core: Core, arch: str) -> Iterator[Mistake]:
    known = features_of(arch)
    for feature in core.simd:
        if known and feature not in known:
            yield f"{name}.simd", f"has '{feature}', which is no feature of {arch}", f"Known: {', '.join(known)}"


def _temperatures(profile: Profile) -> Iterator[Mistake]:
    thermal = profile.thermal
    steps = [
        (key, value)
        for key in ("soft_limit_c", "throttle_c", "limit_c", "shutdown_c")
        if (value := cast(float | None, getattr(thermal, key))) is not None
    ]
    for (low, below), (high, above) in pairwise(steps):
        if below > above:
            yield f"thermal.{high}", f"is {above:g}, and {low} is {below:g}", "A later step stands higher"
    if (thermal.soft_limit_c is None) != (thermal.soft_limit_ghz is None):
        key = "soft_limit_c" if thermal.soft_limit_c is None else "soft_limit_ghz"
        yield f"thermal.{key}", "is missing", "A soft limit is a temperature and the clock that is held there"


def _sources(data: dict[str, Any]) -> Iterator[Mistake]:
    figures = {
        f"{name}.{key}"
        for name in _FIGURES
        if isinstance(data.get(name, {}), dict)
        for key, value in data.get(name, {}).items()
        if isinstance(value, int | float | list) or key in ("python", "glibc")
    }
    sources = data.get("sources", {})
    if not isinstance(sources, dict):
        return
    for figure in sorted(figures):
        if figure not in sources and figure.split(".")[0] not in sources:
            yield figure, "has no source", f"Add a line for '{figure}' to [sources]"
    for source in sources:
        if not any(figure == source or figure.startswith(f"{source}.") for figure in figures):
            yield f"sources.{source}", "is the source of no figure in this file", ""
