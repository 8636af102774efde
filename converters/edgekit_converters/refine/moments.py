"""What the layers of a float graph see while it runs on calibration data: mean and second moment of their patches.

    moments = observe(graph, feeds())
    moments["block_1/conv"].covariance            # float64 [groups, n, n]

Rules: one pass, at most SAMPLES samples and a bounded number of places of each, so that time and memory do not grow with
the data; no sum of products is kept for a layer with more than COLUMNS columns, only its mean; what is not finite is left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.graph import Graph
from edgekit_converters.progress import Progress, silent
from edgekit_converters.refine.matrix import Matrix, as_matrix

__all__ = ["COLUMNS", "SAMPLES", "Moments", "observe"]

SAMPLES = 64
ROWS = 128
"""Patches of a layer drawn from one sample."""
GROUP_ROWS = 32
"""The same where each group sees few columns, as in depthwise convolutions."""
BATCH = 512
"""Rows that wait for one matrix product."""
COLUMNS = 2304
"""3 x 3 x 256. The second moment of more takes a second and 100 MB a layer."""


@dataclass(frozen=True)
class Moments:
    """rows: patches seen. mean: float64 [groups, n]. second: E[x x^T], float64 [groups, n, n], None for wide layers."""

    matrix: Matrix
    rows: int
    mean: NDArray[np.float64]
    second: NDArray[np.float64] | None

    @property
    def covariance(self) -> NDArray[np.float64] | None:
        if self.second is None:
            return None
        return self.second - self.mean[:, :, None] * self.mean[:, None, :]


class _Sums:
    """Patches gather until a matrix product is worth its start."""

    def __init__(self, matrix: Matrix) -> None:
        groups, columns = matrix.groups, matrix.columns
        self.matrix = matrix
        self.rows = 0
        self._first = np.zeros((groups, columns))
        self._second = np.zeros((groups, columns, columns)) if columns <= COLUMNS else None
        self._waiting: list[NDArray[np.float32]] = []

    def patches(self, values: NDArray[Any], random: np.random.Generator) -> NDArray[np.float32] | None:
        limit = ROWS if self.matrix.groups == 1 else GROUP_ROWS
        return self.matrix.patches(values, limit, random)

    def add(self, patches: NDArray[np.float32]) -> None:
        self._waiting.append(patches)
        if sum(part.shape[1] for part in self._waiting) >= max(BATCH, self.matrix.columns):
            self._settle()

    def moments(self) -> Moments | None:
        self._settle()
        if not self.rows:
            return None
        second = None if self._second is None else self._second / self.rows
        return Moments(self.matrix, self.rows, self._first / self.rows, second)

    def _settle(self) -> None:
        if not self._waiting:
            return
        patches = np.concatenate(self._waiting, axis=1)
        self._waiting.clear()
        total = patches.sum(axis=1)  # of few rows: float32 is enough
        if not np.isfinite(total).all():
            return
        self.rows += patches.shape[1]
        self._first += total
        if self._second is not None:
            self._second += patches.transpose(0, 2, 1) @ patches


def observe(
    graph: Graph, feeds: Iterable[Sequence[NDArray[Any]]], count: int, progress: Progress = silent
) -> dict[str, Moments]:
    """By layer name. feeds: inputs in the file's order, `count` of them: where they are many, some from all over are run."""
    sums = {layer.name: _Sums(matrix) for layer in graph.layers if (matrix := as_matrix(graph, layer)) is not None}
    wanted = list(dict.fromkeys(entry.matrix.layer.inputs[0] for entry in sums.values()))
    total = min(SAMPLES, count)
    chosen = {place * count // total for place in range(total)}
    random = np.random.default_rng(0)
    if not wanted:
        return {}
    with graph.watch(wanted) as watched:
        for done, arrays in enumerate(
            (arrays for i, arrays in enumerate(islice(feeds, count)) if i in chosen), start=1
        ):
            seen = watched.run(arrays)
            for entry in sums.values():
                values = seen.get(entry.matrix.layer.inputs[0])
                patches = None if values is None else entry.patches(values, random)
                if patches is not None:
                    entry.add(patches)
            progress("adjusting weights", done, total)
    found = {name: entry.moments() for name, entry in sums.items()}
    return {name: moments for name, moments in found.items() if moments is not None}
