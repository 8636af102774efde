"""Raw engine outputs -> named, dequantized, read-only arrays.
A classifier's best classes, an embedding's vector.

finisher = Finisher(contract, artifact.outputs)
outputs = finisher(engine.run([tensor]))        # {"probs": float32 [1000]}
top(outputs, contract, 3)                       # [Prediction("tabby", 281, 0.83), ...]
vector(outputs, contract)                       # float32 [D], of length 1 where the contract says so
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.errors import ContractError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["Finisher", "Prediction", "dequantize", "softmax", "top", "top_score", "vector"]


@dataclass(frozen=True)
class Prediction:
    """One class of a classifier's answer.

    label: its name, or its index as text where the bundle has no labels.
    """

    label: str
    index: int
    score: float


class Finisher:
    """Callable: the engine's outputs in, one dict of item arrays by contract name out."""

    def __init__(self, contract: Contract, tensors: Sequence[TensorSpec]) -> None:
        names = [tensor.name for tensor in tensors]
        missing = [output.name for output in contract.outputs if output.name not in names]
        if missing:
            raise ContractError(f"the artifact lacks the output '{missing[0]}'", do=f"It has: {', '.join(names)}")
        self._plan = [
            (
                output.name,
                names.index(output.name),
                _reader(tensors[names.index(output.name)], np.dtype(output.dtype)),
            )
            for output in contract.outputs
        ]

    def __call__(self, raw: Sequence[NDArray[Any]], item: int = 0) -> Mapping[str, NDArray[Any]]:
        """Item `item` of the batch, dequantized to the original dtypes, read-only.
        It has no batch axis."""
        outputs = {}
        for name, position, way in self._plan:
            value = way(raw[position][item])
            value.setflags(write=False)
            outputs[name] = value.view()  # a view of a locked array cannot be unlocked by who gets it
        return MappingProxyType(outputs)


def _reader(tensor: TensorSpec, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """`dequantize` for one tensor.
    For 8 bits the 256 possible values are computed once and looked up."""
    if tensor.quantization is None:
        return partial(np.array, dtype=dtype)
    if np.dtype(tensor.dtype).itemsize != 1:
        return partial(dequantize, tensor=tensor, dtype=dtype)
    every = np.arange(256, dtype=np.uint8).view(tensor.dtype)
    return dequantize(every, tensor, dtype).take  # which counts negative indexes from the end: -1 is byte 255


def dequantize(value: NDArray[Any], tensor: TensorSpec, dtype: np.dtype[Any]) -> NDArray[Any]:
    """real = scale * (quantized - zero_point), as `dtype`; a fresh array."""
    if tensor.quantization is None or not np.issubdtype(value.dtype, np.integer):
        return np.array(value, dtype)
    real = value.astype(np.float32)
    real -= tensor.quantization.zero_point
    real *= np.float32(tensor.quantization.scale)
    return real.astype(dtype, copy=False)


def top(outputs: Mapping[str, NDArray[Any]], contract: Contract, k: int) -> list[Prediction]:
    """The k best classes, best first; logits become probabilities. Ties go to the lower index.

    Raises ContractError when the task is not classification, ValueError for a k that is no whole number above 0.
    """
    if not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, not {k!r:.40}")
    if contract.task != "classification":
        raise ContractError(f"top() is for classifiers; this model's task is {contract.task}", do="Read answer.outputs")
    scores = np.asarray(outputs[contract.outputs[0].name], np.float32).reshape(-1)
    if contract.scores == "logits":
        scores = softmax(scores)
    best = np.argsort(-scores, kind="stable")[:k]
    labels = contract.labels
    return [Prediction(labels[i] if labels else str(i), int(i), float(scores[i])) for i in best]


def top_score(outputs: Mapping[str, NDArray[Any]], contract: Contract) -> float | None:
    """The best class's probability; None for what is no classifier."""
    if contract.task != "classification":
        return None
    scores = np.asarray(outputs[contract.outputs[0].name], np.float32).reshape(-1)
    if scores.size < 2:
        return None
    with np.errstate(all="ignore"):
        best = 1.0 / np.exp(scores - scores.max()).sum() if contract.scores == "logits" else scores.max()
    return float(best)


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Over the last axis, shifted by the maximum so that nothing overflows."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: NDArray[Any] = shifted / shifted.sum(axis=-1, keepdims=True)
    return result


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
