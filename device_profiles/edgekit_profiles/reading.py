"""From a board's TOML to profiles, one for each of its system images, the board's first image first.

Rules: a key that the format does not know is a mistake, and so is a figure without a source; what belongs together
(threads and cores, a mode and the clock, a machine and its SIMD) must agree. All mistakes of a file are found at once.

    first, *others, = read(text, "boards/raspberry-pi-4.toml", "raspberry-pi-4")
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from edgekit_profiles.agreement import check
from edgekit_profiles.errors import ProfileError
from edgekit_profiles.profile import (
    ANCHOR_GRADES,
    KINDS,
    Accelerator,
    Anchor,
    AnchorGrade,
    Caches,
    Core,
    Kind,
    Marks,
    Memory,
    Mode,
    Power,
    Profile,
    System,
    Thermal,
)
from edgekit_profiles.schema import Table, parse_toml, refuse

__all__ = ["ARCHITECTURES", "mistakes_of", "read"]

ARCHITECTURES = ("aarch64", "armv7l", "armv6l", "x86_64")
ACCELERATORS = ("gpu", "tpu", "npu", "dsp")


@dataclass(frozen=True)
class _Image:
    """name: what comes after the board's in the profile's name."""

    name: str
    arch: str
    os: System
    source: str
    notes: str


def read(text: str, file: str, name: str) -> tuple[Profile, ...]:
    """The profiles of one file. file: what errors call it. name: what its `name` key must be. Raises ProfileError."""
    found, mistakes = _read(text, file, name)
    refuse(mistakes)
    return found


def mistakes_of(text: str, file: str, name: str) -> tuple[ProfileError, ...]:
    """Every mistake of a file, in the order they were found; empty where it is a profile."""
    return tuple(_read(text, file, name)[1])


def _read(text: str, file: str, name: str) -> tuple[tuple[Profile, ...], list[ProfileError]]:
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, and integers of thousands of digits
        return (), [ProfileError(f"is not TOML: {error}", where=file)]
    top = Table(data, file)
    given = top.text("name")
    if given != name:
        top.wrong(
            "name",
            f"is '{given}', and the file is called '{name}.toml'",
            f'Write name = "{name}" in it, or call the file {given}.toml',
        )
    profile = _profile(top, name)
    anchors = [_anchor(table, profile.arch) for table in top.tables("anchors")]
    images = [_image(table, profile.arch) for table in top.tables("images")]
    top.done()
    check(top, data, replace(profile, anchors=tuple(anchor for anchor, _ in anchors)), [i.name for i in images])
    return _variants(profile, anchors, images), cast(list[ProfileError], list(top.mistakes.values()))


def _profile(top: Table, name: str) -> Profile:
    """Without anchors."""
    return Profile(
        name=name,
        board=name,
        title=top.text("title"),
        kind=cast(Kind, top.text("kind", "board", choices=KINDS)),
        arch=top.text("arch", choices=ARCHITECTURES),
        soc=top.text("soc"),
        core=_core(top.table("core")),
        little=_core(top.table("little")) if top.has("little") else None,
        memory=_memory(top.table("memory")),
        caches=_caches(top.table("caches", {})),
        os=_system(top.table("os")),
        threads=top.integer("threads"),
        thermal=_thermal(top.table("thermal", {})),
        power=_power(top.table("power", {})),
        modes=tuple(_mode(table) for table in top.tables("modes")),
        power_mode=top.text("power_mode", ""),
        accelerators=tuple(_accelerator(table) for table in top.tables("accelerators")),
        marks=_marks(top.table("detect", {})),
        notes=top.text("notes", ""),
        measured_here=top.flag("measured_here"),
        pins=top.mapping("pins"),
        recipes=top.texts("recipes", ()),
        sources=top.mapping("sources"),
    )


def _variants(profile: Profile, anchors: list[tuple[Anchor, str]], images: list[_Image]) -> tuple[Profile, ...]:
    """An anchor holds for the images of its architecture: 32-bit kernels are others than 64-bit ones."""

    def timed(arch: str) -> tuple[Anchor, ...]:
        return tuple(anchor for anchor, on in anchors if on == arch)

    first = replace(profile, anchors=timed(profile.arch))
    others = (
        replace(
            profile,
            name=f"{profile.name}-{image.name}",
            image=image.name,
            arch=image.arch,
            os=image.os,
            anchors=timed(image.arch),
            notes=" ".join(note for note in (profile.notes, image.notes) if note),
            sources={**profile.sources, "os": image.source},
        )
        for image in images
    )
    return (first, *others)


def _core(table: Table) -> Core:
    core = Core(table.text("type"), table.integer("count"), table.number("clock_ghz"), table.texts("simd", ()))
    table.done()
    return core


def _memory(table: Table) -> Memory:
    memory = Memory(
        table.integer("ram_mb"),
        table.optional_number("bandwidth_gbps"),
        table.optional_number("copy_gbps"),
        table.integers("sold_mb"),
    )
    table.done()
    return memory


def _caches(table: Table) -> Caches:
    caches = Caches(*(table.optional_integer(key) for key in ("l1d_kb", "l2_kb", "l3_kb")))
    table.done()
    return caches


def _system(table: Table) -> System:
    system = _os(table)
    table.done()
    return system


def _os(table: Table) -> System:
    return System(table.text("name"), _version(table, "python"), _version(table, "glibc"), table.text("debian", ""))


def _thermal(table: Table) -> Thermal:
    keys = ("soft_limit_c", "soft_limit_ghz", "limit_c", "shutdown_c")
    thermal = Thermal(
        table.optional_number("throttle_c"),
        table.text("notes", ""),
        *(table.optional_number(key) for key in keys),
    )
    table.done()
    return thermal


def _power(table: Table) -> Power:
    power = Power(table.optional_number("idle_w"), table.optional_number("load_w"), table.text("supply", ""))
    table.done()
    return power


def _mode(table: Table) -> Mode:
    mode = Mode(
        name=table.text("name"),
        cores=table.integer("cores"),
        clock_ghz=table.number("clock_ghz"),
        source=table.text("source"),
        watts=table.optional_number("watts"),
        notes=table.text("notes", ""),
    )
    table.done()
    return mode


def _accelerator(table: Table) -> Accelerator:
    kind = table.text("kind", choices=ACCELERATORS)
    found = Accelerator(table.text("name"), kind, table.text("source"), table.text("notes", ""))  # type: ignore[arg-type]
    table.done()
    return found


def _marks(table: Table) -> Marks:
    marks = Marks(table.texts("models", ()), table.texts("compatible", ()))
    table.done()
    return marks


def _image(table: Table, arch: str) -> _Image:
    image = _Image(
        name=table.text("image"),
        arch=table.text("arch", arch, choices=ARCHITECTURES),
        os=_os(table),
        source=table.text("source"),
        notes=table.text("notes", ""),
    )
    table.done()
    return image


def _anchor(table: Table, arch: str) -> tuple[Anchor, str]:
    """The anchor and the architecture of the image that it was timed on, the board's first image's where unsaid."""
    found = {precision: table.optional_number(f"{precision}_ms") for precision in ("float32", "int8")}
    ms = {precision: value for precision, value in found.items() if value is not None}
    if not ms:
        table.wrong("float32_ms", "is missing, and so is int8_ms", "Give at least one of the two")
    anchor = Anchor(
        framework=table.text("framework"),
        model=table.text("model"),
        threads=table.integer("threads"),
        clock_ghz=table.number("clock_ghz"),
        ms=ms,
        grade=cast(AnchorGrade, table.text("grade", choices=ANCHOR_GRADES)),
        source=table.text("source"),
    )
    on = table.text("arch", arch, choices=ARCHITECTURES)
    table.done()
    return anchor, on


def _version(table: Table, key: str) -> str:
    """Empty only where it is written so: a system without it."""
    value = table.text(key)
    parts = value.split(".")
    if value and (len(parts) < 2 or not all(part.isdecimal() for part in parts)):
        table.wrong(key, f"is '{value}', not a version such as 3.11")
    return value
