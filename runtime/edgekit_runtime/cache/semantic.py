"""The embedding tier: a request whose vector lies near that of one answered before gets that one's answer.

    semantic = Semantic(embedder, threshold=0.05)       # a Model whose task is embedding, or a function
    vector = semantic.mark(items)
    hit = semantic.find(vector)                         # SimilarHit or None; its distance is 1 - cosine
    semantic.remember(vector, outputs)

Rules:
- compared is with everything that is kept, in one matrix product, and the nearest counts: exact, no approximate index;
- bounded in entries; what was used longest ago makes room;
- a vector with NaN or infinity, or of length 0, is like nothing;
- an embedder that fails makes a miss, never an error: the model answers;
- a `Cache` takes the settings and keeps answers of its own: two models, or a model and the one it is swapped for, share none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.cache.age import elapsed_s
from edgekit_runtime.cache.memory import kept
from edgekit_runtime.cache.similar import SimilarHit

__all__ = ["Embedder", "Semantic"]

Embedder = Callable[[Any], NDArray[Any]]
"""Takes the decoded input (a dict by name where there are several) and gives a vector; shape and scale are free."""


class Semantic:
    """Thread-safe. threshold: the largest cosine distance that counts as alike, from 0 (the same direction) to 2."""

    def __init__(
        self,
        embed: Any,
        threshold: float,
        *,
        max_entries: int = 10_000,
        ttl_s: float | None = None,
        clock: Callable[[], float] = elapsed_s,
    ) -> None:
        if not 0 <= threshold <= 2:
            raise ValueError(f"the threshold is a cosine distance from 0 to 2, not {threshold}")
        if max_entries < 1 or (ttl_s is not None and not ttl_s > 0):
            raise ValueError("max_entries must be at least 1 and ttl_s more than 0")
        self._embed = embed if not hasattr(embed, "predict") else _vector_of(embed)
        self.threshold = threshold
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = 0
        self._n = self._ticks = 0
        self._outputs: list[Any] = []
        self._vectors = np.empty((0, 0), np.float32)
        self._used = np.zeros(max_entries, np.int64)
        self._born = np.zeros(max_entries, np.float64)

    def anew(self) -> Semantic:
        """The same settings and no answers: what each model gets, so that none is given another's."""
        return Semantic(
            self._embed, self.threshold, max_entries=self._max_entries, ttl_s=self._ttl_s, clock=self._clock
        )

    @property
    def entries(self) -> int:
        return self._n

    @property
    def failed(self) -> int:
        """How often the embedder raised an error."""
        return self._failed

    def mark(self, items: Mapping[str, NDArray[Any]]) -> NDArray[np.float32] | None:
        """The request's direction, float32 [n] of length 1; None where it has none."""
        try:
            given = self._embed(next(iter(items.values())) if len(items) == 1 else items)
        except Exception:  # noqa: BLE001 - whatever an application's function raises, the model answers
            self._failed += 1
            return None
        vector = np.asarray(given, np.float32).ravel()
        length = float(np.linalg.norm(vector))
        if not 0 < length < float("inf"):
            return None
        return vector / np.float32(length)

    def find(self, vector: NDArray[np.float32]) -> SimilarHit | None:
        """The nearest answer, if it is near enough and young enough."""
        now = self._clock()
        with self._lock:
            if not self._n or self._vectors.shape[1] != vector.size:
                return None
            cosines = self._vectors[: self._n] @ vector
            if self._ttl_s is not None:
                cosines[now - self._born[: self._n] >= self._ttl_s] = -2.0
            nearest = int(cosines.argmax())
            distance = max(0.0, 1.0 - float(cosines[nearest]))
            if distance > self.threshold:
                return None
            self._used[nearest] = self._tick()
            return SimilarHit(self._outputs[nearest], distance, now - float(self._born[nearest]))

    def remember(self, vector: NDArray[np.float32], outputs: Mapping[str, NDArray[Any]]) -> None:
        """outputs: what a real inference gave for `vector`."""
        outputs = kept(outputs)
        with self._lock:
            if self._vectors.shape[1] != vector.size:
                self._forget()
                # Not touched before it is used: the system gives the memory page by page.
                self._vectors = np.empty((self._max_entries, vector.size), np.float32)
            if self._n < self._max_entries:
                place = self._n
                self._n += 1
                self._outputs.append(outputs)
            else:
                place = int(self._used.argmin())
                self._outputs[place] = outputs
            self._vectors[place] = vector
            self._used[place] = self._tick()
            self._born[place] = self._clock()

    def flush(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._n = self._ticks = 0
        self._outputs = []
        self._vectors = np.empty((0, 0), np.float32)

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks


def _vector_of(model: Any) -> Embedder:
    """A function of a Model: its first output, of a model that makes embeddings."""
    contract = model.contract
    if contract.task != "embedding":
        raise ValueError(f"a semantic cache needs a model whose task is embedding, not {contract.task}")
    name = contract.outputs[0].name
    return lambda item: model.predict(item).outputs[name]
