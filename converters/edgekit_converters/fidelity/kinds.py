"""What an output's values are, told from what the original answered: it decides how an artifact's error is weighed.

    found = kinds(contract, reference.outputs)
    found["price"].what             # "numbers": each is weighed by itself, against how much it varies

Rules:
- the cosine of one number is always 1 or -1, and that of a few beside a large offset is 1.0000 whatever becomes of them: a
  few numbers are held against their standard deviation over the items, one by one;
- whole numbers, one to seven, are indexes of classes: they are the same or not;
- scores of classes are what a classifier's first output is, any output that sums to 1 for every item, and, beside other
  outputs, a row of 3 to 32 values of which most are the greatest for some item;
- a number that hardly varies has nothing to be held against but its own size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.fidelity.result import OutputKind
from edgekit_runtime.contract.spec import Contract

__all__ = ["FEW", "MOST_CLASSES", "OFFSET", "SUM_TO_ONE", "Kind", "kinds", "spread_of"]

FEW = 8
"""An output of fewer values is a few numbers, of more it has a direction."""

MOST_CLASSES = 32
"""Scores of more classes than this decide nothing beside other outputs: neighbours among many are as good as each other."""

OFFSET = 0.9
"""Share of the power that is the same for every item, from which on it hides what is not."""

SUM_TO_ONE = 1e-2
"""How far a quantized softmax's sum may be from 1."""

_WINNERS = 0.75  # of the values of a row of scores that are the greatest for some item
_CONSTANT = 1e-3  # of its size: a number that varies by less over the items does not vary
_LARGEST = 1 << 20  # values of an output, beyond which no offset is looked for


@dataclass(frozen=True)
class Kind:
    """what: see `OutputKind`. spread: what an error is held against, [values] for "numbers", [1] for an output whose values
    have one unit, None where the signal itself will do. largest: the greatest norm of an answer. agrees: items with the same
    best class are counted. indexes: the values are classes themselves, and are the same or not.
    """

    what: OutputKind = "vector"
    spread: NDArray[np.float64] | None = None
    largest: float = 0.0
    agrees: bool = False
    indexes: bool = False


def kinds(contract: Contract, answers: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, Kind]:
    """Of each output by name. answers: the original's, one entry an item, finite."""
    return {
        output.name: _kind(contract, output.name, [np.asarray(answer[output.name]) for answer in answers])
        for output in contract.outputs
    }


def spread_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[items, values] -> the standard deviation of each value over the items; its root mean square where it is constant."""
    deviation, size = values.std(axis=0), np.sqrt(np.square(values).mean(axis=0))
    whole = float(size.max(initial=0)) or 1.0
    return np.where(deviation > _CONSTANT * size, deviation, np.where(size > 0, size, whole))


def _kind(contract: Contract, name: str, answers: Sequence[NDArray[Any]]) -> Kind:
    largest = max((float(np.linalg.norm(answer)) for answer in answers), default=0.0)
    first = contract.task == "classification" and name == contract.outputs[0].name
    count = answers[0].size
    if first:
        return Kind("classes", None, largest, agrees=True)
    if count > 1 and all(_distribution(answer) for answer in answers):
        return Kind("classes" if count <= MOST_CLASSES else "vector", None, largest, agrees=True)
    if count < FEW and all(answer.dtype.kind in "iub" for answer in answers):
        return Kind("classes", None, largest, agrees=True, indexes=True)
    if count > _LARGEST or len({answer.size for answer in answers}) > 1:
        return Kind("vector", None, largest)
    if count <= MOST_CLASSES:
        values = np.stack([answer.astype(np.float64).reshape(-1) for answer in answers])
        if len(contract.outputs) > 1 and _ranked(answers[0].shape, values):
            return Kind("classes", _pooled(*_powers(answers)), largest, agrees=True)
        if count < FEW:
            bounded = bool(values.min() >= 0 and values.max() <= 1)
            spread = _pooled(*_powers(answers)) if bounded else spread_of(values)
            return Kind("probabilities" if bounded else "numbers", spread, largest)
    power, varies = _powers(answers)
    hidden = _CONSTANT**2 * power < varies <= (1 - OFFSET) * power
    return Kind("vector", _pooled(power, varies) if hidden else None, largest)


def _powers(answers: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Mean square of an answer, summed over its values; and the part of it that varies from item to item."""
    mean = np.zeros(answers[0].size)
    for answer in answers:
        mean += answer.reshape(-1)
    mean /= len(answers)
    power = varies = 0.0
    for answer in answers:
        row = answer.astype(np.float64).reshape(-1)
        power, varies = power + float(row @ row), varies + float((row - mean) @ (row - mean))
    return power / len(answers), varies / len(answers)


def _pooled(power: float, varies: float) -> NDArray[np.float64]:
    """One spread for all values, which have one unit: the root of the sum of their variances, [1]."""
    return np.array([(varies if varies > _CONSTANT**2 * power else power) ** 0.5 or 1.0])


def _ranked(shape: tuple[int, ...], values: NDArray[np.float64]) -> bool:
    """Whether a row of numbers may be scores of classes: which is the greatest says something of the item."""
    count = values.shape[1]
    if max(shape, default=1) != count or not 3 <= count <= MOST_CLASSES:
        return False
    if values.min() >= 0 and values.max() <= 1:
        return False  # each by itself: sigmoids
    norms = np.linalg.norm(values, axis=1)
    if norms.std() <= _CONSTANT * norms.mean():
        return False  # a direction: an embedding of length 1
    return bool(len(np.unique(values.argmax(axis=1))) >= _WINNERS * count)


def _distribution(values: NDArray[Any]) -> bool:
    numbers = np.asarray(values, np.float64)
    return bool(numbers.min() >= 0) and abs(float(numbers.sum()) - 1) <= SUM_TO_ONE
