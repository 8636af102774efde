"""The similarity tier for video: a picture that looks like one just answered gets that one's answer.

    similar = Similar(threshold=4.0)
    mark = similar.mark(items)              # None: an input is no picture
    hit = similar.find(mark)                # SimilarHit or None
    similar.remember(mark, outputs)         # after a real inference

Rules:
- the distance is the largest change of a block's mean, in the picture's own units (grey levels, 0 to 255, for pixels), over a
  grid of 16 x 16 blocks and every colour. All pixels count; noise averages out, something small that moves does not;
- compared is with pictures that were really inferred, never with one that was itself answered by likeness: slow change adds
  up and is noticed;
- an answer older than `max_age_s` is never given, and NaN is like nothing;
- inputs that are no pictures must be equal byte for byte, beside at least one picture.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.cache.age import elapsed_s
from edgekit_runtime.cache.memory import kept

__all__ = ["Mark", "Similar", "SimilarHit"]

_MOST_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class SimilarHit:
    """distance: how far the request is from the one that was answered. age_s: how long ago that was."""

    outputs: Mapping[str, NDArray[Any]]
    distance: float
    age_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """What is kept of a request's pictures. kind: what must be equal. means: block means, float32 [n]."""

    kind: Hashable
    means: NDArray[np.float32]

    def distance(self, other: Mark) -> float:
        """The largest difference of two means; infinite between requests of different kinds."""
        if self.kind != other.kind:
            return float("inf")
        return float(np.abs(self.means - other.means).max())


class Similar:
    """Thread-safe. threshold: the largest distance that counts as alike, 0 or more. keep: how many answers to compare with."""

    def __init__(
        self,
        threshold: float,
        *,
        max_age_s: float = 2.0,
        keep: int = 4,
        grid: int = 16,
        clock: Callable[[], float] = elapsed_s,
    ) -> None:
        if not 0 <= threshold < float("inf"):
            raise ValueError(f"the threshold must be 0 or more, not {threshold}")
        if not max_age_s > 0 or keep < 1 or grid < 1:
            raise ValueError("max_age_s must be more than 0, keep and grid at least 1")
        self.threshold = threshold
        self._max_age_s = max_age_s
        self._grid = grid
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: deque[tuple[Mark, Any, float]] = deque(maxlen=keep)
        self._columns: dict[tuple[int, int], NDArray[np.float32]] = {}

    @property
    def entries(self) -> int:
        return len(self._answers)

    def mark(self, items: Mapping[str, NDArray[Any]]) -> Mark | None:
        """items: the decoded inputs; pictures are [H, W, C] with up to four channels, uint8, int8 or float."""
        kind: list[Hashable] = []
        means = []
        for name, item in items.items():
            if item.ndim == 3 and item.shape[2] <= _MOST_CHANNELS and item.size and item.dtype.kind in "uif":
                kind.append((name, item.dtype.char, item.shape))
                means.append(self._block_means(item))
            else:
                kind.append((name, item.dtype.char, item.shape, item.tobytes()))
        if not means:
            return None
        return Mark(tuple(kind), means[0] if len(means) == 1 else np.concatenate(means))

    def find(self, mark: Mark) -> SimilarHit | None:
        """The newest answer that is near enough and young enough."""
        now = self._clock()
        with self._lock:
            answers = list(self._answers)
        for other, outputs, born in reversed(answers):
            if now - born >= self._max_age_s:
                break
            distance = mark.distance(other)
            if distance <= self.threshold:
                return SimilarHit(outputs, distance, now - born)
        return None

    def remember(self, mark: Mark, outputs: Mapping[str, NDArray[Any]]) -> None:
        """outputs: what a real inference gave for `mark`."""
        answer = (mark, kept(outputs), self._clock())
        with self._lock:
            self._answers.append(answer)

    def flush(self) -> None:
        with self._lock:
            self._answers.clear()

    def _block_means(self, item: NDArray[Any]) -> NDArray[np.float32]:
        """Rows are summed in blocks in the narrowest integers that hold it, columns by one small matrix product."""
        height, width, channels = item.shape
        rows = max(1, height // self._grid)
        blocks = height // rows
        flat = item.reshape(height, width * channels)
        sums = flat[: blocks * rows].reshape(blocks, rows, -1).sum(axis=1, dtype=_holding(item.dtype, rows))
        means: NDArray[np.float32] = sums.astype(np.float32) @ self._to_columns(width, channels) / rows
        rest = height - blocks * rows
        if rest:
            sums = flat[blocks * rows :].sum(axis=0, keepdims=True, dtype=_holding(item.dtype, rest))
            means = np.concatenate([means, sums.astype(np.float32) @ self._to_columns(width, channels) / rest])
        return means.ravel()

    def _to_columns(self, width: int, channels: int) -> NDArray[np.float32]:
        """[width * channels, blocks * channels]: what a row's numbers give to each block's mean."""
        made = self._columns.get((width, channels))
        if made is None:
            blocks = min(self._grid, width)
            block = np.arange(width) * blocks // width
            share = (1.0 / np.bincount(block, minlength=blocks))[block]
            made = np.zeros((width, channels, blocks, channels), np.float32)
            for channel in range(channels):
                made[np.arange(width), channel, block, channel] = share
            made = self._columns[width, channels] = made.reshape(width * channels, blocks * channels)
        return made


def _holding(dtype: np.dtype[Any], rows: int) -> type[np.generic]:
    """The fastest dtype in which `rows` values of `dtype` can be added up."""
    if dtype == np.uint8:
        return np.uint16 if rows <= 257 else np.uint32
    if dtype == np.int8:
        return np.int16 if rows <= 255 else np.int32
    return np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64
