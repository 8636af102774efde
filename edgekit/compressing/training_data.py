"""The training set of `edgekit compress`, also for a model of another size or split outputs.

    given, found = training_set(request, subject, store, progress)              # a dataset and its survey
    kind = check_labels(subject, found, request.train)                          # "classes", "numbers" or "boxes"
    data = training_data(subject, Subset(given, readable), kind, folder, progress)

Rules:
- a training set that shares items with the evaluation set is refused, with their count;
- labels that are missing or all the same are refused;
- the items are in a file, because they may be more than the memory holds;
- `input_size`: artifacts of another size are still compared with the original's answers, and a teacher still reads
  pictures of its own size;
- `split`: boxes and scores become outputs with a scale each; numbers, answers and the user's metric stay the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import Opener, cached_survey, key
from edgekit.compressing.compress_request import CompressRequest
from edgekit_converters.compress import split
from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.losses import TrainingData
from edgekit_converters.compress.network import keras_file
from edgekit_converters.compress.qat import TrainedFile, open_network
from edgekit_converters.compress.train import array_on_disk
from edgekit_converters.data.contract_tasks import read_document
from edgekit_converters.data.dataset import Dataset, Subset, digest
from edgekit_converters.data.describe_contract import describe, find_contract_file
from edgekit_converters.data.lint import Survey
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.fidelity.metrics import named_metric
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.formats.keras_record import JoinedOutput
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.foreign_code import quiet
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.recipe.store import NO_STORE, StageStore
from edgekit_converters.sources.load import load
from edgekit_converters.sources.source_model import toml_text
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract

ITEMS = "items.npy"
"""File of the items during training."""
_SHOWN = 3
Labels = Literal["classes", "numbers", "boxes"]


def training_set(
    request: CompressRequest, subject: BuildSubject, store: StageStore, progress: Progress
) -> tuple[Dataset, Survey]:
    """The training set and its survey. Raises CompressError, CalibrationError."""
    opener = Opener(subject.contract, store, progress, subject.source)
    given = opener.open(request.train, labelled=subject.contract.task != "detection")
    found = cached_survey(store, given, subject.contract, progress)
    evaluated = set(subject.sets.evaluation_items)
    shared = [origin for one in found.by_digest if one in evaluated for origin in found.by_digest[one]]
    if shared:
        shown = ", ".join(shared[:_SHOWN]) + (", ..." if len(shared) > _SHOWN else "")
        raise CompressError(
            f"{len(shared)} of its {found.items} items are in the evaluation set too: {shown}",
            where=request.train,
            do="Remove them from one of the two: accuracy on training items means nothing",
        )
    if found.not_finite:
        raise CompressError(
            f"{len(found.not_finite)} of its items hold NaN or infinity, {found.not_finite[0]} for one",
            where=request.train,
            do="Leave them out",
        )
    if len(found.digests) < 2 * request.batch:
        raise CompressError(
            f"{len(found.digests)} items are fewer than two batches of {request.batch}",
            where=request.train,
            do="Give more labelled items, or a smaller batch in a --recipe file",
        )
    return given, found


def check_labels(subject: BuildSubject, found: Survey, train: str) -> Labels:
    """The labels' kind; a detector's are not read. Raises CompressError if missing or all alike."""
    if subject.contract.task == "detection":
        return "boxes"
    evaluation = subject.sets.evaluation.name
    sets = ((train, found.labels), (evaluation, list(map(str, subject.reference.labels or ()))))
    for where, labels in sets:
        missing = labels.count("") if labels else len(subject.reference)
        if missing:
            raise CompressError(
                f"{missing} of its {len(labels) or missing} items have no label",
                where=where,
                do="Give labels: sub-folders named as the classes, or `y` in an .npz",
            )
    if subject.contract.task != "classification":
        return "numbers"
    for where, labels in sets:
        counted = Counter(labels)
        if len(counted) < 2:
            raise CompressError(
                f"all its {len(labels)} items have one label, {next(iter(counted))}",
                where=where,
                do="Give items of every class that the model knows",
            )
    return "classes"


def training_data(subject: BuildSubject, given: Subset, kind: Labels, folder: Path, progress: Progress) -> Any:
    """The training set as the model takes it, in a file of the folder: a TrainingData."""
    samples = SourceSamples(given, subject.contract, subject.source)
    x: NDArray[np.float32] | None = None
    labels: list[Any] = []
    for index, example in enumerate(given):
        (item,) = samples.adapt(example)
        if x is None:
            x = array_on_disk(folder / ITEMS, (len(given), *item.shape[1:]))
        x[index] = item[0]
        labels.append(example.label)
        progress("reading the training set", index + 1, len(given))
    assert x is not None
    if kind == "numbers":
        return TrainingData(x, np.asarray(labels, np.float32).reshape(len(labels), -1), "numbers")
    return TrainingData(x, np.asarray(labels, np.int64) if kind == "classes" else None, kind)


def moved_contract(file: Path, labels: Sequence[str] | None) -> str:
    """The contract file's text for another folder, with `labels` in place of their file."""
    said = read_document(file).data
    if not isinstance(said.get("labels"), str):
        return file.read_text(encoding="utf-8-sig")
    return toml_text({**said, "labels": list(labels or ())})


def of_size(network: Any, contract: Contract, size: tuple[int, int], where: str) -> Any:
    """A Keras model of that network and its weights, for pictures of (height, width).

    Raises CompressError if the network takes no picture, or its layers need its size."""

    if len(contract.inputs) != 1 or not pictures(contract.inputs) or contract.task == "detection":
        raise CompressError(
            "input_size needs a model with one picture input and no boxes in pixels",
            where=where,
            do='Say that it is a picture in the contract file, kind = "image"; or leave input_size out',
        )
    before = network.input.shape
    last = tuple(before[1:]) == tuple(contract.inputs[0].shape)
    shape = (before[0], *size, before[3]) if last else (before[0], before[1], *size)
    if tuple(before[1:]) == tuple(shape[1:]):
        raise CompressError(
            f"its pictures have {size[0]}x{size[1]} pixels already", where=where, do="Change input_size"
        )
    try:
        return without(network, trace(network), np.zeros(0, np.int64), shape=shape)
    except ValueError as error:
        flat = [call.name for call in network.calls if type(call.layer).__name__ in ("Flatten", "Reshape")]
        what = f"what is behind '{flat[0]}' fits" if flat else "its layers fit"
        raise CompressError(
            f"{what} its own size alone",
            where=where,
            do="Give a network that ends in a mean over the picture (GlobalAveragePooling2D), or leave input_size out",
        ) from error


def subject_of_size(path: Path, subject: BuildSubject, train: str, evaluation: str, progress: Progress) -> BuildSubject:
    """The subject with the model of another size at `path`, next to its contract file."""
    source = load(path)
    contract = describe(source, find_contract_file(path))
    contract = replace(contract, scores=subject.contract.scores)
    opener, sets = Opener(contract, NO_STORE, progress, source), subject.sets
    evaluated = _same_items(sets.evaluation, opener.open(evaluation))
    assert sets.calibration is not None
    new = replace(
        sets,
        evaluation=evaluated,
        calibration=_same_items(sets.calibration, opener.open(train)),
        calibration_digest=key("size", sets.calibration_digest, list(contract.inputs[0].shape)),
        evaluation_digest=key("size", sets.evaluation_digest, list(contract.inputs[0].shape)),
    )
    reference = replace(subject.reference, digests=tuple(map(digest, evaluated)))
    return replace(subject, source=source, contract=contract, sets=new, reference=reference)


def _same_items(before: Dataset, given: Dataset) -> Dataset:
    return Subset(given, before.indexes) if isinstance(before, Subset) else given


@dataclass(frozen=True)
class OutputSplit:
    """How a model's one output was split.

    before: contract of the model before.
    names: of the new outputs.
    joined: how to join them again, None if that is impossible.
    """

    before: Contract
    names: tuple[str, ...]
    joined: JoinedOutput | None

    def answers(self, given: Reference, contract: Contract | None = None) -> Reference:
        """Answers with the new outputs. contract: of the model that gave them, None for `before`."""
        before = contract or self.before
        return replace(given, outputs=tuple(split.split_answer(one, before, self.names) for one in given.outputs))

    def contract_text(self, file: Path) -> str:
        """Text of the new model's contract file. file: that of the model before."""
        said = dict(read_document(file).data)
        detection = {**said.pop("detection", {}), **split.detection_keys(self.before, self.names)}
        inputs = said.pop("inputs", None)
        if inputs:  # one, since it is trained
            (said["input"],) = inputs.values()
        if self.before.labels:
            said["labels"] = list(self.before.labels)
        head = f"# Written by edgekit compress, which gave boxes and scores an output each. Before: {file.name}\n\n"
        return head + toml_text({**said, "detection": detection})

    def subject(self, path: Path, subject: BuildSubject, metric: str | None) -> BuildSubject:
        """The subject with the new model at `path`, which has its contract file next to it."""
        source = load(path)
        contract = describe(source, find_contract_file(path))
        named = named_metric(metric, contract.of_caller, self.joined) if metric else None
        reference = self.answers(subject.reference)
        return replace(subject, source=source, contract=contract, metric=named, reference=reference)


def split_model(path: Path, subject: BuildSubject) -> tuple[Any, OutputSplit]:
    """(TrainedFile, how it was split). Raises CompressError if the model cannot be rebuilt."""
    with quiet():
        model = split.split(open_network(path), subject.contract)
    names = tuple(map(str, model.output_names))
    made = TrainedFile(keras_file(model), {}, {"outputs": list(names)})
    return made, OutputSplit(subject.contract, names, split.joining(subject.contract, names))
