"""A raw value -> the canonical array of one input, or a CalibrationError that names the item.

reader = Canonical(contract)
inputs = reader({"image": array}, origin="data.npz, item 3")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.spec import Contract, InputContract
from edgekit_runtime.errors import InputError

__all__ = ["Canonical", "check_kind"]


class Canonical:
    """Callable: raw values by input name in, canonical arrays by input name out."""

    def __init__(self, contract: Contract) -> None:
        self._inputs = contract.inputs
        self._decoders = {spec.name: Decoder(spec) for spec in contract.inputs}

    def __call__(self, values: Mapping[str, Any], origin: str) -> dict[str, NDArray[Any]]:
        """Raises CalibrationError for a missing input, a wrong shape or dtype, NaN, infinity or a broken image."""
        arrays = {}
        for spec in self._inputs:
            if spec.name not in values:
                raise CalibrationError(f"has no value for the input '{spec.name}'", where=origin)
            arrays[spec.name] = self._one(spec, values[spec.name], origin)
        return arrays

    def _one(self, spec: InputContract, value: Any, origin: str) -> NDArray[Any]:
        try:
            array = self._decoders[spec.name](value)
        except InputError as error:
            # A file's own error already says which file.
            what = error.what if error.where == origin else f"{error.where}: {error.what}"
            raise CalibrationError(what, where=origin, do=error.do or "Remove or replace it") from error
        if array.dtype in kind_of(spec).free_dtypes(spec):
            return array
        with np.errstate(over="ignore"):
            result = np.array(array, spec.dtype, order="C")
        if result.dtype.kind == "f" and not np.isfinite(result).all():
            raise CalibrationError(
                f"the input '{spec.name}' has values beyond {spec.dtype}", where=origin, do="Remove the item"
            )
        return result


def check_kind(spec: InputContract, dtype: np.dtype[Any], where: str) -> None:
    """Raises CalibrationError where values of this dtype cannot stand for the input without guessing."""
    try:
        kind_of(spec).check_dtype(dtype, spec)
    except InputError as error:
        raise CalibrationError(f"{error.where}: {error.what}", where=where, do=error.do) from error
