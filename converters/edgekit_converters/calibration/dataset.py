"""What every set of examples is: a length, an order, and items made when they are asked for.

for example in dataset:                    # from the first, any number of times
    print(example.origin, example.label)
golden = list(dataset.pick([4, 17]))       # just these
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

__all__ = ["Dataset", "Example", "Label", "Subset", "digest"]

Label = int | float | NDArray[Any]
"""A class index, a number to be predicted, or an array: of such numbers, or boxes [M, 5] (x1, y1, x2, y2, class)."""


@dataclass(frozen=True)
class Example:
    """One item.

    inputs: by contract name, no batch axis: uint8 [height, width, channels] pixels for an image input (or floats of that
    shape, already normalised as the original takes them), an array of the contract's shape and dtype otherwise.
    label: None where there is none; for a classifier the class index. origin: the file or place it came from, for messages.
    step: where it stands in its sequence, 0 for a first frame; None where the model keeps no state.
    """

    inputs: Mapping[str, NDArray[Any]]
    label: Label | None
    origin: str
    step: int | None = None


class Dataset(Protocol):
    """Examples in a fixed order. Reading may raise CalibrationError: items are decoded only then."""

    @property
    def name(self) -> str:
        """Where it was opened, for messages."""
        ...

    @property
    def any_order(self) -> bool:
        """Whether `pick` takes indexes in any order, each at the cost of its item alone."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Example]: ...

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        """The items at these indexes, which must ascend unless `any_order`; the others are not decoded where that can be avoided."""
        ...


@dataclass(frozen=True)
class Subset:
    """Some items of a dataset, in its order; itself a Dataset."""

    dataset: Dataset
    indexes: Sequence[int]

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def any_order(self) -> bool:
        return self.dataset.any_order

    def __len__(self) -> int:
        return len(self.indexes)

    def __iter__(self) -> Iterator[Example]:
        return self.dataset.pick(self.indexes)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        return self.dataset.pick([self.indexes[index] for index in indexes])


def digest(example: Example) -> str:
    """xxh3-128 over names, dtypes, shapes and every byte of the inputs; the label is no part of it."""
    state = xxhash.xxh3_128()
    for name in sorted(example.inputs):
        array = example.inputs[name]
        state.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
