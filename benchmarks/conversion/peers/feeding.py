"""The calibration inputs as a peer's model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def samples(folder: Path, shape: Sequence[int]) -> Iterator[NDArray[Any]]:
    """calibrate.npy one by one with a batch of 1, channels moved where the model has them at the other end."""
    for sample in np.load(folder / "calibrate.npy", mmap_mode="r"):
        yield turned(np.asarray(sample)[None], shape)


def turned(array: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    wanted = tuple(shape[1:])
    if array.shape[1:] != wanted and array.ndim == 4:
        for order in ((0, 2, 3, 1), (0, 3, 1, 2)):
            if array.transpose(order).shape[1:] == wanted:
                return np.ascontiguousarray(array.transpose(order))
    return np.ascontiguousarray(array)
