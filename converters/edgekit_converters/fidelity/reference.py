"""The original's answers, computed once and compared with every artifact; golden examples.

    answers = reference(source, contract, dataset)
    golden = list(dataset.pick(pick_golden(answers)))                # travel in the bundle
    check_answerable(source, contract, calibration_set, progress)    # if inputs are whole numbers, such as token ids

Rules:
- outputs and a digest of each item are kept in memory, inputs never: 10,000 items of 1,000 scores are 40 MB;
- a batch has as many items as the file fixes, else up to AT_ONCE;
- an exception of a framework becomes a CalibrationError: which item, the reason in one line, what to do; but running
  out of memory does not;
- a framework's output is kept off the terminal.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Dataset, Example, Label, digest, sets_of, spread
from edgekit_converters.fidelity.intervals import best_class
from edgekit_converters.recipe.conversion_errors import CalibrationError, SourceError
from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.contract.adapt import Adapter, Finisher
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.system.errors import EdgekitError, EngineError, shorten


class ExampleIntake:
    """Adapts examples to one model's tensors, in its order, and groups them in batches.

    at_once: items a batch, unless the file fixes it; then a short last batch is filled with copies of its last item.
    """

    def __init__(self, contract: Contract, tensors: Sequence[TensorSpec], at_once: int) -> None:
        self._adapters = [(spec.name, Adapter(contract.input(spec.name), spec)) for spec in tensors]
        fixed = max((spec.shape[0] for spec in tensors if spec.shape), default=-1)
        self._fixed = fixed > 0
        self._size = fixed if fixed > 0 else at_once

    def adapt(self, example: Example) -> list[NDArray[Any]]:
        """The tensors of one example."""
        return next(iter(self.batches([example])))[1]

    def batches(self, examples: Iterable[Example]) -> Iterator[tuple[list[Example], list[NDArray[Any]]]]:
        """(examples, tensors) pairs; rows beyond the examples are filling."""
        remaining = iter(examples)
        while group := list(itertools.islice(remaining, self._size)):
            fill = [group[-1]] * (self._size - len(group)) if self._fixed else []
            rows = [*group, *fill]
            yield group, [self._stack([adapter(row.inputs[name]) for row in rows]) for name, adapter in self._adapters]

    @staticmethod
    def _stack(rows: list[NDArray[Any]]) -> NDArray[Any]:
        return rows[0] if len(rows) == 1 else np.concatenate(rows)


AT_ONCE = 32
"""Items a batch, if the original's batch axis is free."""

_LONGEST = 200
_STACK = re.compile(r"^(Graph execution error|Detected at node|File \"|\[\[\{\{node|During handling|Stack trace)")
_OUTSIDE = (  # TensorFlow's Gather; ONNX Runtime's, which also counts from the end
    re.compile(r"indices\[[^]]*] = (?P<value>-?\d+) is not in \[0, (?P<size>\d+)\)"),
    re.compile(r"idx=(?P<value>-?\d+) must be within the inclusive range \[-?\d+,\s*(?P<last>\d+)]"),
)


def ask(
    source: SourceModel, intake: ExampleIntake, group: Sequence[Example], tensors: list[NDArray[Any]]
) -> list[NDArray[Any]]:
    """The original's answers to a batch.

    Raises CalibrationError with the first item that it does not answer.
    """
    try:
        answers = _quietly(source, tensors)
        source.confirm(tensors, answers)
        return answers
    except Exception as error:
        if not _is_of_the_item(error):
            raise
        for example in group:
            try:
                _quietly(source, intake.adapt(example))
            except Exception as fault:
                if not _is_of_the_item(fault):
                    raise
                raise _unanswered(fault, example) from fault
        raise SourceError(
            f"the original model answers each item alone and not {len(group)} at once: {reason(error)}",
            where=str(source.path),
            do="Save the model with a batch axis that is free, or fixed to 1",
        ) from error


def check_answerable(source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent) -> None:
    """Run the original on every item if an input is whole numbers, to find unknown ids.

    Raises CalibrationError.
    """
    if not any(sets_of(spec).holds_ids(spec) for spec in contract.inputs):
        return
    intake, done = ExampleIntake(contract, source.inputs, AT_ONCE), 0
    for group, tensors in intake.batches(dataset):
        ask(source, intake, group, tensors)
        done += len(group)
        progress("checking the ids", done, len(dataset))


def reason(error: BaseException) -> str:
    """A framework's reason in one line: no stack, no node names."""
    text = error.what if isinstance(error, EdgekitError) else str(error)
    lines = [line.strip() for line in text.splitlines()]
    line_of_error = next((line for line in lines if line and not _STACK.match(line)), "") or type(error).__name__
    return shorten(line_of_error, _LONGEST)


def _quietly(source: SourceModel, tensors: list[NDArray[Any]]) -> list[NDArray[Any]]:
    with quiet():
        return source.predict(tensors)


def _is_of_the_item(error: Exception) -> bool:
    """Whether the item may be at fault: no error of edgekit's own, no lack of memory."""
    return isinstance(error, EngineError) or not isinstance(error, (MemoryError, EdgekitError))


def _unanswered(error: Exception, example: Example) -> CalibrationError:
    text = str(error)
    found = next((match for pattern in _OUTSIDE if (match := pattern.search(text))), None)
    if found is None:
        do = "Remove the item, or give it as the model was trained to take it"
        return CalibrationError(f"the original model fails on it: {reason(error)}", where=example.origin, do=do)
    groups = found.groupdict()
    last = int(groups["last"]) if groups.get("last") else int(groups["size"]) - 1
    return CalibrationError(
        f"{groups['value']} is not in 0 to {last}, which is what the model has an entry for",
        where=example.origin,
        do="Remove the item, or make its ids with the vocabulary that the model was trained with",
    )


_MIXING = 0.01  # of a batch's largest answer; kernels for other batch sizes round otherwise by 1e-5 or so


@dataclass(frozen=True)
class Reference:
    """One entry an item, in the dataset's order.

    outputs: arrays by contract name, no batch axis, the original's dtypes; of a stateful model those of its caller.
    labels: None if the set has none.
    best: the original's class, None unless classification.
    digests: of the inputs, to detect a set that changes between two passes.
    """

    outputs: tuple[Mapping[str, NDArray[Any]], ...]
    labels: tuple[Label, ...] | None
    best: tuple[int, ...] | None
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.outputs)

    def only(self, indexes: Sequence[int]) -> Reference:
        return Reference(
            tuple(self.outputs[index] for index in indexes),
            None if self.labels is None else tuple(self.labels[index] for index in indexes),
            None if self.best is None else tuple(self.best[index] for index in indexes),
            tuple(self.digests[index] for index in indexes),
        )


def reference(source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent) -> Reference:
    """Run the original over the set, in batches if its batch axis is free.

    Raises CalibrationError for items that cannot be read or that the original fails on, and for an empty or partly
    labelled set; SourceError if an answer is not finite or an item's answer depends on its batch.
    """
    intake, finish = ExampleIntake(contract, source.inputs, AT_ONCE), Finisher(contract, source.outputs)
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


class _InOrder(ExampleIntake):
    """Frames one by one, for an original that keeps its state: it is reset before each sequence."""

    def __init__(self, contract: Contract, source: SourceModel) -> None:
        super().__init__(contract, source.inputs, 1)
        self._source = source

    def batches(self, examples: Iterable[Example]) -> Iterator[tuple[list[Example], list[NDArray[Any]]]]:
        for group, tensors in super().batches(examples):
            if not group[0].step:
                self._source.reset()
            yield group, tensors


def _check_alone(source: SourceModel, item: Sequence[NDArray[Any]], batch: Sequence[NDArray[Any]]) -> None:
    """Check that the batch's first item alone gets the same answer, as on a board."""
    for spec, alone, together in zip(source.outputs, source.predict(item), batch, strict=True):
        one, same = np.asarray(alone[0], np.float64), np.asarray(together[0], np.float64)
        largest = float(np.abs(together).max(initial=0))
        if not np.isfinite(largest):
            return  # said below, with the item's name
        if one.shape != same.shape or not np.abs(one - same).max(initial=0) <= _MIXING * largest:
            raise SourceError(
                f"the output '{spec.name}' of one item depends on the other items of its batch",
                where=str(source.path),
                do="Save the model for inference, so that no layer takes a mean, sum or softmax over the batch axis",
            )


def _labels(labels: Sequence[Label | None], where: str) -> tuple[Label, ...] | None:
    """The labels of all items, or None if none is labelled. Raises CalibrationError for some."""
    known = tuple(label for label in labels if label is not None)
    if known and len(known) < len(labels):
        raise CalibrationError(
            f"{len(labels) - len(known)} of {len(labels)} items have no label",
            where=where,
            do="Label all of them or none",
        )
    return known or None


GOLDEN_FRAMES = 32
"""The most frames of a golden sequence."""


def pick_golden(reference: Reference, count: int = 4) -> list[int]:
    """Indexes of `count` different items or fewer, ascending.

    A classifier's are those whose best score leads by most, of as many classes as possible, so that rounding does not
    flip them; others are spread evenly over the set.
    """
    first_of: dict[str, int] = {}
    for index, key in enumerate(reference.digests):
        first_of.setdefault(key, index)
    different = list(first_of.values())
    if reference.best is None:
        return [different[place] for place in spread(len(different), count)]
    best = reference.best
    leads = {}  # the first output's best score less its second best
    for index in different:
        scores = np.asarray(next(iter(reference.outputs[index].values())), np.float64).reshape(-1)
        second, first = np.partition(scores, -2)[-2:]
        leads[index] = float(first - second)
    surest = sorted(different, key=lambda index: (-leads[index], index))
    chosen: dict[int, int] = {}  # class -> its surest item
    for index in surest:
        chosen.setdefault(best[index], index)
    others = [index for index in surest if index != chosen[best[index]]]
    return sorted([*chosen.values(), *others][:count])


def golden_sequences(
    dataset: Dataset, contract: Contract, reference: Reference, count: int = 4
) -> list[dict[str, NDArray[Any]]]:
    """At most `count` sequences of a stateful model, the caller's inputs [frames, ...].

    Each is up to 32 successive frames of one sequence, with the state reset before it; windows do not overlap, and
    those in which the original's answers vary most come first.
    """
    steps = [example.step or 0 for example in dataset]
    begins = [index for index, step in enumerate(steps) if step == 0] + [len(steps)]
    windows = []  # (first, end), no two of which overlap; shorter ones only where a whole sequence is shorter
    for first, end in itertools.pairwise(begins):
        whole = range(first, end - GOLDEN_FRAMES + 1, GOLDEN_FRAMES)
        windows += [(start, start + GOLDEN_FRAMES) for start in whole] or [(first, end)]
    moved = dict.fromkeys(windows, 0.0)  # how much the answers vary, in shares of the largest answer there is
    for first, end in windows:
        for name in reference.outputs[first]:
            rows = [np.asarray(answer[name], np.float64).reshape(-1) for answer in reference.outputs[first:end]]
            largest = max(float(np.abs(answer[name]).max(initial=0)) for answer in reference.outputs)
            moved[first, end] += float(np.stack(rows).std(axis=0).mean()) / largest if largest else 0.0
    chosen = sorted(sorted(windows, key=lambda span: (-moved[span], span))[:count])
    golden = []
    for first, last in chosen:
        frames = [example.inputs for example in dataset.pick(range(first, last))]
        golden.append({spec.name: np.stack([frame[spec.name] for frame in frames]) for spec in contract.caller_inputs})
    return golden
