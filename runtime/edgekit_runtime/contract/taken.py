"""An output that was computed elsewhere, by a host or before, checked against the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import OutputContract


def taken(output: OutputContract, value: Any, name: str = "", axes: tuple[int, ...] = ()) -> NDArray[Any]:
    """One item's output as the contract has it, read-only.

    name: what it is called there. axes: those of length 1 that stand before an item's.
    Raises ValueError for another shape or kind of numbers, for NaN and infinity, and for what is too large.
    """
    name, dtype, shape = name or output.name, np.dtype(output.dtype), (*axes, *output.shape)
    if not isinstance(value, np.ndarray) or value.shape != shape or not converts(value.dtype, dtype):
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else "nothing"
        raise ValueError(f"output '{name}' came as {got}, not as {output.dtype} {list(shape)}")
    if dtype.kind in "fc" and not np.isfinite(value).all():
        raise ValueError(f"output '{name}' holds NaN or infinity")
    with np.errstate(over="ignore"):
        item: NDArray[Any] = value.reshape(output.shape).astype(dtype, copy=False)
    if item.dtype != value.dtype and not np.isfinite(item).all():
        raise ValueError(f"output '{name}' is too large for {dtype}")
    item.flags.writeable = False
    return item


def converts(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether a dtype can stand for the contract's: any float, or the same integer."""
    return wanted.kind in "biufc" and (given == wanted or given.kind == wanted.kind == "f")
