"""What edgekit knows of a board and of cores. A profile is data: no code names a board.

profile = load("raspberry-pi-4")
profile.core.type, profile.core.clock_ghz        # "cortex-a72", 1.5
identify(0x41, 0xd08)                            # CoreType("cortex-a72", "cortex-a72"), from `cores.toml`
features_of("aarch64")["dotprod"]                # "asimddp", as Linux prints it
"""

from __future__ import annotations

import functools
import importlib.resources
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from edgekit_profiles.schema import parse_toml

Kind = Literal["board", "phone", "generic", "host"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AnchorGrade = Literal["published", "derived", "measured"]
ANCHOR_GRADES: tuple[AnchorGrade, ...] = ("published", "derived")
"""Of a profile's anchors. `measured` is what `edgekit profiles measure` wrote on one very board."""


@dataclass(frozen=True)
class Core:
    """One kind of core of the board.

    type: as `cores.toml` and the roofline's table spell it, e.g. `cortex-a72`. simd: features beyond the base, in the
    words of `cores.toml`: `dotprod` is what Linux calls asimddp, `fp16` is asimdhp.
    """

    type: str
    count: int
    clock_ghz: float
    simd: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caches:
    """Kilobytes; l1d is per core. None where there is none or it is not known."""

    l1d_kb: int | None = None
    l2_kb: int | None = None
    l3_kb: int | None = None


@dataclass(frozen=True)
class Memory:
    """ram_mb: of the smallest version sold.

    bandwidth_gbps: nominal, transfers a second times the bus's bytes.

    copy_gbps: what a plain copy was measured to reach, counted once, where somebody measured it.
    sold_mb: every size it is sold with.
    """

    ram_mb: int
    bandwidth_gbps: float | None = None
    copy_gbps: float | None = None
    sold_mb: tuple[int, ...] = ()


@dataclass(frozen=True)
class OsImage:
    """The operating system image: its name, CPython (`3.11`) and glibc (`2.36`).

    debian: the Debian release whose packages it installs (`bookworm`), empty where it is none. python and glibc are
    empty where there is none, as on Android: no wheel installs there.
    """

    name: str
    python: str
    glibc: str
    debian: str = ""


@dataclass(frozen=True)
class Thermal:
    """Degrees Celsius, None where not known.

    throttle_c: where the clock starts to fall. soft_limit_c: where it is held to soft_limit_ghz before that. limit_c:
    what the board keeps below by slowing down. shutdown_c: where it turns itself off.
    """

    throttle_c: float | None = None
    notes: str = ""
    soft_limit_c: float | None = None
    soft_limit_ghz: float | None = None
    limit_c: float | None = None
    shutdown_c: float | None = None


@dataclass(frozen=True)
class Power:
    """Watts of the whole board as measured, None where they were not.

    supply: what it wants, in words.
    """

    idle_w: float | None = None
    load_w: float | None = None
    supply: str = ""


@dataclass(frozen=True)
class Mode:
    """A setting that changes the number of cores and their clock.
    For example a Jetson's power mode, or a firmware's clock.

    watts: what the mode is called after, None where it is not a matter of watts. cores: of the kind in `Profile.core`.
    """

    name: str
    cores: int
    clock_ghz: float
    source: str
    watts: float | None = None
    notes: str = ""


@dataclass(frozen=True)
class Accelerator:
    """What else could compute.

    edgekit's engines run on the processor; this only lists what the board has.
    """

    name: str
    kind: Literal["gpu", "tpu", "npu", "dsp"]
    source: str
    notes: str = ""


@dataclass(frozen=True)
class BoardMarks:
    """What a board says of itself, by which `edgekit profiles detect` knows it.

    models: beginnings of /proc/device-tree/model. compatible: entries of /proc/device-tree/compatible.
    """

    models: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()


@dataclass(frozen=True)
class Anchor:
    """One known model timed on this board: what ties the roofline's ratios to milliseconds.

    framework: `xnnpack` (what LiteRT runs). ms: by precision (`float32`, `int8`), batch 1. grade: `published` was
    measured by somebody on this board; `derived` was worked out from another model, runtime or board (about 25 %);
    `measured` was timed by `edgekit profiles measure`, and then engine and engine_version say with what.
    """

    framework: str
    model: str
    threads: int
    clock_ghz: float
    ms: dict[str, float] = field(hash=False)
    grade: AnchorGrade
    source: str
    engine: str = ""
    engine_version: str = ""


@dataclass(frozen=True)
class Profile:
    """One board with one system image, in one mode.

    name: `BOARD`, `BOARD-IMAGE` where the image is not the board's first, `@MODE` after it where the mode is not.
    threads: what an engine is given by default. sources: where each figure comes from, by dotted key.
    pins: engine name -> the version that the board's image is held to. power_mode: the name of the mode, empty where
    there are none. measured_here: the machine that builds *is* the board, where its architecture is `arch`; its times
    are `measured`. kind: a board, a phone, a core that stands for boards without a profile (`generic`), or a host that
    answers for devices. board, image: the name's parts. little: the slower cores of a board with two kinds; inference
    is given the fast ones, in `core`. recipes: what a build makes for it where none is asked for, empty for all that
    may be worth it. anchors: those that hold for this image's architecture.
    """

    name: str
    title: str
    arch: str
    soc: str
    core: Core
    memory: Memory
    caches: Caches
    os: OsImage
    threads: int
    anchors: tuple[Anchor, ...] = ()
    thermal: Thermal = Thermal()
    power_mode: str = ""
    notes: str = ""
    measured_here: bool = False
    pins: dict[str, str] = field(default_factory=dict, hash=False)
    sources: dict[str, str] = field(default_factory=dict, hash=False)
    kind: Kind = "board"
    board: str = ""
    image: str = ""
    little: Core | None = None
    modes: tuple[Mode, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    power: Power = Power()
    marks: BoardMarks = BoardMarks()
    recipes: tuple[str, ...] = ()


def in_mode(profile: Profile, name: str) -> Profile:
    """The board after `name`, one of its `modes`, was set.

    Raises KeyError for a mode that it does not have.
    """
    mode = {mode.name: mode for mode in profile.modes}[name]
    if name == profile.power_mode:
        return profile
    return replace(
        profile,
        name=f"{profile.name}@{name}",
        core=replace(profile.core, count=mode.cores, clock_ghz=mode.clock_ghz),
        threads=min(profile.threads, mode.cores),
        power_mode=name,
        sources={**profile.sources, "core.count": mode.source, "core.clock_ghz": mode.source},
    )


@dataclass(frozen=True)
class CoreType:
    """type: as profiles spell it.
    generic: the profile that stands for boards with such cores, empty where none does.
    """

    type: str
    generic: str


def identify(implementer: int, part: int) -> CoreType | None:
    """From the two numbers of the MIDR register; None for a core that is not in the table."""
    for row in _facts()["cores"]:
        if row["implementer"] == implementer and part in row["parts"]:
            return CoreType(row["type"], row.get("generic", ""))
    return None


def known_types() -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["type"] for row in _facts()["cores"]))


def features_of(arch: str) -> dict[str, str]:
    """Features beyond the base of that architecture: edgekit's word -> the kernel's.

    Empty for an unknown one.
    """
    found: dict[str, str] = _facts()["features"].get(arch, {})
    return found


@functools.cache
def _facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_profiles") / "cores.toml").read_text(encoding="utf-8")
    return parse_toml(text)
