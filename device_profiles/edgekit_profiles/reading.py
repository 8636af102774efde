"""Read a board's TOML as profiles, one for each of its system images, the first image first.

    first, *others, = read(text, "boards/raspberry-pi-4.toml", "raspberry-pi-4")

Rules:
- all mistakes of a file are found at once; a rule waits until its own keys have the right type;
- every figure has a source under its own dotted key or its table's, and every source a figure;
- threads and modes stay within the cores; the mode that is set has the clock that `core` has; names are unique;
- a core's SIMD features are those of its architecture;
- a pin names an engine and an exact version that edgekit knows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from edgekit_profiles.errors import ProfileError
from edgekit_profiles.profile import ANCHOR_GRADES, Anchor, BoardMarks, Caches, OsImage, Profile, features_of
from edgekit_profiles.schema import Table, parse_toml
from edgekit_profiles.wheels import wheels
from edgekit_runtime.engines.registry import ENGINES

_FIGURES = ("core", "little", "caches", "memory", "os", "thermal", "power")
_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_LIBRARY = re.compile(r"(/[A-Za-z0-9_.+/-]+/)?lib[A-Za-z0-9_.+-]+\.so(\.[0-9]+)*")
_OPTION = re.compile(r"[A-Za-z0-9_.-]+=[A-Za-z0-9_.:/+-]+")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")
_DEVICE = re.compile(r"/dev/[A-Za-z0-9_./-]+")

Mistake = tuple[str, str, str]
"""key, what, do"""


def _check(top: Table, data: dict[str, Any], profile: Profile, images: Sequence[_Image]) -> None:
    """Note what does not agree; a rule with broken keys is skipped."""
    broken = {key.split(".")[0].split("[")[0] for key in top.mistakes}
    rules: dict[tuple[str, ...], Callable[[], Iterator[Mistake]]] = {
        ("name", "images", "modes"): lambda: _names(profile, images),
        ("os", "images"): lambda: _versions(profile, images),
        ("threads", "core", "little"): lambda: _cores(profile),
        ("power_mode", "modes", "core"): lambda: _modes(profile),
        ("anchors", "modes", "core"): lambda: _anchors(profile),
        ("arch", "core", "little"): lambda: _machine(profile),
        ("os",): lambda: _check_system(profile),
        ("memory",): lambda: _check_memory(profile),
        ("thermal",): lambda: _temperatures(profile),
        ("pins",): lambda: _pins(profile),
        ("accelerators",): lambda: _accelerators(profile),
        (): lambda: _sources(data),
    }
    found = [mistake for keys, rule in rules.items() if not broken.intersection(keys) for mistake in rule()]
    for key, what, do in found:
        top.wrong(key, what, do)


def _names(profile: Profile, images: Sequence[_Image]) -> Iterator[Mistake]:
    """A name becomes part of file names and of `--profile` arguments, where `@` has a meaning."""
    named = {f"images[{index}].image": image.image for index, image in enumerate(images)}
    for kind, found in (
        ("", {"name": profile.name}),
        ("image", named),
        ("mode", {f"modes[{index}].name": mode.name for index, mode in enumerate(profile.modes)}),
    ):
        taken = set[str]()
        for key, name in found.items():
            if name and not _NAME.fullmatch(name):
                yield key, f"is not a plain name: '{name}'", "Use small letters, digits, and - or . between them"
            if name in taken:
                yield key, f"is a duplicate: '{name}'", f"Give each {kind} its own name"
            taken.add(name)


def _versions(profile: Profile, images: Sequence[_Image]) -> Iterator[Mistake]:
    systems = {"os": profile.os} | {f"images[{index}]": image for index, image in enumerate(images)}
    for place, system in systems.items():
        for key, version in (("python", system.python), ("glibc", system.glibc)):
            if version and not re.fullmatch(r"[0-9]+(\.[0-9]+)+", version):
                yield f"{place}.{key}", f"is '{version}', not a version such as 3.11", ""


def _cores(profile: Profile) -> Iterator[Mistake]:
    if profile.threads > profile.core.count:
        why = ": engines run on the fast cores" if profile.little else ""
        yield "threads", f"is {profile.threads}, more than the {profile.core.count} cores{why}", ""


def _pins(profile: Profile) -> Iterator[Mistake]:
    """An unknown pin would have no effect on the image."""
    names = {kind.distribution: engine for engine, kind in ENGINES.items()}
    for engine, version in profile.pins.items():
        if engine not in ENGINES:
            spelled = engine.lower().replace("_", "-")
            near = difflib.get_close_matches(spelled, [*ENGINES, *names], n=1)
            meant = names.get(spelled) or (names.get(near[0], near[0]) if near else "")
            do = f"Did you mean '{meant}'?" if meant else f"Engines: {', '.join(ENGINES)}"
            yield f"pins.{engine}", "is not an engine of edgekit", do
            continue
        known = list(dict.fromkeys(wheel.version for wheel in wheels() if wheel.engine == engine))
        if version not in known:
            exact = re.fullmatch(r"\d+(\.\d+)+", version)
            why = "of which edgekit knows no wheel" if exact else "not an exact version"
            yield f"pins.{engine}", f"is '{version}', {why}", f"Name one of {', '.join(known)}" if known else ""


def _accelerators(profile: Profile) -> Iterator[Mistake]:
    """What a unit, a shell and the loader read later is plain here."""
    for index, one in enumerate(profile.accelerators):
        place = f"accelerators[{index}]"
        if not one.delegate and (one.options or one.debian or one.device):
            yield f"{place}.delegate", "is missing", "Name the library that options, debian and device are for"
        if one.delegate and not _LIBRARY.fullmatch(one.delegate):
            yield f"{place}.delegate", f"is not a library: '{one.delegate}'", "Write libNAME.so or an absolute path"
        for key, value in one.options.items():
            if not _OPTION.fullmatch(f"{key}={value}"):
                yield f"{place}.options.{key}", f"is not plain: '{value}'", "Leave out spaces, commas and quotes"
        for release, package in one.debian.items():
            if not _PACKAGE.fullmatch(package):
                yield f"{place}.debian.{release}", f"is not a package's name: '{package}'", ""
        if one.device and not _DEVICE.fullmatch(one.device):
            yield f"{place}.device", f"is not a file in /dev: '{one.device}'", ""
    if sum(bool(one.delegate) for one in profile.accelerators) > 1:
        yield "accelerators", "name more than one delegate", "Keep the one to try; an engine takes one"


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
            what = f"is {mode.clock_ghz:g}, and core.clock_ghz is {clock:g}"
            yield f"modes[{index}].clock_ghz", what, "Make them agree"


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
            known = features_of(profile.arch)
            for feature in core.simd:
                if known and feature not in known:
                    what = f"has '{feature}', which {profile.arch} does not have"
                    yield f"{name}.simd", what, f"Known: {', '.join(known)}"


def _check_system(profile: Profile) -> Iterator[Mistake]:
    android = not profile.os.glibc
    if android != (not profile.os.python):
        key = "os.python" if android else "os.glibc"
        yield key, "must be empty where the other is", "A system without glibc takes no wheel for Linux"


def _check_memory(profile: Profile) -> Iterator[Mistake]:
    sold = profile.memory.sold_mb
    if sold and profile.memory.ram_mb != min(sold):
        what = f"is {profile.memory.ram_mb}, and the smallest of sold_mb is {min(sold)}"
        yield "memory.ram_mb", what, "Make them agree"


def _temperatures(profile: Profile) -> Iterator[Mistake]:
    thermal = profile.thermal
    keys = ("soft_limit_c", "throttle_c", "limit_c", "shutdown_c")
    steps = [(key, value) for key in keys if (value := cast(float | None, getattr(thermal, key))) is not None]
    for (low, below), (high, above) in pairwise(steps):
        if below > above:
            yield f"thermal.{high}", f"is {above:g}, and {low} is {below:g}", "A later step must be higher"
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


ARCHITECTURES = ("aarch64", "armv7l", "armv6l", "x86_64")


@dataclass(frozen=True)
class _Image:
    """Another system image of the board.
    image: the suffix of the profile's name."""

    image: str
    name: str
    python: str
    glibc: str
    source: str
    arch: str
    debian: str = ""
    notes: str = ""


def read(text: str, file: str, name: str) -> tuple[Profile, ...]:
    """Read the profiles of one file.

    file: its name in errors.
    name: what its `name` key must be.

    Raises ProfileError, which has all mistakes of the file.
    """
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, and integers of thousands of digits
        raise ProfileError(f"is not TOML: {error}", where=file) from error
    top = Table(data, file)
    given = top.text("name")
    if given != name:
        do = f'Write name = "{name}" in it, or call the file {given}.toml'
        top.wrong("name", f"is '{given}', and the file is called '{name}.toml'", do)
    title, arch = top.text("title"), top.text("arch", choices=ARCHITECTURES)
    for later in ("anchors", "images"):
        top.has(later)
    profile = top.record(
        Profile,
        name=name,
        title=title,
        board=name,
        image="",
        arch=arch,
        caches=top.table("caches", {}).record(Caches),
        marks=top.table("detect", {}).record(BoardMarks),
        anchors=(),
    )
    anchors = [_anchor(table, arch) for table in top.tables("anchors")]
    images = [
        table.record(_Image, arch=table.text("arch", arch, choices=ARCHITECTURES)) for table in top.tables("images")
    ]
    _check(top, data, replace(profile, anchors=tuple(anchor for anchor, _ in anchors)), images)
    top.refuse()
    return _variants(profile, anchors, images)


def _anchor(table: Table, arch: str) -> tuple[Anchor, str]:
    """Read an anchor and its architecture, by default the first image's."""
    found = {precision: table.optional_number(f"{precision}_ms") for precision in ("float32", "int8")}
    ms = {precision: value for precision, value in found.items() if value is not None}
    if not ms:
        table.wrong("float32_ms", "is missing, and so is int8_ms", "Give at least one of the two")
    on = table.text("arch", arch, choices=ARCHITECTURES)
    grade = table.text("grade", choices=ANCHOR_GRADES)
    return table.record(Anchor, ms=ms, grade=grade, engine="", engine_version=""), on


def _variants(profile: Profile, anchors: list[tuple[Anchor, str]], images: list[_Image]) -> tuple[Profile, ...]:
    """Make a profile for each image, with the anchors of its architecture."""

    def timed(arch: str) -> tuple[Anchor, ...]:
        return tuple(anchor for anchor, on in anchors if on == arch)

    first = replace(profile, anchors=timed(profile.arch))
    others = (
        replace(
            profile,
            name=f"{profile.name}-{image.image}",
            image=image.image,
            arch=image.arch,
            os=OsImage(image.name, image.python, image.glibc, image.debian),
            anchors=timed(image.arch),
            notes=" ".join(note for note in (profile.notes, image.notes) if note),
            sources={**profile.sources, "os": image.source},
        )
        for image in images
    )
    return (first, *others)
