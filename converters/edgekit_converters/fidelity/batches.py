"""Examples -> the batches a model takes: one item each, or as many as the file fixes.

for group, tensors in batches(dataset, adapters, 8): ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Example
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.tensors import TensorSpec

__all__ = ["Intake"]


class Intake:
    """Adapts examples to one destination's tensors, in its order, and groups them.

    at_once: items a batch where the file leaves the batch axis free; a fixed axis decides for itself. A last batch that
    is short of a fixed one is filled with copies of its last item.
    """

    def __init__(self, contract: Contract, tensors: Sequence[TensorSpec], at_once: int) -> None:
        self._adapters = [(spec.name, Adapter(contract.input(spec.name), spec)) for spec in tensors]
        fixed = max((spec.shape[0] for spec in tensors if spec.shape), default=-1)
        self._fixed = fixed > 0
        self._size = fixed if fixed > 0 else at_once

    def adapt(self, example: Example) -> list[NDArray[Any]]:
        """One example, with a batch axis of what the file wants."""
        return next(iter(self.batches([example])))[1]

    def batches(self, examples: Iterable[Example]) -> Iterator[tuple[list[Example], list[NDArray[Any]]]]:
        """(examples, tensors) pairs; the tensors may hold more rows than there are examples, and these mean nothing."""
        remaining = iter(examples)
        while group := list(itertools.islice(remaining, self._size)):
            fill = [group[-1]] * (self._size - len(group)) if self._fixed else []
            rows = [*group, *fill]
            yield group, [self._stack([adapter(row.inputs[name]) for row in rows]) for name, adapter in self._adapters]

    @staticmethod
    def _stack(rows: list[NDArray[Any]]) -> NDArray[Any]:
        return rows[0] if len(rows) == 1 else np.concatenate(rows)
