"""Whether a bundle keeps its promise: a pure judgement of what was seen of it on this board.

    judge(Seen(answers=240, late=1, failures=0, seconds=61.0), terms)      # Verdict("keep", "240 answers ...")

Rules:
- only what the device answered counts: neither a cache nor a host says anything about it;
- the promise is of one inference: p99 within it means that no more than one in a hundred took longer;
- an engine that is dead decides at once; everything else when enough was seen, and not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from edgekit_runtime.bundle import Manifest

__all__ = ["LATE_SHARE", "Seen", "Terms", "Verdict", "judge", "terms_of"]

LATE_SHARE = 0.01
"""Of a p99: as many answers may be later."""
FAILED_SHARE = 0.01
"""As many inferences may fail."""


@dataclass(frozen=True)
class Terms:
    """answers, seconds: how much must be seen. p99_ms, peak_mb: what was promised, None for nothing."""

    answers: int = 200
    seconds: float = 60.0
    p99_ms: float | None = None
    peak_mb: float | None = None


@dataclass(frozen=True)
class Seen:
    """answers: of the device. late: of those, longer than the promise. failures: of the engine. seconds: since it began.

    p99_ms, peak_mb: for people; peak_mb is of a process that does nothing else, None where it does. dead: why the engine
    answers no more, empty where it does.
    """

    answers: int = 0
    late: int = 0
    failures: int = 0
    seconds: float = 0.0
    p99_ms: float | None = None
    peak_mb: float | None = None
    dead: str = ""

    def plus(self, other: Seen) -> Seen:
        """Two spells of one trial together; what is for people is the later one's."""
        return Seen(
            self.answers + other.answers,
            self.late + other.late,
            self.failures + other.failures,
            self.seconds + other.seconds,
            other.p99_ms if other.p99_ms is not None else self.p99_ms,
            other.peak_mb,
            other.dead,
        )


@dataclass(frozen=True)
class Verdict:
    says: Literal["wait", "keep", "back"]
    why: str = ""


def terms_of(manifest: Manifest, answers: int = 200, seconds: float = 60.0) -> Terms:
    promise = manifest.promise
    if promise is None:
        return Terms(answers, seconds)
    return Terms(answers, seconds, promise.p99_ms, promise.peak_mb)


def judge(seen: Seen, terms: Terms) -> Verdict:
    """`back` names what was not kept; `wait` says what is still to be seen."""
    if seen.dead:
        return Verdict("back", f"its engine answers no more: {seen.dead}")
    asked = seen.answers + seen.failures
    if asked < terms.answers or seen.seconds < terms.seconds:
        return Verdict(
            "wait", f"{seen.answers} of {terms.answers} answers, {seen.seconds:.0f} of {terms.seconds:.0f} s"
        )
    if seen.failures > FAILED_SHARE * asked:
        return Verdict("back", f"{seen.failures} of {asked} inferences failed")
    if terms.p99_ms is not None and seen.late > LATE_SHARE * seen.answers:
        p99 = f" (p99 {seen.p99_ms:.3g} ms)" if seen.p99_ms is not None else ""
        return Verdict(
            "back", f"{seen.late} of {seen.answers} inferences took longer than the {terms.p99_ms:.3g} ms promised{p99}"
        )
    if terms.peak_mb is not None and seen.peak_mb is not None and seen.peak_mb > terms.peak_mb:
        return Verdict("back", f"it took {seen.peak_mb:.0f} MB, and {terms.peak_mb:.0f} were promised")
    return Verdict("keep", _told(seen, terms))


def _told(seen: Seen, terms: Terms) -> str:
    p99 = "" if seen.p99_ms is None else f", p99 {seen.p99_ms:.3g} ms"
    within = f" within the {terms.p99_ms:.3g} promised" if terms.p99_ms is not None else " (none was promised)"
    memory = "" if seen.peak_mb is None else f", {seen.peak_mb:.0f} MB"
    return f"{seen.answers} answers{p99}{within if p99 else ''}{memory}"
