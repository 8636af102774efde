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
from typing import Any, Literal

from edgekit_profiles.schema import parse_toml

Kind = Literal["board", "phone", "generic", "host"]
AnchorGrade = Literal["published", "derived", "measured"]
ANCHOR_GRADES: tuple[AnchorGrade, ...] = ("published", "derived")
"""Of a profile's anchors; `measured` ones come from `edgekit profiles measure` on a single board."""


@dataclass(frozen=True)
class Core:
    """One kind of core of the board.

    type: as in `cores.toml` and the roofline's table, e.g. `cortex-a72`.
    simd: features beyond the base, by the names of `cores.toml`: `dotprod` is Linux's asimddp, `fp16` asimdhp.
    """

    type: str
    count: int
    clock_ghz: float
    simd: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caches:
    """Kilobytes; l1d is per core. None if absent or not known."""

    l1d_kb: int | None = None
    l2_kb: int | None = None
    l3_kb: int | None = None


@dataclass(frozen=True)
class Memory:
    """The board's memory.
    ram_mb: of the smallest version sold.
    bandwidth_gbps: nominal, transfers a second times the bus's bytes.
    copy_gbps: of a plain copy, counted once, if measured.
    sold_mb: every size sold.
    """

    ram_mb: int
    bandwidth_gbps: float | None = None
    copy_gbps: float | None = None
    sold_mb: tuple[int, ...] = ()


@dataclass(frozen=True)
class OsImage:
    """The operating system image: its name, CPython (`3.11`) and glibc (`2.36`).

    debian: the Debian release whose packages it installs (`bookworm`), or "".
    python, glibc: "" on a system without them, such as Android, where no wheel installs.
    """

    name: str
    python: str
    glibc: str
    debian: str = ""


@dataclass(frozen=True)
class Thermal:
    """Degrees Celsius, None if not known.

    throttle_c: the clock starts to fall.
    soft_limit_c: the clock is limited to soft_limit_ghz before that.
    limit_c: the board slows down to stay below.
    shutdown_c: it switches itself off.
    """

    throttle_c: float | None = None
    notes: str = ""
    soft_limit_c: float | None = None
    soft_limit_ghz: float | None = None
    limit_c: float | None = None
    shutdown_c: float | None = None


@dataclass(frozen=True)
class Power:
    """Watts of the whole board, None if not measured. supply: what it needs, in words."""

    idle_w: float | None = None
    load_w: float | None = None
    supply: str = ""


@dataclass(frozen=True)
class Mode:
    """A setting that changes the number of cores and their clock, such as a Jetson's power mode.

    watts: in the mode's name, or None.
    cores: of the kind in `Profile.core`.
    """

    name: str
    cores: int
    clock_ghz: float
    source: str
    watts: float | None = None
    notes: str = ""


@dataclass(frozen=True)
class Accelerator:
    """Other hardware of the board; for information, unless it has a delegate.

    delegate: a TFLite delegate's library, by name or absolute path, which tuning tries first.
    options: of that library.
    debian: Debian release -> the package that brings the library; empty if the image has it.
    device: its file in /dev, which the service's user must be allowed to open.
    """

    name: str
    kind: Literal["gpu", "tpu", "npu", "dsp"]
    source: str
    notes: str = ""
    delegate: str = ""
    options: dict[str, str] = field(default_factory=dict, hash=False)
    debian: dict[str, str] = field(default_factory=dict, hash=False)
    device: str = ""

    @property
    def library(self) -> str:
        """The delegate with its options, as `EDGEKIT_DELEGATE` takes it."""
        return ",".join([self.delegate, *(f"{key}={value}" for key, value in self.options.items())])

    def unusable(self, system: OsImage) -> str:
        """Why engines leave it idle on that system; empty if they may run on it."""
        if not self.delegate:
            return "edgekit's engines run on the cores"
        if self.debian and system.debian not in self.debian:
            return f"{self.delegate} is packaged for Debian {', '.join(self.debian)}, and this is {system.name}"
        return ""


@dataclass(frozen=True)
class BoardMarks:
    """How `edgekit profiles detect` recognises a board.

    models: beginnings of /proc/device-tree/model.
    compatible: entries of /proc/device-tree/compatible.
    """

    models: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()


@dataclass(frozen=True)
class Anchor:
    """One known model timed on this board, which ties the roofline's ratios to milliseconds.

    framework: `xnnpack` (LiteRT's kernels).
    ms: by precision (`float32`, `int8`), batch 1.
    grade: `published` was measured on this board; `derived` from another model, runtime or board (about 25 %);
        `measured` by `edgekit profiles measure` with engine and engine_version.
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

    name: `BOARD`, or `BOARD-IMAGE` for other images than the first, with `@MODE` for other modes than the set one.
    arch, soc: of the image's user land and the chip.
    core, little: the cores that inference uses, and the slower ones of a board with two kinds.
    threads: an engine's default.
    anchors: that hold for this image's architecture.
    power_mode: the mode that is set, or "".
    measured_here: the machine that builds *is* the board, if its architecture is `arch`; its times are `measured`.
    pins: engine name -> the version that the image has.
    sources: where each figure comes from, by dotted key.
    kind: a board, a phone, a core that stands for boards without a profile (`generic`), or a host that serves devices.
    board, image: the parts of the name.
    recipes: what a build makes by default, empty for all that may pay.
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
    """Return the board in one of its `modes`. Raises KeyError for other names."""
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
    """A known type of core.
    type: as in profiles.
    generic: the profile that stands for boards with such cores, or "".
    """

    type: str
    generic: str


def identify(implementer: int, part: int) -> CoreType | None:
    """Identify a core by two numbers of the MIDR register; None if unknown."""
    for row in _facts()["cores"]:
        if row["implementer"] == implementer and part in row["parts"]:
            return CoreType(row["type"], row.get("generic", ""))
    return None


def known_types() -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["type"] for row in _facts()["cores"]))


def features_of(arch: str) -> dict[str, str]:
    """Return features beyond the architecture's base: edgekit's name -> the kernel's."""
    found: dict[str, str] = _facts()["features"].get(arch, {})
    return found


@functools.cache
def _facts() -> dict[str, Any]:
    text = (importlib.resources.files("edgekit_profiles") / "cores.toml").read_text(encoding="utf-8")
    return parse_toml(text)
