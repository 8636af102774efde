"""What edgekit knows of a board. A profile is data: nothing in the code names a board.

profile = load("raspberry-pi-4")
profile.core.type, profile.core.clock_ghz        # "cortex-a72", 1.5
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Anchor", "Caches", "Core", "Memory", "Profile", "System", "Thermal"]


@dataclass(frozen=True)
class Core:
    """The cores that run inference; on a board with two kinds, the fast ones.

    type: as the roofline's table spells it, e.g. `cortex-a72`. simd: features beyond the base, e.g. `dotprod`, `fp16`.
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
    """ram_mb: of the smallest version sold. bandwidth_gbps: nominal, transfers a second times the bus's bytes.

    copy_gbps: what a plain copy was measured to reach, counted once, where somebody measured it.
    """

    ram_mb: int
    bandwidth_gbps: float | None = None
    copy_gbps: float | None = None


@dataclass(frozen=True)
class System:
    """The operating system image that the profile stands for: its name, CPython (`3.11`) and glibc (`2.36`)."""

    name: str
    python: str
    glibc: str


@dataclass(frozen=True)
class Thermal:
    """throttle_c: degrees Celsius at which the clock starts to fall, None where not known."""

    throttle_c: float | None = None
    notes: str = ""


@dataclass(frozen=True)
class Anchor:
    """One known model timed on this board: what ties the roofline's ratios to milliseconds.

    framework: `xnnpack` (what LiteRT runs). ms: by precision (`float32`, `int8`), batch 1. grade: `published` was
    measured by somebody on this board; `derived` was worked out from another model, runtime or board (about 25 %).
    """

    framework: str
    model: str
    threads: int
    clock_ghz: float
    ms: dict[str, float] = field(hash=False)
    grade: Literal["published", "derived"]
    source: str


@dataclass(frozen=True)
class Profile:
    """One board. threads: what an engine is given by default. sources: where each figure comes from, by dotted key.

    pins: engine name -> the version that the board's image is held to. power_mode: for boards whose clock depends on it.
    measured_here: the machine that builds *is* the board, where its architecture is `arch`; its times are `measured`.
    """

    name: str
    title: str
    arch: str
    soc: str
    core: Core
    memory: Memory
    caches: Caches
    os: System
    threads: int
    anchors: tuple[Anchor, ...] = ()
    thermal: Thermal = Thermal()
    power_mode: str = ""
    notes: str = ""
    measured_here: bool = False
    pins: dict[str, str] = field(default_factory=dict, hash=False)
    sources: dict[str, str] = field(default_factory=dict, hash=False)
