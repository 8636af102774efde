"""Anchors: from one network timed on a board to the latency of another, and their file.

    anchored_ms(terms, anchor_terms, anchor_ms)        # by the roofline's ratio
    blend(carried_ms, host.ratio * anchor_ms)          # together with the ratio measured on the workstation
    estimate(profile, work, "litert", known=EstimateEvidence(anchors=anchors_for(profile, [read_anchor_file(path)])))

Rules:
- the roofline's error on the anchor carries over whole for the kind of work that the anchor spends most time on, half
  (in the logarithm) for what it does not do: the anchor gets its own time, and more work never takes less;
- a ratio measured on the workstation counts three quarters, the roofline's one quarter; `roofline.toml` has the errors;
- an anchor holds for its kernels, precision and threads, and a measured one for its engine and that engine's version;
- in a file the median counts; a run whose conditions changed (`steady` false) is refused;
- a file of one board is never used for another.

The file is one JSON object (more keys may be there, none of these may be missing):

    {"edgekit_anchor": 1, "network": "mobilenet_v1_1.0_224", "measured_at": "2026-05-01T10:00:00+00:00",
     "board": {"profile": "raspberry-pi-4" or null, "model": "Raspberry Pi 4 Model B Rev 1.4", "machine": "aarch64"},
     "times": [{"engine": "litert", "engine_version": "2.3.0", "precision": "int8", "threads": 4, "runs": 30,
                "min_ms": 23.1, "p50_ms": 24.0, "p95_ms": 25.2, "clock_ghz": 1.5 or null, "sha256": "..."}],
     "steady": true, "changed": [], "conditions": {...}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit_profiles.errors import AnchorError
from edgekit_profiles.profile import Anchor, Profile
from edgekit_profiles.workload import constants
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.system.strict_json import read_json

ANCHOR_MODEL = "mobilenet_v1_1.0_224"
_ORDER = {"measured": 0, "published": 1, "derived": 2}


@dataclass(frozen=True)
class HostTimes:
    """Milliseconds on one core of the workstation, the least of many runs, in one run.

    ms: of the artifact.
    reference_ms: of MobileNetV1 1.0 224 in the same precision.
    engine: ran both (`litert`).
    """

    ms: float
    reference_ms: float
    engine: str
    engine_version: str = ""
    machine: str = ""

    @property
    def ratio(self) -> float:
        return self.ms / self.reference_ms


def anchored_ms(
    terms: Mapping[str, float],
    anchor_terms: Mapping[str, float],
    anchor_ms: float,
    fitted: Mapping[str, Any] | None = None,
) -> float:
    """Milliseconds of a network with these terms, scaled by the anchor's measured time.

    Every kind of work has the same factor to a power: 1 for what the anchor spends most time on, down to
    `carried_at_least` for what it does not do.
    """
    least = (constants() if fitted is None else fitted)["anchoring"]["carried_at_least"]
    largest = max(anchor_terms.values())
    power = {kind: least + (1.0 - least) * ms / largest for kind, ms in anchor_terms.items()}
    error = _factor(anchor_terms, power, anchor_ms)
    return sum(ms * math.exp(error * power.get(kind, least)) for kind, ms in terms.items())


def _factor(terms: Mapping[str, float], power: Mapping[str, float], wanted_ms: float) -> float:
    """Return the log of the factor by which the terms, each to its power, sum to wanted_ms.

    By Newton's method, which converges from anywhere: the logarithm of the sum is convex and rises everywhere.
    """
    found = 0.0
    for _ in range(100):
        parts = {kind: ms * math.exp(found * power[kind]) for kind, ms in terms.items()}
        total = sum(parts.values())
        slope = sum(part * power[kind] for kind, part in parts.items()) / total
        step = math.log(total / wanted_ms) / slope
        found -= step
        if abs(step) < 1e-12:
            break
    return found


def blend(carried_ms: float, by_host_ms: float, fitted: Mapping[str, Any] | None = None) -> float:
    """Return the weighted geometric mean of the roofline's and the workstation's times."""
    weight = (constants() if fitted is None else fitted)["anchoring"]["host_weight"]
    return math.exp(weight * math.log(by_host_ms) + (1.0 - weight) * math.log(carried_ms))


def choose_anchor(
    profile: Profile, given: Sequence[Anchor], engine: str, kernels: str, precision: str, threads: int
) -> Anchor | None:
    """Choose an anchor: measured with this engine, published, derived; nearest clock.

    given: of anchor files, besides the profile's.
    """
    found = [
        anchor
        for anchor in (*given, *profile.anchors)
        if (anchor.model, anchor.threads) == (ANCHOR_MODEL, threads)
        and precision in anchor.ms
        and (anchor.engine == engine if anchor.engine else anchor.framework == kernels)
    ]
    found.sort(key=lambda a: (_ORDER[a.grade], abs(a.clock_ghz - profile.core.clock_ghz)))
    return found[0] if found else None


FORMAT = 1
_KERNELS = {"litert": "xnnpack", "tflite-runtime": "tflite"}
_AGAIN = "Make one on the board: edgekit profiles measure -o ANCHOR.json"
_MOST = 1 << 20


@dataclass(frozen=True)
class EngineTime:
    """Milliseconds of one engine, precision and number of threads.

    clock_ghz: None if the board does not say.
    """

    engine: str
    engine_version: str
    precision: str
    threads: int
    min_ms: float
    p50_ms: float
    p95_ms: float
    clock_ghz: float | None = None


@dataclass(frozen=True)
class AnchorFile:
    """A checked anchor file.
    profile: the board that `detect` found, or "".
    changed: what was not steady, in words.
    """

    where: str
    profile: str
    model: str
    machine: str
    measured_at: str
    times: tuple[EngineTime, ...]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _BoardTable:
    profile: str | None
    model: str | None
    machine: str | None


@dataclass(frozen=True)
class _AnchorFile:
    edgekit_anchor: int
    network: str
    measured_at: str
    board: _BoardTable
    times: tuple[EngineTime, ...]
    steady: bool
    changed: tuple[str, ...] = ()


def read_anchor_file(path: Path) -> AnchorFile:
    """Raises AnchorError."""
    try:
        text = read_regular(path, _MOST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise AnchorError(f"cannot be read: {why}", where=str(path), do=_AGAIN) from error
    found = parse_anchor_file(text, str(path))
    if found.changed:
        raise AnchorError(
            f"was measured while conditions changed: {'; '.join(found.changed)}",
            where=str(path),
            do="Measure again with the board cool, idle and well supplied",
        )
    return found


def parse_anchor_file(text: str, where: str) -> AnchorFile:
    """Raises AnchorError."""
    try:
        found = read_json(_AnchorFile, text, where)
    except ValueError as error:
        raise AnchorError(f"is not an anchor file: {error}", where=where, do=_AGAIN) from error
    if found.edgekit_anchor != FORMAT or found.network != ANCHOR_MODEL:
        raise AnchorError("is an anchor file of another version of edgekit", where=where, do=_AGAIN)
    possible = (
        0 < one.min_ms <= one.p50_ms <= one.p95_ms < 1e6
        and one.threads >= 1
        and (one.clock_ghz is None or 0 < one.clock_ghz < 20)
        for one in found.times
    )
    if not found.times or not all(possible):
        raise AnchorError("has no times, or impossible ones", where=where, do=_AGAIN)
    board = found.board
    changed = () if found.steady else found.changed or ("the file does not say which",)
    names = (board.profile or "", board.model or "", board.machine or "")
    return AnchorFile(where, *names, found.measured_at, found.times, changed)


def anchors_for(profile: Profile, files: Sequence[AnchorFile]) -> tuple[Anchor, ...]:
    """Return the anchors of the profile's board, any mode and image of its architecture.

    A file that names no board belongs to every profile of its machine's architecture.
    """
    found = []
    pairs = [(file, one) for file in files if _is_of(file, profile) for one in file.times]
    for file, one in pairs:
        clock = one.clock_ghz if one.clock_ghz is not None else profile.core.clock_ghz
        source = f"{Path(file.where).name}, {file.model or 'a board'}, {file.measured_at[:10]}"
        kernels, times = _KERNELS.get(one.engine, one.engine), {one.precision: one.p50_ms}
        by = one.engine, one.engine_version
        found.append(Anchor(kernels, ANCHOR_MODEL, one.threads, clock, times, "measured", source, *by))
    return tuple(found)


def refuse_other_boards(files: Sequence[AnchorFile], profiles: Sequence[Profile]) -> None:
    """Raise AnchorError for a file that none of the boards can use."""
    for file in files:
        if not any(_is_of(file, profile) for profile in profiles):
            board = file.profile or "a board that no profile knows"
            raise AnchorError(
                f"was measured on {board} ({file.machine}), not one of {', '.join(p.name for p in profiles)}",
                where=file.where,
                do=f"Leave it out, or ask for that board: --profile {file.profile or 'NAME'}",
            )


def _is_of(file: AnchorFile, profile: Profile) -> bool:
    """Whether a file is of this board, in any mode and in any image of its architecture."""
    board = file.profile.split("@")[0]
    return board in ("", profile.name.split("@")[0], profile.board) and file.machine in ("", profile.arch)
