"""A raw value -> the canonical array of one input; what examples of a kind look like.

    reader = Canonical(contract)
    inputs = reader({"image": array}, origin="data.npz, item 3")       # CalibrationError names the item
    sets_of(spec).noise(spec, generator)        # patches of colours for an image, numbers for a tensor

The board's table of the same kinds is `edgekit_runtime.contract.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.kinds import ImageKind, TensorKind, kind_of, pictures
from edgekit_runtime.contract.spec import Contract, InputContract
from edgekit_runtime.errors import InputError


class Canonical:
    """Callable: raw values by input name in, canonical arrays by input name out."""

    def __init__(self, contract: Contract) -> None:
        self._inputs = contract.inputs
        self._decoders = {spec.name: Decoder(spec) for spec in contract.inputs}

    def __call__(self, values: Mapping[str, Any], origin: str) -> dict[str, NDArray[Any]]:
        """The canonical arrays of one item.
        Raises CalibrationError for a missing input, a wrong shape or dtype, NaN, infinity or a broken image."""
        arrays = {}
        for spec in self._inputs:
            if spec.name not in values:
                raise CalibrationError(f"has no value for the input '{spec.name}'", where=origin)
            try:
                array = self._decoders[spec.name](values[spec.name])
            except InputError as error:
                # A file's own error already says which file.
                what = error.what if error.where == origin else f"{error.where}: {error.what}"
                raise CalibrationError(what, where=origin, do=error.do or "Remove or replace it") from error
            if array.dtype not in kind_of(spec).free_dtypes(spec):
                with np.errstate(over="ignore"):
                    array = np.array(array, spec.dtype, order="C")
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    what = f"the input '{spec.name}' has values beyond {spec.dtype}"
                    raise CalibrationError(what, where=origin, do="Remove the item")
            arrays[spec.name] = array
        return arrays


def check_kind(spec: InputContract, dtype: np.dtype[Any], where: str) -> None:
    """Raises CalibrationError for a dtype that cannot stand for the input without guessing."""
    try:
        kind_of(spec).check_dtype(dtype, spec)
    except InputError as error:
        raise CalibrationError(f"{error.where}: {error.what}", where=where, do=error.do) from error


_LARGE = 1e4


class TensorSets:
    """Examples of numbers of one shape."""

    def fits(self, spec: InputContract, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Whether items of this shape, without the batch, may stand for the input."""
        return shape == spec.shape

    def noise(self, spec: InputContract, generator: np.random.Generator) -> NDArray[Any]:
        """Floats are normal, whole numbers 0 or 1."""
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            return generator.standard_normal(spec.shape).astype(dtype)
        return generator.integers(0, 2, spec.shape).astype(dtype)

    def extent(self, spec: InputContract) -> tuple[np.dtype[Any], float, float]:
        """The smallest and largest numbers to try. Larger whole numbers than 1 may be no index."""
        dtype = np.dtype(spec.dtype)
        return (dtype, -_LARGE, _LARGE) if dtype.kind == "f" else (dtype, 0.0, 1.0)

    def normalised(self, spec: InputContract) -> tuple[float, float] | None:
        """The least and the most that floats for this input should hold, None where that is unknown."""
        return None

    def holds_ids(self, spec: InputContract) -> bool:
        """Whether its numbers may be rows of a table."""
        return np.dtype(spec.dtype).kind in "iu"


class ImageSets(TensorSets):
    """Examples of pictures."""

    def fits(self, spec: InputContract, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Pixels may have any size: the decoder resizes them, and says what is no picture."""
        height, width, channels = spec.shape
        pixels = dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and 0 not in shape))
        return pixels or shape in (spec.shape, (channels, height, width))

    def noise(self, spec: InputContract, generator: np.random.Generator) -> NDArray[Any]:
        """Patches of random colours, of another size in each."""
        height, width, channels = spec.shape
        cell = int(generator.integers(1, 1 + max(1, min(height, width) // 4)))
        patches = generator.integers(0, 256, (-(-height // cell), -(-width // cell), channels), np.uint8)
        return np.ascontiguousarray(patches.repeat(cell, 0).repeat(cell, 1)[:height, :width])

    def extent(self, spec: InputContract) -> tuple[np.dtype[Any], float, float]:
        return np.dtype(np.uint8), 0.0, 255.0

    def normalised(self, spec: InputContract) -> tuple[float, float] | None:
        """What mean and std make of pixels 0 and 255.
        It shows 0..255 given to a network that takes -1..1."""
        [image] = pictures([spec])
        ends = [(pixel - m) / s for m, s in zip(image.mean, image.std, strict=True) for pixel in (0.0, 255.0)]
        return min(ends), max(ends)

    def holds_ids(self, spec: InputContract) -> bool:
        return False


_SETS: dict[type[TensorKind], TensorSets] = {TensorKind: TensorSets(), ImageKind: ImageSets()}


def sets_of(spec: InputContract) -> TensorSets:
    """The row of an input."""
    return _SETS[type(kind_of(spec))]
