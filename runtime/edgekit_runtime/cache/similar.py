"""Two tiers for similar requests: pictures that changed little, and nearby vectors.

    similar = Similar(threshold=4.0)
    mark = similar.mark(items)              # None: no input is a picture
    hit = similar.find(mark)                # SimilarHit or None
    similar.remember(mark, outputs)         # after a real inference

    semantic = Semantic(embedder, threshold=0.05)     # the same methods; a Model whose task is embedding, or a function
    semantic = Semantic(embedder, error=0.02)         # at most 2 % of its answers are false: see `bounded`

Rules:
- an answer older than the tier allows is never returned, and NaN or infinity matches nothing;
- requests are compared with real inferences, never with answers found by likeness: slow change adds up and is noticed;
- pictures differ by the largest change of a block's mean, in the picture's own units, over a grid of 16 x 16 blocks and
  every channel. Noise averages out, something small that moves does not;
- other inputs must be equal byte for byte, and at least one must be a picture;
- a vector is compared with every kept one in one matrix product. The distance is 1 - cosine;
- an embedder that fails makes a miss, never an error; a comparison that fails is a contradiction.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.cache.bounded import BoundStats, Entry, ErrorBound, new_entry
from edgekit_runtime.cache.memory_tier import elapsed_s, freeze
from edgekit_runtime.system.records import record

_MOST_CHANNELS = 4
_CONSIDERED = 0.5  # a cosine distance: beyond it nothing is alike
_LEARNING = 5_000  # requests near a kept answer after which a bound that cannot be kept is not pursued further
_ALIKE = 0.95
Embedder = Callable[[Any], NDArray[Any]]
"""Takes the decoded input (a dict by name if several) and returns a vector of any shape and scale."""


@record(frozen=True)
class SimilarHit:
    """distance: from the request that was answered.
    age_s: of that answer.
    """

    outputs: Mapping[str, NDArray[Any]]
    distance: float
    age_s: float


@record(frozen=True)
class PictureMark:
    """kind: what must be equal.
    means: block means, float32 [n].
    """

    kind: Hashable
    means: NDArray[np.float32]

    def distance(self, other: PictureMark) -> float:
        """The largest difference of two means; infinite between different kinds."""
        if self.kind != other.kind:
            return float("inf")
        return float(np.abs(self.means - other.means).max())


class Similar:
    """Thread-safe.

    threshold: the largest distance that counts as alike, 0 or more.
    keep: how many answers to compare with.
    """

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
        self._answers: deque[tuple[PictureMark, Any, float]] = deque(maxlen=keep)
        self._columns: dict[tuple[int, int], NDArray[np.float32]] = {}

    @property
    def entries(self) -> int:
        return len(self._answers)

    def mark(self, items: Mapping[str, Any]) -> PictureMark | None:
        """Fingerprint decoded inputs. Pictures are [H, W, C], C up to 4, integer or float."""
        kind: list[Hashable] = []
        means = []
        if not all(isinstance(item, np.ndarray) for item in items.values()):  # a text
            return None
        for name, item in items.items():
            if item.ndim == 3 and item.shape[2] <= _MOST_CHANNELS and item.size and item.dtype.kind in "uif":
                kind.append((name, item.dtype.char, item.shape))
                means.append(self._block_means(item))
            else:
                kind.append((name, item.dtype.char, item.shape, item.tobytes()))
        if not means:
            return None
        return PictureMark(tuple(kind), means[0] if len(means) == 1 else np.concatenate(means))

    def find(self, mark: PictureMark) -> SimilarHit | None:
        """The newest answer within the threshold and the age limit."""
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

    def remember(self, mark: PictureMark, outputs: Mapping[str, NDArray[Any]]) -> None:
        """outputs: of a real inference for `mark`."""
        answer = (mark, freeze(outputs), self._clock())
        with self._lock:
            self._answers.append(answer)

    def flush(self) -> None:
        with self._lock:
            self._answers.clear()

    def _block_means(self, item: NDArray[Any]) -> NDArray[np.float32]:
        """The mean of each block: rows in the narrowest integers, columns by one matrix product."""
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
        """[width * channels, blocks * channels]: a row's weights in each block's mean."""
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


class Semantic:
    """The semantic cache tier: an LRU of answers by vector. Thread-safe.

    A `Cache` copies the settings but not the answers (`fresh`), so models share none.
    threshold: largest cosine distance of similar inputs, from 0 to 2; with `error`, the largest considered at all.
    error: largest share of wrong answers among those given; None to give all within `threshold`.
    same: whether a cached answer equals the computed one; see `same_answer`.
    sample: with `error`, the share of possible answers that are computed anyway, for comparison.
    chance: random number source for `sample`.
    """

    def __init__(
        self,
        embed: Any,
        threshold: float | None = None,
        *,
        error: float | None = None,
        same: Callable[[Any, Any], bool] | None = None,
        sample: float = 0.1,
        chance: Random | None = None,
        max_entries: int = 10_000,
        ttl_s: float | None = None,
        clock: Callable[[], float] = elapsed_s,
    ) -> None:
        if threshold is None:
            if error is None:
                raise ValueError("Semantic takes a threshold, or the error that it may make")
            threshold = _CONSIDERED
        if not 0 <= threshold <= 2:
            raise ValueError(f"the threshold is a cosine distance from 0 to 2, not {threshold}")
        if max_entries < 1 or (ttl_s is not None and not ttl_s > 0):
            raise ValueError("max_entries must be at least 1 and ttl_s more than 0")
        self._embed = embed if not hasattr(embed, "predict") else _vector_of(embed)
        self.threshold, self._same = threshold, same or same_answer
        self._max_entries, self._ttl_s, self._clock = max_entries, ttl_s, clock
        self._options: dict[str, Any] = {"error": error, "same": same, "sample": sample, "chance": chance}
        self._options |= {"max_entries": max_entries, "ttl_s": ttl_s, "clock": clock}
        self._bound = None if error is None else ErrorBound(error, sample, chance)
        self._lock = threading.Lock()
        self._n = self._ticks = 0
        self._outputs: list[Any] = []
        self._records: list[Entry] = []
        self._vectors = np.empty((0, 0), np.float32)
        self._used = np.zeros(max_entries, np.int64)
        self._born = np.zeros(max_entries, np.float64)

    def fresh(self) -> Semantic:
        """The same settings and no answers."""
        return Semantic(self._embed, self.threshold, **self._options)

    @property
    def entries(self) -> int:
        return self._n

    def mark(self, items: Mapping[str, Any]) -> NDArray[np.float32] | None:
        """The request's direction, float32 [n] of length 1; None if it has none."""
        try:
            given = self._embed(next(iter(items.values())) if len(items) == 1 else items)
        except Exception:  # noqa: BLE001 - whatever an application's function raises, the model answers
            return None
        vector = np.asarray(given, np.float32).ravel()
        length = float(np.linalg.norm(vector))
        if not 0 < length < float("inf"):
            return None
        return vector / np.float32(length)

    def find(self, vector: NDArray[np.float32]) -> SimilarHit | None:
        """The nearest answer, if within the threshold and the age limit."""
        now = self._clock()
        with self._lock:
            found = self._nearest(vector, now)
            if found is None:
                return None
            nearest, distance = found
            if self._bound is not None and not self._bound.serves(self._records[nearest], distance):
                return None
            self._used[nearest] = self._tick()
            return SimilarHit(self._outputs[nearest], distance, now - float(self._born[nearest]))

    def _nearest(self, vector: NDArray[np.float32], now: float) -> tuple[int, float] | None:
        """Place and distance of the nearest answer, if within the threshold and the age limit."""
        if not self._n or self._vectors.shape[1] != vector.size:
            return None
        cosines = self._vectors[: self._n] @ vector
        if self._ttl_s is not None:
            cosines[now - self._born[: self._n] >= self._ttl_s] = -2.0
        nearest = int(cosines.argmax())
        distance = max(0.0, 1.0 - float(cosines[nearest]))
        return None if distance > self.threshold else (nearest, distance)

    def answer(self, item: Any, compute: Callable[[Any], Any]) -> tuple[Any, bool]:
        """A cached answer or the result of `compute(item)`; and whether it was cached.

        For anything that costs more than the vector, such as a request to a server. `same` compares such answers."""
        mark = self.mark({"item": item})
        hit = None if mark is None else self.find(mark)
        if hit is not None:
            return hit.outputs, True
        made = compute(item)
        if mark is not None:
            self.remember(mark, made)
        return made, False

    def _confirms(self, kept: Any, computed: Any) -> bool:
        try:
            return bool(self._same(kept, computed))
        except Exception:  # noqa: BLE001 - whatever an application's function raises, the answer is there already
            return False

    @property
    def learns(self) -> bool:
        """Whether it gives no answers yet, and may soon."""
        return self._bound is not None and not self._bound.cut and self._bound.withheld < _LEARNING

    def bound(self) -> BoundStats | None:
        """How often its answers are false; None without `error`."""
        with self._lock:
            return None if self._bound is None else self._bound.stats()

    def remember(self, vector: NDArray[np.float32], outputs: Any) -> None:
        """outputs: of a real inference for `vector`, or an application's own."""
        if isinstance(outputs, Mapping) and all(isinstance(one, np.ndarray) for one in outputs.values()):
            outputs = freeze(outputs)
        with self._lock:
            found = None if self._bound is None else self._nearest(vector, self._clock())
            if self._bound is not None and found is not None:
                place, distance = found
                right = self._confirms(self._outputs[place], outputs)
                self._bound.learn(self._records[place], distance, right=right)
                if right:  # confirmed: it stays the one entry of its kind
                    self._used[place], self._born[place] = self._tick(), self._clock()
                    return
            if self._vectors.shape[1] != vector.size:
                self._forget()
                # Not touched before it is used: the system gives the memory page by page.
                self._vectors = np.empty((self._max_entries, vector.size), np.float32)
            if self._n < self._max_entries:
                place, self._n = self._n, self._n + 1
                self._outputs.append(outputs)
                self._records.append(new_entry())
            else:
                place = int(self._used.argmin())
                self._outputs[place], self._records[place] = outputs, new_entry()
            self._vectors[place] = vector
            self._used[place] = self._tick()
            self._born[place] = self._clock()

    def flush(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._n = self._ticks = 0
        self._outputs, self._records = [], []
        self._vectors = np.empty((0, 0), np.float32)

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks


def same_answer(kept: Any, computed: Any) -> bool:
    """Whether two answers say the same.

    Of floats: the same largest value at the same place, and a cosine of 0.95; of anything else: equality."""
    if not isinstance(kept, Mapping):
        return bool(kept == computed)
    for name, array in kept.items():
        one, other = np.asarray(array).ravel(), np.asarray(computed[name]).ravel()
        if one.dtype.kind != "f" or one.size < 2 or one.shape != other.shape:
            if not np.array_equal(one, other):
                return False
            continue
        lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
        if one.argmax() != other.argmax() or not float(one @ other) >= _ALIKE * lengths:
            return False
    return True


def _vector_of(model: Any) -> Embedder:
    """A Model's first output as a function; its task must be embedding."""
    contract = model.contract
    if contract.task != "embedding":
        raise ValueError(f"a semantic cache needs a model whose task is embedding, not {contract.task}")
    name = contract.outputs[0].name
    return lambda item: model.predict(item).outputs[name]
