"""Which arrays may stand for an input: one rule book, for the caller of a board and for a calibration set.

- an image input takes uint8 pixels, or floats: what the original model took;
- any other input takes what its dtype can hold without guessing: integers for floats, never floats for integers;
- no NaN, no infinity, no integer out of range, and nothing that is not a number;
- an artifact's own dtype may be passed where the caller says so (`ready`): an array made for the engine.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import InputContract
from edgekit_runtime.errors import InputError

__all__ = ["check_dtype", "check_values"]


def check_dtype(dtype: np.dtype[Any], contract: InputContract, ready: Collection[np.dtype[Any]] = ()) -> None:
    """Raises InputError where values of this dtype cannot stand for the input without guessing."""
    wanted = np.dtype(contract.dtype)
    if dtype in ready:
        return
    where = f"input '{contract.name}'"
    if contract.image is not None:
        if dtype == np.uint8 or (dtype.kind == "f" and wanted.kind == "f"):
            return
        floats = f", or what the model takes as {contract.dtype}" if wanted.kind == "f" else ""
        raise InputError(
            f"an image cannot be {dtype}", where=where, do=f"Pass pixels 0..255 with .astype(numpy.uint8){floats}"
        )
    if dtype.kind not in "biuf" or not np.can_cast(dtype, wanted, "same_kind"):
        raise InputError(f"it takes {contract.dtype}, not {dtype}", where=where, do=f"Pass {contract.dtype}")


def check_values(array: NDArray[Any], contract: InputContract) -> None:
    """Raises InputError for NaN, infinity, and integers that the contract's dtype cannot hold."""
    wanted, where = np.dtype(contract.dtype), f"input '{contract.name}'"
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InputError("it holds NaN or infinity", where=where, do="Mend what made the array")
        wider = wanted.kind == "f" and array.dtype.itemsize > wanted.itemsize and array.size
        if wider and float(np.abs(array).max()) > float(np.finfo(wanted).max):
            raise InputError(f"it has values outside {wanted}", where=where, do=f"Pass {wanted}")
    elif wanted.kind in "iu" and array.dtype != wanted and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InputError(f"it has values outside {contract.dtype}", where=where, do=f"Pass {contract.dtype}")
