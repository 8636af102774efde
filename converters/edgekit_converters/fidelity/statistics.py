"""What is counted while items stream by: no item is kept.

drift = Drift()
drift.add({"probs": original}, {"probs": answer})
drift.cosine, drift.sqnr_db
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.intervals import paired_interval

__all__ = ["FLOOR_DB", "Accuracy", "Drift", "best_class", "cosine"]

FLOOR_DB = -200.0
"""What stands for a signal of zero beside any noise: JSON has no infinity."""


@dataclass
class Drift:
    """Distance of an artifact's outputs from the original's, over all items and outputs.

    An item with an answer that is not finite counts as cosine 0 and, for the noise, as an answer of zeros: it can never
    look better than it is, and one NaN does not hide what the other items say.
    """

    items: int = 0
    not_finite: int = 0
    _cosines: float = 0.0
    _signal: float = 0.0
    _noise: float = 0.0

    def add(self, original: Mapping[str, NDArray[Any]], answer: Mapping[str, NDArray[Any]]) -> bool:
        """One item's outputs by name, the original's finite. Returns whether the answer was finite."""
        finite = all(bool(np.isfinite(answer[name]).all()) for name in original)
        self.items += 1
        self.not_finite += not finite
        for name, value in original.items():
            x = np.asarray(value, np.float64).reshape(-1)
            y = np.asarray(answer[name], np.float64).reshape(-1) if finite else np.zeros_like(x)
            self._cosines += cosine(x, y) / len(original) if finite else 0.0
            self._signal += float(x @ x)
            self._noise += float((x - y) @ (x - y))
        return finite

    @property
    def cosine(self) -> float:
        """Mean over items of the mean over outputs, -1..1."""
        return self._cosines / self.items

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(sum x^2 / sum (x - y)^2); None where nothing differs, -200 where the original is all zeros."""
        if self._noise == 0:
            return None
        return max(FLOOR_DB, 10 * math.log10(self._signal / self._noise)) if self._signal > 0 else FLOOR_DB


@dataclass
class Accuracy:
    """Right answers of two classifiers on the same items, as counts."""

    items: int = 0
    both: int = 0
    lost: int = 0
    gained: int = 0

    def add(self, original_right: bool, artifact_right: bool) -> None:
        self.items += 1
        self.both += original_right and artifact_right
        self.lost += original_right and not artifact_right
        self.gained += artifact_right and not original_right

    @property
    def original(self) -> float:
        return (self.both + self.lost) / self.items

    @property
    def artifact(self) -> float:
        return (self.both + self.gained) / self.items

    @property
    def drop(self) -> float:
        """original - artifact from the counts: 18/20 - 17/20 is 1/20, the nearest float to 0.05."""
        return (self.lost - self.gained) / self.items

    @property
    def ci95(self) -> tuple[float, float]:
        return paired_interval(self.lost, self.gained, self.items)


def cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """x.y / (|x| |y|), -1..1, for finite vectors. Two zero vectors are alike: 1. One zero vector is like nothing: 0."""
    peak_x, peak_y = float(np.abs(x).max(initial=0)), float(np.abs(y).max(initial=0))
    if peak_x == 0 or peak_y == 0:
        return 1.0 if peak_x == peak_y else 0.0
    x, y = x / peak_x, y / peak_y  # so that squares neither overflow nor vanish
    return float(np.clip((x @ y) / math.sqrt(float(x @ x) * float(y @ y)), -1.0, 1.0))


def best_class(scores: NDArray[Any]) -> int:
    """The index a board would answer: the greatest score, the lower index where two are equal."""
    return int(np.argmax(np.asarray(scores, np.float32).reshape(-1)))
