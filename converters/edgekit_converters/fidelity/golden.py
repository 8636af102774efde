"""Which examples travel in the bundle so that a board can prove that it still gives the same answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgekit_converters.fidelity.reference import Reference

__all__ = ["pick_golden"]


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
