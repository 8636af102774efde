"""Items set apart: held out where no evaluation set is given, or dropped because the evaluation set has them too.

calibration, held_out = split(dataset)
"""

from __future__ import annotations

from collections.abc import Collection

from edgekit_converters.calibration.dataset import Dataset, Subset, digest
from edgekit_converters.errors import CalibrationError

__all__ = ["HELD_OUT", "split", "without"]

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
