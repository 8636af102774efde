"""Weights are numbers: a NaN or an infinity among them is refused, and the tensor that has it is named.

check_finite([("conv/kernel", kernel)], where="net.keras")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import SourceError

__all__ = ["check_finite"]


def check_finite(
    tensors: Iterable[tuple[str, NDArray[Any]]],
    *,
    where: str,
    may_be_infinite: Callable[[str], bool] = lambda name: False,
) -> None:
    """Raises SourceError for the first tensor with a NaN, or with an infinity where that is not allowed by its name.

    A constant that is not a weight may be infinite: the -inf of an attention mask is.
    """
    for name, array in tensors:
        if array.dtype.kind not in "fcV" or array.size == 0:
            continue
        values = array if array.dtype.kind == "f" else np.asarray(array, np.float32)
        nans = int(np.isnan(values).sum())
        endless = 0 if may_be_infinite(name) else int(np.isinf(values).sum())
        if nans or endless:
            kind = "NaN" if nans else "infinite"
            raise SourceError(
                f"the weights '{name}' are damaged: {nans or endless:,} of {array.size:,} values are {kind}",
                where=where,
                do="Take an earlier checkpoint, from before the training diverged",
            )
