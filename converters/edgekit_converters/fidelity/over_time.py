"""How far an artifact that carries its own state has drifted from the original, by the steps of its sequences.

    along = OverTime(["probability"])
    along.add(0, {"probability": original}, {"probability": answer})      # step 0 begins a sequence
    along.spans()                                                          # at most eight, of equal length

Rules: a few numbers a step are kept, never outputs; an answer that is not finite counts as zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.result import Span
from edgekit_converters.fidelity.statistics import decibels

__all__ = ["SPANS", "OverTime"]

SPANS = 8

Outputs = Mapping[str, NDArray[Any]]


@dataclass
class _Step:
    frames: int = 0
    signal: float = 0.0
    noise: float = 0.0
    worst: float = 0.0


class OverTime:
    """sequences: how many began."""

    def __init__(self, names: Sequence[str]) -> None:
        self.sequences = 0
        self._names = names
        self._steps: list[_Step] = []

    def add(self, step: int, original: Outputs, answer: Outputs) -> None:
        """One frame. step: 0 begins a sequence."""
        self.sequences += step == 0
        while len(self._steps) <= step:
            self._steps.append(_Step())
        at = self._steps[step]
        at.frames += 1
        for name in self._names:
            x, y = (np.asarray(side[name], np.float64).reshape(-1) for side in (original, answer))
            apart = np.abs(np.where(np.isfinite(y), x - y, x))
            at.signal, at.noise = at.signal + float(x @ x), at.noise + float(apart @ apart)
            at.worst = max(at.worst, float(apart.max(initial=0)))

    def spans(self) -> tuple[Span, ...]:
        """The steps of the longest sequence, cut into eight."""
        longest = len(self._steps)
        edges = np.unique(np.linspace(0, longest, min(SPANS, longest) + 1).astype(int)).tolist()
        return tuple(self._span(first, end) for first, end in itertools.pairwise(edges))

    def _span(self, first: int, end: int) -> Span:
        steps = self._steps[first:end]
        db = decibels(sum(step.signal for step in steps), sum(step.noise for step in steps))
        return Span(first, end - 1, sum(step.frames for step in steps), db, max(step.worst for step in steps))
