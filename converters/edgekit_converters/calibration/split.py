"""Items set apart: held out where no evaluation set is given, dropped because the evaluation set has them too, or kept to
judge a repair by.

calibration, held_out = split(dataset)
choose_by, judge_by = halves(units)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from edgekit_converters.calibration.dataset import Dataset, Subset, digest
from edgekit_converters.errors import CalibrationError

__all__ = ["FEWEST_APART", "HELD_OUT", "halves", "split", "without"]

HELD_OUT = 64
"""The most items that are held out."""


def split(dataset: Dataset) -> tuple[Subset, Subset]:
    """(calibration, held out): every fifth item is held out, at most 64, spread over the whole set.

    Spread, because folders come sorted by class: the first 64 would be of few classes. Both keep the set's order and
    together are the set. Raises CalibrationError for a single item.
    """
    count = len(dataset)
    if count < 2:
        raise CalibrationError(
            "one item cannot be both calibrated with and evaluated on", where=dataset.name, do="Give more items"
        )
    wanted = min(HELD_OUT, max(1, count // 5))
    held = {(2 * place + 1) * count // (2 * wanted) for place in range(wanted)}
    rest = [index for index in range(count) if index not in held]
    return Subset(dataset, rest), Subset(dataset, sorted(held))


FEWEST_APART = 10
"""Fewer items than this in a half say too little of a drop."""


def halves(kinds: Sequence[Hashable], digests: Sequence[str]) -> tuple[list[int], list[int]] | None:
    """Indexes of two halves in which every kind is as frequent as in the other; None where one had fewer than FEWEST_APART.

    kinds: a label, or whatever an item should be balanced by. digests: equal ones stay in one half. Which half an item is in
    follows from the items alone, not from their order.
    """
    order = sorted({(str(kind), name) for kind, name in zip(kinds, digests, strict=True)})
    first = {name for place, (_, name) in enumerate(order) if place % 2 == 0}
    one = [index for index, name in enumerate(digests) if name in first]
    other = [index for index, name in enumerate(digests) if name not in first]
    return None if min(len(one), len(other)) < FEWEST_APART else (one, other)


def without(dataset: Dataset, digests: Collection[str]) -> Dataset:
    """The items whose digest is not among `digests` (see `lint`, code `overlap`); reads the set once if there are any.

    Raises CalibrationError when nothing is left.
    """
    if not digests:
        return dataset
    kept = [index for index, example in enumerate(dataset) if digest(example) not in digests]
    if not kept:
        raise CalibrationError(
            "every item is in the evaluation set too", where=dataset.name, do="Give other items for calibration"
        )
    return Subset(dataset, kept)
