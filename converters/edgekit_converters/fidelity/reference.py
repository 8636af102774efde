"""The original's answers, made once and compared with every artifact.

Kept in memory: the outputs and a digest of each item, never its inputs. 10,000 items of 1,000 float32 scores are 40 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, Example, Label, digest
from edgekit_converters.errors import CalibrationError, SourceError
from edgekit_converters.fidelity.asking import AT_ONCE, ask
from edgekit_converters.fidelity.batches import Intake
from edgekit_converters.fidelity.statistics import best_class
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.contract.spec import Contract

__all__ = ["Reference", "reference"]

_MIXING = 0.01  # of a batch's largest answer; kernels for other batch sizes round otherwise by 1e-5 or so


@dataclass(frozen=True)
class Reference:
    """One entry an item, in the dataset's order.

    outputs: arrays by contract name, no batch axis, the original's dtypes; of a stateful model what a caller gets. labels: None where the set has none.
    best: the original's class, None where the task is not classification. digests: what was seen, so that a set which
    changes between two passes is noticed.
    """

    outputs: tuple[Mapping[str, NDArray[Any]], ...]
    labels: tuple[Label, ...] | None
    best: tuple[int, ...] | None
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.outputs)

    def only(self, indexes: Sequence[int]) -> Reference:
        """The answers to some of the items."""
        return Reference(
            tuple(self.outputs[index] for index in indexes),
            None if self.labels is None else tuple(self.labels[index] for index in indexes),
            None if self.best is None else tuple(self.best[index] for index in indexes),
            tuple(self.digests[index] for index in indexes),
        )


def reference(source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent) -> Reference:
    """Run the original over the set, in batches where its batch axis is free.

    Raises CalibrationError for items that cannot be read or that the original fails on, an empty set or one labelled in
    part; SourceError where the original's own answer is not finite, or where an item is answered otherwise alone than in a
    batch: nothing can be compared with either.
    """
    intake, finish = Intake(contract, source.inputs, AT_ONCE), Finisher(contract, source.outputs)
    outputs: list[Mapping[str, NDArray[Any]]] = []
    labels: list[Label | None] = []
    digests: list[str] = []
    if contract.state != "none":
        finish = Finisher(contract.of_caller, source.outputs)
    if contract.state == "internal":
        intake = _InOrder(contract, source)
    for group, tensors in intake.batches(dataset):
        raw = ask(source, intake, group, tensors)
        if len(group) > 1 and not outputs:
            _check_alone(source, intake.adapt(group[0]), raw)
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
        best = tuple(best_class(answer[contract.caller_outputs[0].name]) for answer in outputs)
    return Reference(tuple(outputs), _labels(labels, dataset.name), best, tuple(digests))


class _InOrder(Intake):
    """Frames one after another, for an original that keeps its state inside: it forgets before each sequence."""

    def __init__(self, contract: Contract, source: SourceModel) -> None:
        super().__init__(contract, source.inputs, 1)
        self._source = source

    def batches(self, examples: Iterable[Example]) -> Iterator[tuple[list[Example], list[NDArray[Any]]]]:
        for group, tensors in super().batches(examples):
            if not group[0].step:
                self._source.reset()
            yield group, tensors


def _check_alone(source: SourceModel, item: Sequence[NDArray[Any]], batch: Sequence[NDArray[Any]]) -> None:
    """The batch's first item by itself: a board asks one at a time, and must get what the original answers."""
    for spec, alone, together in zip(source.outputs, source.predict(item), batch, strict=True):
        one, same = np.asarray(alone[0], np.float64), np.asarray(together[0], np.float64)
        largest = float(np.abs(together).max(initial=0))
        if not np.isfinite(largest):
            return  # said below, with the item's name
        if one.shape != same.shape or not np.abs(one - same).max(initial=0) <= _MIXING * largest:
            raise SourceError(
                f"the output '{spec.name}' of one item depends on the other items of its batch",
                where=str(source.path),
                do="Save the model for inference, so that no layer takes a mean, a sum or a softmax over the batch axis",
            )


def _labels(labels: Sequence[Label | None], where: str) -> tuple[Label, ...] | None:
    """All or none: an accuracy over the labelled part would not be of the set that the distances are of."""
    known = tuple(label for label in labels if label is not None)
    if known and len(known) < len(labels):
        raise CalibrationError(
            f"{len(labels) - len(known)} of {len(labels)} items have no label",
            where=where,
            do="Label all of them or none",
        )
    return known or None
