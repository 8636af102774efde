"""Drift of a classifier's top scores: the population stability index against a reference.

    drift = Drift(bundled=[2, 0, 1, ...])   # the bundle's own; without one the first REFERENCE samples become it
    drift.add([0, 0, 3, 1, 0, 0, 2, 5, 20, 90])
    drift.psi                               # None until LEAST samples came since the last one

Rules:
- the meter counts the top score of one answer in sixteen of the device's, in BINS of equal width from 0 to 1; no class
  and no score leaves the board, only the index;
- the reference is the bundle's, of its evaluation set, where that has LEAST samples in BINS; else a board makes one of
  its own first answers with the bundle, and keeps it beside its spool;
- above 0.2 the index is usually called a drift; below LEAST samples it would be noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BINS = 10
LEAST = 300
REFERENCE = 1000


def psi(reference: Sequence[int], seen: Sequence[int]) -> float:
    """Half a sample is added to each bin, so that an empty one is no infinity."""
    shares = []
    for counts in (reference, seen):
        total = sum(counts) + 0.5 * len(counts)
        shares.append([(n + 0.5) / total for n in counts])
    return math.fsum((b - a) * math.log(b / a) for a, b in zip(*shares, strict=True))


def count_score(counts: list[int], score: float | None) -> None:
    """Count one top score in its bin; None, NaN and what is no probability are left out."""
    if score is not None and 0.0 <= score <= 1.0:
        counts[min(BINS - 1, int(score * BINS))] += 1


class Drift:
    """reference: counts in BINS of the board's own answers, complete or not; None to begin one.

    bundled: the bundle's counts. They are used where there are LEAST of them in BINS, and are complete then.
    """

    def __init__(self, reference: Sequence[int] | None = None, bundled: Sequence[int] | None = None) -> None:
        self.bundled = bundled is not None and len(bundled) == BINS and min(bundled) >= 0 and sum(bundled) >= LEAST
        if self.bundled:
            reference = bundled
        self.reference = list(reference) if reference is not None else [0] * BINS
        self.psi: float | None = None
        self._seen = [0] * BINS

    def add(self, counts: Sequence[int]) -> bool:
        """Count a window's samples; `psi` is then that of the samples since the last one.

        True: the reference grew.
        """
        self.psi = None
        if not self.bundled and sum(self.reference) < REFERENCE:
            self.reference = [a + b for a, b in zip(self.reference, counts, strict=True)]
            return any(counts)
        self._seen = [a + b for a, b in zip(self._seen, counts, strict=True)]
        if sum(self._seen) >= LEAST:
            self.psi = psi(self.reference, self._seen)
            self._seen = [0] * BINS
        return False
