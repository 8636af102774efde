"""The file that `edgekit profiles measure` writes on a board: MobileNetV1 as it was timed there, and under which conditions.

    file = read_anchor_file(Path("our-pi.json"))
    estimate(profile, work, "litert", known=Known(anchors=anchors_for(profile, [file])))

JSON, one object (more keys may be there, none of these may be missing):

    {"edgekit_anchor": 1, "network": "mobilenet_v1_1.0_224", "measured_at": "2026-05-01T10:00:00+00:00",
     "board": {"profile": "raspberry-pi-4" or null, "model": "Raspberry Pi 4 Model B Rev 1.4", "machine": "aarch64"},
     "times": [{"engine": "litert", "engine_version": "2.3.0", "precision": "int8", "threads": 4, "runs": 30,
                "min_ms": 23.1, "p50_ms": 24.0, "p95_ms": 25.2, "clock_ghz": 1.5 or null, "sha256": "..."}],
     "steady": true, "changed": [], "conditions": {...}}

Rules:
- the median counts, as in the published tables; a run whose conditions changed (`steady` false) is refused;
- a file of one board is never used for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit_profiles.anchors import ANCHOR_MODEL
from edgekit_profiles.errors import AnchorError
from edgekit_profiles.profile import Anchor, Profile
from edgekit_profiles.regular import read_regular
from edgekit_runtime.bundle.codec import read_json

__all__ = ["FORMAT", "AnchorFile", "Timed", "anchors_for", "parse_anchor_file", "read_anchor_file", "refuse_strangers"]

FORMAT = 1
_KERNELS = {"litert": "xnnpack", "tflite-runtime": "tflite"}
_AGAIN = "Make one on the board: edgekit profiles measure -o ANCHOR.json"
_MOST = 1 << 20


@dataclass(frozen=True)
class Timed:
    """One engine, precision and number of threads; milliseconds. clock_ghz: None where the board does not tell."""

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
    """profile: the board that `detect` took it for, empty where it knew none. changed: what was not steady, in words."""

    where: str
    profile: str
    model: str
    machine: str
    measured_at: str
    times: tuple[Timed, ...]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Board:
    profile: str | None
    model: str | None
    machine: str | None


@dataclass(frozen=True)
class _File:
    edgekit_anchor: int
    network: str
    measured_at: str
    board: _Board
    times: tuple[Timed, ...]
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
            f"was made while conditions changed: {'; '.join(found.changed)}",
            where=str(path),
            do="Measure again with the board cool, idle and well supplied",
        )
    return found


def parse_anchor_file(text: str, where: str) -> AnchorFile:
    """Raises AnchorError."""
    try:
        found = read_json(_File, text, where)
    except ValueError as error:
        raise AnchorError(f"is no anchor file: {error}", where=where, do=_AGAIN) from error
    if found.edgekit_anchor != FORMAT or found.network != ANCHOR_MODEL:
        raise AnchorError("is an anchor file of another version of edgekit", where=where, do=_AGAIN)
    if not found.times or not all(map(_can_be, found.times)):
        raise AnchorError("holds no time, or one that cannot be", where=where, do=_AGAIN)
    board = found.board
    changed = () if found.steady else found.changed or ("it does not say what",)
    names = (board.profile or "", board.model or "", board.machine or "")
    return AnchorFile(where, *names, found.measured_at, found.times, changed)


def _can_be(one: Timed) -> bool:
    clock = one.clock_ghz is None or 0 < one.clock_ghz < 20
    return 0 < one.min_ms <= one.p50_ms <= one.p95_ms < 1e6 and one.threads >= 1 and clock


def anchors_for(profile: Profile, files: Sequence[AnchorFile]) -> tuple[Anchor, ...]:
    """Those of the profile's board, whatever its image or mode; files of other boards are left out. A file that names no
    board belongs to every profile of its machine's architecture."""
    return tuple(_anchor(one, file, profile) for file in files if _is_of(file, profile) for one in file.times)


def refuse_strangers(files: Sequence[AnchorFile], profiles: Sequence[Profile]) -> None:
    """A file that none of the boards can use was given by mistake. Raises AnchorError."""
    for file in files:
        if not any(_is_of(file, profile) for profile in profiles):
            board = file.profile or "a board that no profile knows"
            raise AnchorError(
                f"was measured on {board} ({file.machine}), which is none of {', '.join(p.name for p in profiles)}",
                where=file.where,
                do=f"Leave it out, or ask for that board: --profile {file.profile or 'NAME'}",
            )


def _is_of(file: AnchorFile, profile: Profile) -> bool:
    """The same board in any mode; another image of it counts where its user land is of the same machine."""
    board = file.profile.split("@")[0]
    return board in ("", profile.name.split("@")[0], profile.board) and file.machine in ("", profile.arch)


def _anchor(one: Timed, file: AnchorFile, profile: Profile) -> Anchor:
    clock = one.clock_ghz if one.clock_ghz is not None else profile.core.clock_ghz
    source = f"{Path(file.where).name}, {file.model or 'a board'}, {file.measured_at[:10]}"
    kernels = _KERNELS.get(one.engine, one.engine)
    times = {one.precision: one.p50_ms}
    return Anchor(kernels, ANCHOR_MODEL, one.threads, clock, times, "measured", source, one.engine, one.engine_version)
