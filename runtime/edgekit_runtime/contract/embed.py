"""The vector of a model that embeds.

vector(answer.outputs, contract)        # float32 [D], of length 1 where the contract says so
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.errors import ContractError

__all__ = ["vector"]


def vector(outputs: Mapping[str, NDArray[Any]], contract: Contract) -> NDArray[np.float32]:
    """One axis, read-only. A vector of zeros has no direction and stays as it is.

    Raises ContractError when the model's task is not embedding.
    """
    spec = contract.embedding
    if contract.task != "embedding" or spec is None:
        raise ContractError(
            f"vector is for models that embed; this model's task is {contract.task}", do="Read answer.outputs"
        )
    values = np.array(outputs[spec.output], np.float32).reshape(-1)
    if spec.normalize:
        largest = float(np.abs(values).max(initial=0.0))
        if largest > 0:  # scaled first: squares of the very large and the very small leave the range of a float
            values /= np.float32(largest)
            values /= np.float32(np.linalg.norm(values))
    values.setflags(write=False)
    return values
