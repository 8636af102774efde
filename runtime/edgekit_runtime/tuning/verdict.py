"""What was found about a bundle on a board, and where that is kept.

    verdict.chosen.label        # "tflite-int8 on litert 2.3.0, 1 thread"
    verdict.why                 # "the fastest of 6: 3.2 ms, the next takes 3.9 ms"

Rules:
- everything about why this one was chosen stands in the verdict: each candidate with its time, or the reason against it;
- a stored verdict is good for one bundle, board, runtime and set of engines; anything unreadable is as if it were not there;
- what a model may take is asked anew at each opening: among the measured, the fastest that fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgekit_runtime.bundle.codec import json_text, read_json
from edgekit_runtime.tuning.candidates import Candidate
from edgekit_runtime.whole_file import write_cache

__all__ = ["Tried", "Verdict", "key_of", "read", "settled", "store"]

FORMAT = 3

How = Literal["measured", "stored", "default"]


@dataclass(frozen=True)
class Tried:
    """One candidate's trial. p50_ms: of a run with a golden example. memory_mb: what loading and running it added to the
    memory that a process has for itself, and the bundle's artifacts (1e6 bytes).

    ratio: its time by that of the champion it was compared with, run in turn. refused: why it is out, as
    `EdgekitError.as_json` gives it. What was not measured is None.
    """

    candidate: Candidate
    p50_ms: float | None = None
    runs: int = 0
    load_ms: float | None = None
    first_ms: float | None = None
    memory_mb: float | None = None
    ratio: float | None = None
    refused: dict[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            **self.candidate.as_json(),
            "p50_ms": self.p50_ms,
            "runs": self.runs,
            "load_ms": self.load_ms,
            "first_ms": self.first_ms,
            "memory_mb": self.memory_mb,
            "ratio": self.ratio,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class Verdict:
    """how: measured now, stored from an earlier opening, or the bundle's default. tried: in the order of trial.

    seconds: what measuring took, then. kept: whether it is on disk, so that it will not be measured again.
    """

    chosen: Candidate
    how: How
    why: str
    tried: tuple[Tried, ...] = ()
    seconds: float = 0.0
    kept: bool = False

    @property
    def measured(self) -> Tried | None:
        """What the chosen one's trial found."""
        return next((one for one in self.tried if one.candidate == self.chosen), None)

    def following(self) -> tuple[Candidate, ...]:
        """The chosen one and, should it not load after all, the others that passed, fastest first."""
        passed = sorted(
            (one for one in self.tried if one.p50_ms is not None and one.candidate != self.chosen),
            key=lambda one: one.p50_ms or 0.0,
        )
        return (self.chosen, *(one.candidate for one in passed))

    def describe(self) -> dict[str, Any]:
        """For `Model.describe()`."""
        return {
            "chosen": self.chosen.label,
            "how": self.how,
            "why": self.why,
            "seconds": round(self.seconds, 3),
            "kept": self.kept,
            "candidates": [
                {
                    "candidate": one.candidate.label,
                    "p50_ms": one.p50_ms,
                    "memory_mb": one.memory_mb,
                    "refused": _sentence(one.refused),
                }
                for one in self.tried
            ],
        }


def settled(tried: Sequence[Tried], champion: Candidate | None, memory_mb: float | None) -> Verdict | None:
    """The verdict over what was tried: the champion, or where it takes more than memory_mb the fastest that does not.

    None when nothing passed.
    """
    passed = [one for one in tried if one.p50_ms is not None]
    fitting = [one for one in passed if memory_mb is None or (one.memory_mb or 0.0) <= memory_mb]
    if not fitting:
        return None
    first = next((one for one in fitting if one.candidate == champion), None)
    best = first or min(fitting, key=lambda one: one.p50_ms or 0.0)
    rest = sorted(one.p50_ms or 0.0 for one in fitting if one is not best)
    why = "the only one that passed" if len(passed) == 1 else f"the fastest of {len(fitting)}: {best.p50_ms:.3g} ms"
    if rest:
        why += f", the next takes {rest[0]:.3g} ms"
    if len(tried) == 1:
        why = "there is no other"
    if first is None and champion is not None:
        why += f"; the fastest of all does not fit into {memory_mb:.0f} MB"
    return Verdict(best.candidate, "measured", why, tuple(tried))


@dataclass(frozen=True)
class _Record:
    """What is kept of a verdict."""

    format: int
    chosen: Candidate
    seconds: float
    tried: tuple[Tried, ...]


def key_of(*parts: str) -> str:
    """The name of a verdict's file. parts: the bundle's digest, the board, the runtime, the candidates."""
    return hashlib.sha256("\0".join((str(FORMAT), *parts)).encode()).hexdigest()


def store(file: Path, verdict: Verdict) -> Verdict:
    """Keep it; a folder that cannot be written only means that it is measured again."""
    record = _Record(FORMAT, verdict.chosen, verdict.seconds, verdict.tried)
    try:
        write_cache(file, [json_text(record).encode()])
    except OSError:
        return replace(verdict, kept=False)
    return replace(verdict, kept=True)


def read(file: Path, offered: Sequence[Candidate], memory_mb: float | None) -> Verdict | None:
    """The stored verdict; None where there is none, it cannot be read, or it speaks of other candidates."""
    try:
        record = read_json(_Record, file.read_bytes(), "the verdict", format=FORMAT)
        passed = {one.candidate for one in record.tried if one.p50_ms is not None}
        if {one.candidate for one in record.tried} != set(offered) or record.chosen not in passed:
            return None
        found = settled(record.tried, record.chosen, memory_mb)
    except (OSError, ValueError):
        return None
    return replace(found, how="stored", seconds=record.seconds, kept=True) if found is not None else None


def _sentence(refused: dict[str, str] | None) -> str | None:
    if refused is None:
        return None
    return f"{refused['where']}: {refused['what']}" if refused["where"] else refused["what"]
