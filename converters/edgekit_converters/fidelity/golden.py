"""Which examples travel in the bundle so that a board can prove that it still gives the same answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset
from edgekit_converters.fidelity.reference import Reference
from edgekit_runtime.contract.spec import Contract

__all__ = ["GOLDEN_FRAMES", "golden_sequences", "pick_golden"]

GOLDEN_FRAMES = 32
"""The most frames of a golden sequence."""


def pick_golden(reference: Reference, count: int = 4) -> list[int]:
    """Indexes of `count` items (fewer where the set is smaller), ascending, no two alike.

    A classifier's are those where its best score leads the second by most, of as many classes as possible: rounding
    must not flip them. Otherwise they are spread evenly over the set.
    """
    different = _first_of_each(reference.digests)
    if reference.best is None:
        wanted = min(count, len(different))
        return [different[(2 * place + 1) * len(different) // (2 * wanted)] for place in range(wanted)]
    best = reference.best
    surest = sorted(different, key=lambda index: (-_lead(reference, index), index))
    chosen: dict[int, int] = {}  # class -> its surest item
    for index in surest:
        chosen.setdefault(best[index], index)
    others = [index for index in surest if index != chosen[best[index]]]
    return sorted([*chosen.values(), *others][:count])


def golden_sequences(
    dataset: Dataset, contract: Contract, reference: Reference, count: int = 4
) -> list[dict[str, NDArray[Any]]]:
    """`count` sequences (fewer where there are not so many), [frames, ...] of what a caller passes, for a stateful model.

    Each is up to 32 frames in a row of one sequence; begun afresh wherever it lies. Those where the original's answers move
    most come first, at most one from any place: a sequence of silence proves little.
    """
    windows = _windows([example.step or 0 for example in dataset])
    ranked = sorted(windows, key=lambda span: (-_movement(reference, *span), span))
    chosen = sorted(ranked[:count])
    golden = []
    for first, last in chosen:
        frames = [example.inputs for example in dataset.pick(range(first, last))]
        golden.append({spec.name: np.stack([frame[spec.name] for frame in frames]) for spec in contract.caller_inputs})
    return golden


def _windows(steps: Sequence[int]) -> list[tuple[int, int]]:
    """(first, end) of windows of 32 frames, no two of which overlap; shorter ones only where a whole sequence is shorter."""
    begins = [index for index, step in enumerate(steps) if step == 0] + [len(steps)]
    spans = []
    for first, end in itertools.pairwise(begins):
        whole = range(first, end - GOLDEN_FRAMES + 1, GOLDEN_FRAMES)
        spans += [(start, start + GOLDEN_FRAMES) for start in whole] or [(first, end)]
    return spans


def _movement(reference: Reference, first: int, end: int) -> float:
    """How much the original's answers vary over those frames, in shares of the largest answer there is."""
    moved = 0.0
    for name in reference.outputs[first]:
        rows = np.stack([np.asarray(answer[name], np.float64).reshape(-1) for answer in reference.outputs[first:end]])
        largest = max(float(np.abs(answer[name]).max(initial=0)) for answer in reference.outputs)
        moved += float(rows.std(axis=0).mean()) / largest if largest else 0.0
    return moved


def _lead(reference: Reference, index: int) -> float:
    """The first output's best score less its second best."""
    scores = np.asarray(next(iter(reference.outputs[index].values())), np.float64).reshape(-1)
    second, first = np.partition(scores, -2)[-2:]
    return float(first - second)


def _first_of_each(digests: Sequence[str]) -> list[int]:
    seen: dict[str, int] = {}
    for index, key in enumerate(digests):
        seen.setdefault(key, index)
    return list(seen.values())
