"""The original's answers, made once and compared with every artifact.

Kept in memory: the outputs and a digest of each item, never its inputs. 10,000 items of 1,000 float32 scores are 40 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, digest
from edgekit_converters.errors import CalibrationError, SourceError
from edgekit_converters.fidelity.batches import Intake
from edgekit_converters.fidelity.statistics import best_class
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.contract.spec import Contract

__all__ = ["Reference", "reference"]

_AT_ONCE = 32


@dataclass(frozen=True)
class Reference:
    """One entry an item, in the dataset's order.

    outputs: arrays by contract name, no batch axis, the original's dtypes. labels: None where the set has none.
    best: the original's class, None where the task is not classification. digests: what was seen, so that a set which
    changes between two passes is noticed.
    """

    outputs: tuple[Mapping[str, NDArray[Any]], ...]
    labels: tuple[int, ...] | None
    best: tuple[int, ...] | None
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.outputs)


def reference(source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent) -> Reference:
    """Run the original over the set, in batches where its batch axis is free.

    Raises CalibrationError for items that cannot be read, an empty set or one labelled in part; SourceError where the
    original's own answer is not finite: nothing can be compared with it.
    """
    intake, finish = Intake(contract, source.inputs, _AT_ONCE), Finisher(contract, source.outputs)
    outputs: list[Mapping[str, NDArray[Any]]] = []
    labels: list[int | None] = []
    digests: list[str] = []
    for group, tensors in intake.batches(dataset):
        raw = source.predict(tensors)
        for row, example in enumerate(group):
            answer = finish(raw, row)
            if not all(np.isfinite(value).all() for value in answer.values()):
                raise SourceError(
                    f"the original model answers NaN or infinity for {example.origin}",
                    where=str(source.path),
                    do="Check the model, and mean and std in its contract file",
                )
            outputs.append(answer)
            labels.append(example.label)
            digests.append(digest(example))
        progress("running the original", len(outputs), len(dataset))
    if not outputs:
        raise CalibrationError("there is nothing to evaluate", where=dataset.name, do="Give at least one item")
    best = None
    if contract.task == "classification":
        best = tuple(best_class(answer[contract.outputs[0].name]) for answer in outputs)
    return Reference(tuple(outputs), _labels(labels, dataset.name), best, tuple(digests))


def _labels(labels: Sequence[int | None], where: str) -> tuple[int, ...] | None:
    """All or none: an accuracy over the labelled part would not be of the set that the distances are of."""
    known = tuple(label for label in labels if label is not None)
    if known and len(known) < len(labels):
        raise CalibrationError(
            f"{len(labels) - len(known)} of {len(labels)} items have no label",
            where=where,
            do="Label all of them or none",
        )
    return known or None
