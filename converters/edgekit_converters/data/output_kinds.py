"""What an output's values are, which decides how an error is weighed.

    found = kinds(contract, reference.outputs)
    found["price"].what             # "numbers": each is weighed by itself, against how much it varies

Rules:
- a few numbers are compared with their standard deviation over the items, one by one: the cosine of one number is
  always 1 or -1, and beside a large offset always 1.0000. One that hardly varies is compared with its own size;
- whole numbers, one to seven, are indexes of classes: they are the same or not;
- class scores are a classifier's first output, any output that sums to 1 for every item, and, beside other outputs, a
  row of 3 to 32 values of which most are the greatest for some item. Embeddings and forecasts have no best class;
- if one class wins nearly always, the scores are compared with how they vary;
- channels of an output with ranges so far apart that one scale leaves the smaller no levels are groups, such as a
  detector's boxes in pixels and its scores. Each group is compared with its own signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import Contract

OutputKind = Literal["classes", "numbers", "probabilities", "vector"]
"""classes: one score a class, of classes that exclude each other.
numbers: one to seven, each of which means something by itself.
probabilities: one to seven that all lie in 0..1.
vector: anything with more values; what counts is its direction."""

FEW = 8
"""An output of fewer values is a few numbers, of more it has a direction."""

MOST_CLASSES = 32
"""Scores of more classes decide nothing beside other outputs: neighbours among many are equally good."""

OFFSET = 0.9
"""Share of the power that is the same for every item, from which on it hides what is not."""

SUM_TO_ONE = 1e-2
"""How far a quantized softmax's sum may be from 1."""

APART = 64.0
"""Ranges this far apart: under one scale of 256 levels the smaller is left 4."""

NOTHING = 1e-6
"""Of the largest value: what float32 may round away beside it is not a signal."""

MANY_LEVELS = 16
"""Of 256 over its own range: a group that uses fewer has none to lose."""

_ALWAYS = 0.95  # of the items, from which on the class that wins says little
_GRID = 0.05  # of the scores' size: an error is held against no less, as 8 bits round them by a seventh of that
_WINNERS = 0.75  # of the values of a row of scores that are the greatest for some item
_CONSTANT = 1e-3  # of its size: a number that varies by less over the items does not vary

_SMOOTH = 0.25
"""Of the ratio in `is_curve`: forecasts of 8 to 96 steps have 0.0 to 0.2, scores 1.0 to 1.3."""

_SURE = 0.5  # a classifier's best probability, a curve's by chance at most
_LARGEST = 1 << 20  # values of an output, beyond which no offset is looked for


@dataclass(frozen=True)
class Group:
    """Channels of an output with a range of their own.
    channels: their places, None for the whole output.
    low, high: of the original's values.
    varied: it uses `MANY_LEVELS` or more."""

    channels: tuple[int, ...] | None
    low: float
    high: float
    varied: bool


@dataclass(frozen=True)
class Kind:
    """How an output's error is weighed.
    what: see `OutputKind`.
    spread: what an error is compared with, [values] for "numbers", [1] if its values have one unit, None for the
        signal.
    largest: the greatest norm of an answer.
    agrees: items with the same best class are counted.
    indexes: the values are classes themselves, and are the same or not.
    axis: of the channels, among the sides longer than 1, None without channels.
    groups: of channels."""

    what: OutputKind = "vector"
    spread: NDArray[np.float64] | None = None
    largest: float = 0.0
    agrees: bool = False
    indexes: bool = False
    axis: int | None = None
    groups: tuple[Group, ...] = ()


def kinds(contract: Contract, answers: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, Kind]:
    """Of each output by name. answers: the original's, one entry an item, finite."""
    found = {}
    for output in contract.outputs:
        values = [np.asarray(answer[output.name]) for answer in answers]
        kind = _kind(contract, output.name, values)
        found[output.name] = kind if kind.indexes else replace(kind, **_grouped(contract, output.name, values))
    return found


def channel_axis(shape: Sequence[int]) -> int | None:
    """The shortest of the sides longer than 1, counted among these. None for a row."""
    sides = [side for side in shape if side > 1]
    return int(np.argmin(sides)) if len(sides) > 1 else None


def is_curve(values: NDArray[np.float64]) -> bool:
    """[items, values] -> whether neighbouring values go together, as in a forecast.
    By von Neumann's ratio, halved: 1 if the order means nothing, as of class scores. Scores with a common offset in
    every item differ in what the offset leaves, or in how sure they are."""
    if min(values.shape) < FEW:
        return False
    apart = values - values.mean(axis=0)

    def roughness(rows: NDArray[np.float64]) -> float:
        power = float(np.square(rows).mean())
        return float(np.square(np.diff(rows, axis=1)).mean()) / 2 / power if power else 1.0

    if roughness(apart) > _SMOOTH:
        return False
    return roughness(apart - apart.mean(axis=1, keepdims=True)) <= 2 * _SMOOTH or confidence(values) < _SURE


def confidence(values: NDArray[np.float64]) -> float:
    """[items, values] -> the best probability after softmax, the mean over items."""
    shifted = np.exp(values - values.max(axis=1, keepdims=True))
    return float((1.0 / shifted.sum(axis=1)).mean())


def spread_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[items, values] -> the standard deviation of each value over the items.
    Its root mean square if constant."""
    deviation, size = values.std(axis=0), np.sqrt(np.square(values).mean(axis=0))
    whole = float(size.max(initial=0)) or 1.0
    return np.where(deviation > _CONSTANT * size, deviation, np.where(size > 0, size, whole))


def _kind(contract: Contract, name: str, answers: Sequence[NDArray[Any]]) -> Kind:
    largest = max((float(np.linalg.norm(answer)) for answer in answers), default=0.0)
    first = contract.task == "classification" and name == contract.outputs[0].name
    count = answers[0].size
    if first:
        return Kind("classes", _of_scores(answers), largest, agrees=True)
    wide = (np.asarray(answer, np.float64) for answer in answers)
    if count > 1 and all(float(v.min()) >= 0 and abs(float(v.sum()) - 1) <= SUM_TO_ONE for v in wide):
        if count > MOST_CLASSES:
            return Kind("vector", None, largest, agrees=True)
        return Kind("classes", _of_scores(answers), largest, agrees=True)
    if count < FEW and all(answer.dtype.kind in "iub" for answer in answers):
        return Kind("classes", None, largest, agrees=True, indexes=True)
    if count > _LARGEST or len({answer.size for answer in answers}) > 1:
        return Kind("vector", None, largest)
    if count <= MOST_CLASSES:
        values = np.stack([answer.astype(np.float64).reshape(-1) for answer in answers])
        embeds = contract.embedding is not None and contract.embedding.output == name
        if len(contract.outputs) > 1 and not embeds and _ranked(answers[0].shape, values):
            return Kind("classes", _pooled(*_powers(answers)), largest, agrees=True)
        if count < FEW:
            bounded = bool(values.min() >= 0 and values.max() <= 1)
            spread = _pooled(*_powers(answers)) if bounded else spread_of(values)
            return Kind("probabilities" if bounded else "numbers", spread, largest)
    power, varies = _powers(answers)
    hidden = _CONSTANT**2 * power < varies <= (1 - OFFSET) * power
    return Kind("vector", _pooled(power, varies) if hidden else None, largest)


def _grouped(contract: Contract, name: str, answers: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """`axis` and `groups` of an output of floats."""
    shape = answers[0].shape
    if any(answer.dtype.kind != "f" or answer.shape != shape for answer in answers) or not answers[0].size:
        return {}
    spec = contract.detection if contract.detection is not None and contract.detection.boxes == name else None
    axis = channel_axis(shape)
    if spec is not None and axis is not None:
        axis = len([side for side in shape if side > 1]) - 1 if spec.candidates == "first" else 0
    sides = tuple(side for side in shape if side > 1) or (1,)
    if axis is None:
        return {"groups": _ranged([None], answers, sides, 0)}
    others = tuple(place for place in range(len(sides)) if place != axis)
    peaks = np.max([np.abs(answer.reshape(sides)).max(axis=others) for answer in answers], axis=0)
    scored = spec is not None and spec.row != "box" and len(peaks) > 4
    channels: list[list[int]] = [[*range(4)], [*range(4, len(peaks))]] if scored else apart(peaks)
    return {"axis": axis, "groups": _ranged(channels, answers, sides, axis)}


def apart(peaks: NDArray[Any]) -> list[list[int]]:
    """Places of the largest values, without zeros.
    A group ends before a value that is `APART` times smaller than the last."""
    order = [int(place) for place in np.argsort(-peaks, kind="stable") if peaks[place] > NOTHING * peaks.max()]
    groups: list[list[int]] = []
    for place in order:
        if not groups or peaks[groups[-1][-1]] > APART * peaks[place]:
            groups.append([])
        groups[-1].append(place)
    return [sorted(group) for group in groups]


def _ranged(
    channels: Sequence[Sequence[int] | None], answers: Sequence[NDArray[Any]], sides: tuple[int, ...], axis: int
) -> tuple[Group, ...]:
    found = []
    for places in channels:
        parts = [part_of(answer.reshape(sides), axis, places) for answer in answers]
        low, high = float(min(part.min() for part in parts)), float(max(part.max() for part in parts))
        used = np.zeros(256, bool)
        for part in parts if high > low else ():
            used[np.rint((part.astype(np.float64) - low) * (255 / (high - low))).astype(np.intp)] = True
        found.append(Group(None if places is None else tuple(places), low, high, int(used.sum()) >= MANY_LEVELS))
    return tuple(found)


def part_of(values: NDArray[Any], axis: int, places: Sequence[int] | None) -> NDArray[Any]:
    """Some channels of an output whose sides are all longer than 1."""
    return values if places is None else np.take(values, places, axis=axis)


def _powers(answers: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Mean square of an answer, summed over its values.
    The part of it that varies from item to item."""
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
    """One standard deviation for values of one unit: the root of the sum of variances, [1]."""
    return np.array([(varies if varies > _CONSTANT**2 * power else power) ** 0.5 or 1.0])


def _of_scores(answers: Sequence[NDArray[Any]]) -> NDArray[np.float64] | None:
    """What an error of class scores is compared with, [1].
    None if comparing the best class is enough."""
    wins = np.unique([int(np.argmax(answer)) for answer in answers], return_counts=True)[1]
    if max(wins, default=0) < _ALWAYS * len(answers) or len({answer.size for answer in answers}) > 1:
        return None
    power, varies = _powers(answers)
    return np.array([max(varies, _GRID**2 * power) ** 0.5 or 1.0])


def _ranked(shape: tuple[int, ...], values: NDArray[np.float64]) -> bool:
    """Whether a row of numbers may be class scores, whose greatest one says something."""
    count = values.shape[1]
    if max(shape, default=1) != count or not 3 <= count <= MOST_CLASSES:
        return False
    if values.min() >= 0 and values.max() <= 1:
        return False  # each by itself: sigmoids
    norms = np.linalg.norm(values, axis=1)
    if norms.std() <= _CONSTANT * norms.mean():
        return False  # a direction: an embedding of length 1
    if is_curve(values):
        return False
    return bool(len(np.unique(values.argmax(axis=1))) >= _WINNERS * count)
