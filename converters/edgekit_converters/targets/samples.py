"""Calibration examples as the original takes them, and as a target's layout wants them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.progress import Progress
from edgekit_runtime.tensors import TensorSpec

__all__ = ["Samples", "checked_samples", "tool_versions", "turn", "turned_shape"]


class Samples(Protocol):
    """Calibration examples. May be read several times; each is one array a source input, in `source.inputs` order.

    Arrays carry a batch axis of 1 and have the source's dtype and layout: what the original model takes.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence[NDArray[Any]]]: ...


def turned_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a picture input in the other layout."""
    n, a, b, c = spec.shape
    return (n, c, a, b) if spec.layout == "NHWC" else (n, b, c, a)


def turn(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """A batch of pictures in `spec`'s layout -> the other layout, contiguous."""
    return np.ascontiguousarray(array.transpose((0, 3, 1, 2) if spec.layout == "NHWC" else (0, 2, 3, 1)))


def checked_samples(
    samples: Samples, shapes: Sequence[tuple[int, ...]], progress: Progress
) -> Iterator[list[NDArray[Any]]]:
    """Samples one by one, progress told before each. Raises ConversionError for one that does not fit the model.

    shapes: of one item, without the batch axis, in the source's order.
    """
    total = len(samples)
    wanted = [(1, *shape) for shape in shapes]
    progress("calibration", 0, total)
    for index, arrays in enumerate(samples):
        got = [tuple(array.shape) for array in arrays]
        if got != wanted:
            raise ConversionError(
                f"its arrays have the shapes {got}, the model takes {wanted}",
                where=f"calibration sample {index}",
                do="Give each example a batch axis of 1 and the original model's shape",
            )
        yield list(arrays)
        progress("calibration", index + 1, total)


def tool_versions(distributions: Iterable[str]) -> dict[str, str]:
    """distribution -> version, for those that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
