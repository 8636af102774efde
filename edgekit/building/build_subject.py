"""What a build starts from: the model, its contract, data, and the original's answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from edgekit.building.build_request import BuildRequest
from edgekit.building.data import Opener, Sets, cached_reference, key, of_evaluation, open_sets, unused_labels
from edgekit_converters.data.dataset import FEWEST_APART, Subset
from edgekit_converters.data.dataset import folds as folds_of_dataset
from edgekit_converters.data.dataset import halves as split_halves
from edgekit_converters.data.describe_contract import describe, find_contract_file, settle, stated_keys
from edgekit_converters.data.draft_contract import Family, draft
from edgekit_converters.data.lint import Finding
from edgekit_converters.data.sequences import Sequences
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.data.suspicions import suspicions
from edgekit_converters.data.texts import check_tokenizer
from edgekit_converters.fidelity.compare import Evaluation
from edgekit_converters.fidelity.metric_function import FunctionMetric
from edgekit_converters.fidelity.metrics import Metric, named_metric, rehearse, task_metrics
from edgekit_converters.fidelity.reference import Reference, check_answerable
from edgekit_converters.fidelity.reference import reference as reference_outputs
from edgekit_converters.formats.keras_record import read_record
from edgekit_converters.recipe.artifact import recipe
from edgekit_converters.recipe.conversion_errors import CalibrationError, LabelOutputError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.recipe.store import NO_STORE, StageStore, cached_json
from edgekit_converters.sources.load import open_source
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.targets.workspace import Workspace
from edgekit_profiles import Profile, RuntimeSupport
from edgekit_runtime.contract.detect import candidates
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.strict_json import to_json

Board = tuple[Profile, tuple[RuntimeSupport, ...]]
"""A board's profile, and what each engine's support on it is."""
_FEWEST_LABELS = 20
_FEWEST_BOXES = 50
_ENOUGH_BOXES = 200  # half of them judge a repair to about 5 points
_FOLDS = 5
_DRAFTED = 64  # items that a draft is held against
_PER_ITEM = ("top1", "top5")  # metrics that one changed answer changes by one item's share
_SAME = 1e-6  # tolerance for equal answers, relative to the largest value


@dataclass(frozen=True)
class BuildSubject:
    """The opened model with its data.

    findings: about the data, and guesses about the model.
    metric: None for the task's own.
    scratch: folder where an interrupted stage leaves its partial results, None for nowhere.
    indexes: for a part of the evaluation set, the places of its items in the whole.
    """

    source: SourceModel
    contract: Contract
    sets: Sets
    reference: Reference
    findings: tuple[Finding, ...]
    metric: Metric | None = None
    store: StageStore = NO_STORE
    scratch: Path | None = None
    indexes: tuple[int, ...] | None = None

    @cached_property
    def halves(self) -> tuple[BuildSubject, BuildSubject] | None:
        """The subject with each half of the evaluation set: one chooses repairs, one judges.

        None if the set is too small to be divided. A sequence is never divided.
        """
        reference, evaluation = self.reference, self.sets.evaluation
        if isinstance(evaluation, Sequences):
            names = [str(place) for place, length in enumerate(evaluation.lengths) for _ in range(length)]
            found = split_halves(names, names)
        elif self.contract.state != "none":
            return None
        else:
            classes = [label for label in reference.labels or () if isinstance(label, (int, np.integer))]
            kinds = classes if classes and len(classes) == len(reference) else reference.best
            found = split_halves(kinds or [0] * len(reference), reference.digests)
        return None if found is None else (self._part(found[0]), self._part(found[1]))

    @cached_property
    def folds(self) -> tuple[BuildSubject, ...]:
        """Parts of the evaluation set of a detector with too few boxes for halves; else empty.

        Each part judges a repair that the other parts chose."""
        if self.contract.task != "detection" or self.contract.state != "none":
            return ()
        boxes = box_counts(self.contract.of_caller, self.reference)
        if boxes is None or sum(boxes) >= _ENOUGH_BOXES:
            return ()
        found = folds_of_dataset(boxes, self.reference.digests, _FOLDS)
        return tuple(self._part(fold) for fold in found) if len(found) > 1 else ()

    @cached_property
    def choosers(self) -> tuple[BuildSubject, ...]:
        """For each of `folds`, all the other items: they choose the repair that it judges."""
        every = range(len(self.reference))
        return tuple(self._part([index for index in every if index not in (fold.indexes or ())]) for fold in self.folds)

    def _part(self, indexes: Sequence[int]) -> BuildSubject:
        sets = replace(
            self.sets,
            evaluation=Subset(self.sets.evaluation, indexes),
            evaluation_digest=key("part", self.sets.evaluation_digest, list(indexes)),
        )
        return replace(self, sets=sets, reference=self.reference.only(indexes), indexes=tuple(indexes))

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.contract, self.sets.evaluation, metric=self.metric, held_out=self.sets.held_out)

    @cached_property
    def evaluation_key(self) -> str:
        """Cache key of what a comparison depends on, without the artifact."""
        metric = self.metric.name if self.metric else None
        return key("evaluation", self.source.sha256, to_json(self.contract), self.sets.evaluation_digest, metric)

    @property
    def evaluation_store(self) -> StageStore:
        """Cache of comparisons; none for a user's own metric, whose code edgekit cannot inspect."""
        return NO_STORE if self.metric is not None and ":" in self.metric.name else self.store

    def workspace(self, progress: Progress) -> Workspace:
        sets = self.sets
        proof = SourceSamples(sets.calibration or sets.evaluation, self.contract, self.source)
        samples = None if sets.calibration is None else proof
        contract = key("samples", to_json(self.contract), self.sets.calibration_digest)
        return Workspace(
            self.source, samples, progress, store=self.store, samples_digest=contract, proof=proof, scratch=self.scratch
        )


def open_subject(request: BuildRequest, store: StageStore, progress: Progress) -> BuildSubject:
    """Raises SourceError, ContractFileError, CalibrationError or MetricError."""
    try:
        return subject_of(open_source(request.model, request.options, store), request, store, progress)
    except LabelOutputError:
        request = replace(request, options=replace(request.options, keep_label=True))
        return subject_of(open_source(request.model, request.options, store), request, store, progress)


def draft_by_answers(
    path: Path, like: Family | None, options: LoadOptions, store: StageStore, data: str
) -> tuple[SourceModel, str]:
    """(the model, a draft of its contract file that its answers to real items bear out)

    Raises SourceError, ContractFileError or CalibrationError.
    """
    source = open_source(path, options, store)
    with TemporaryDirectory(prefix="edgekit-") as folder:
        file = Path(folder) / "draft.toml"
        file.write_text(draft(source, like), encoding="utf-8")
        contract = describe(source, file)
        given = Opener(contract, store, silent, source).open(data, labelled=False)
        few = given if isinstance(given, Sequences) else Subset(given, range(min(_DRAFTED, len(given))))
        try:
            answers = reference_outputs(source, contract, few).outputs
        except LabelOutputError:
            return draft_by_answers(path, like, replace(options, keep_label=True), store, data)
        settled, _ = settle(contract, answers, stated_keys(file))
    return source, draft(source, like, settled)


def subject_of(source: SourceModel, request: BuildRequest, store: StageStore, progress: Progress) -> BuildSubject:
    """As `open_subject`, of a model that this process has opened: it needs no isolation."""
    file = request.contract or find_contract_file(request.model)
    contract = describe(source, file)
    check_tokenizer(source, contract)
    made = read_record(request.model)  # a user's own metric still reads the original's outputs
    named = {output.name for output in contract.outputs}
    joined = made.joined if made is not None and made.joined is not None and named >= set(made.joined.parts) else None
    metric = named_metric(request.metric, contract.of_caller, joined) if request.metric else None
    sets = open_sets(request, Opener(contract, store, progress, source))
    name = key("reference", source.sha256, to_json(contract), sets.evaluation_digest)
    with of_evaluation(not sets.held_out):
        reference = cached_reference(
            store, name, contract, lambda: reference_outputs(source, contract, sets.evaluation, progress)
        )
    _check_same(sets, reference)
    _check_answerable(source, contract, sets, store, progress)
    stated = stated_keys(file, source)
    labelled = reference.labels is not None
    contract, guesses = settle(contract, reference.outputs, stated, labelled=labelled)
    if contract.task != "classification":
        reference = replace(reference, best=None)
    metrics = task_metrics(contract, reference.labels, metric)
    if reference.labels is not None:
        rehearse(metrics, reference.outputs, reference.labels, sets.evaluation.name)
        if isinstance(metric, FunctionMetric):
            metric.rehearse(reference.outputs, reference.labels)
    unused = unused_labels(contract, bool(metrics), reference.labels is not None, sets.evaluation.name)
    notes = tuple(
        Finding(note.code, "note", note.what, note.do)
        for note in source.notes
        if file is None or note.code != "metadata-unused"
    )
    if file is None and source.stated:
        do = f"To override it, write a contract file: edgekit contract {request.model}"
        notes += (Finding("contract-of-model", "note", _describe_contract(contract), do),)
    suspected = _suspicions(source, contract, sets, store, progress)
    guessing = labels_at_chance(reference, sets.evaluation.name)
    guessing += never_changes(reference, sets.evaluation.name)
    guessing += few_boxes(contract.of_caller, reference, sets.evaluation.name)
    findings = (*sets.findings, *guessing, *suspected, *notes, *guesses, *unused)
    rounded = not request.recipes or any(recipe(name).precision != "float32" for name in request.recipes)
    if rounded and (reference.best is not None or (metrics and metrics[0].name in _PER_ITEM)):
        findings += too_few_for(request.max_drop, len(reference), sets.evaluation.name)
    return BuildSubject(source, contract, sets, reference, findings, metric, store, request.cache)


def _describe_contract(contract: Contract) -> str:
    """What a contract that the model file itself states says, in words."""
    said = [f"the task is {contract.task}"]
    said += [f"'{one.name}' is {kind_of(one).describe(one)}" for one in contract.inputs if kind_of(one).any_size]
    if contract.labels:
        said.append(f"{len(contract.labels)} labels, from '{contract.labels[0]}' to '{contract.labels[-1]}'")
    return "the model file describes its inputs and outputs: " + "; ".join(said)


def _check_same(sets: Sets, reference: Reference) -> None:
    """Refuse a data set whose items change between two readings."""
    pairs = zip(sets.evaluation_items, reference.digests, strict=False)
    changed = next((index for index, (first, second) in enumerate(pairs) if first != second), None)
    if changed is None:
        return
    (example,) = sets.evaluation.pick([changed])
    do = "Give the same items in the same order at every call: fix the seed, sort the files"
    raise CalibrationError("changed between two readings", where=example.origin, do=do)


def _check_answerable(
    source: SourceModel, contract: Contract, sets: Sets, store: StageStore, progress: Progress
) -> None:
    """Try the calibration set once; the original has answered the evaluation set already."""
    given = sets.calibration
    if given is None:
        return

    def checked() -> bool:
        check_answerable(source, contract, given, progress)
        return True

    cached_json(store, key("answerable", source.sha256, to_json(contract), sets.calibration_digest), bool, checked)


def too_few_for(max_drop: float | None, items: int, where: str) -> tuple[Finding, ...]:
    """A warning if one changed answer exceeds the limit; a note if only in a repair's half."""
    halved = items >= 2 * FEWEST_APART
    if not max_drop or (2 if halved else 1) / items <= max_drop + _SAME:
        return ()
    needed = math.ceil(1 / max_drop - _SAME)
    if 1 / items <= max_drop + _SAME:
        what = (
            f"{where}: a repair is judged by half of the {items} items, of which one is {200 / items:.3g} %, more than "
            f"the limit of {100 * max_drop:.4g} %"
        )
        do = f"Give {2 * needed} items or more, so that it may change an answer"
        return (Finding("limit-too-fine", "note", what, do),)
    what = (
        f"{where}: one changed answer of {items} is {100 / items:.3g} %, more than the limit of {100 * max_drop:.4g} "
        "%, so an artifact keeps it only where no answer changes for the worse"
    )
    return (Finding("limit-too-fine", "warning", what, f"Give {needed} items or more, or a larger --max-drop"),)


def never_changes(reference: Reference, where: str) -> tuple[Finding, ...]:
    """A warning if the original answers every item alike, so that any artifact agrees with it."""
    first = reference.outputs[0]
    if len(set(reference.digests)) < 2 or any(
        not np.allclose(answer[name], value, rtol=_SAME, atol=_SAME * float(np.abs(value).max(initial=0)))
        for answer in reference.outputs
        for name, value in first.items()
    ):
        return ()
    what = (
        f"{where}: the original gives the same answer to all {len(reference)} items, so that any artifact agrees "
        "with it"
    )
    do = "Check the model's weights, and how its input is scaled (mean and std in the contract file)"
    return (Finding("same-answer", "warning", what, do),)


def few_boxes(contract: Contract, reference: Reference, where: str) -> tuple[Finding, ...]:
    """A warning if a detector finds too few boxes on an unlabelled set to be compared."""
    boxes = box_counts(contract, reference) if reference.labels is None else None
    if boxes is None:
        return ()
    count = sum(boxes)
    if count >= _FEWEST_BOXES:
        return ()
    found = f"{count} box{'' if count == 1 else 'es'}" if count else "no box"
    what = f"{where}: the original finds {found} over its threshold in {len(reference)} items"
    weight = f", and one of them is {100 / count:.1f} points" if count else ", so that its outputs are compared instead"
    do = "Evaluate on pictures of what it detects"
    return (Finding("few-boxes", "warning", what + weight, do),)


def box_counts(contract: Contract, reference: Reference) -> list[int] | None:
    """For each item, its labelled boxes, or those that the original finds; None if unknown."""
    if reference.labels is not None:
        rows = [np.asarray(label).reshape(-1) for label in reference.labels]
        return None if any(len(row) % 5 for row in rows) else [int((row[4::5] >= 0).sum()) for row in rows]
    if contract.detection is None:
        return None
    return [len(candidates(answer, contract).scores) for answer in reference.outputs]


def labels_at_chance(reference: Reference, where: str) -> tuple[Finding, ...]:
    """A warning if the original only guesses: labels and classes do not fit together.

    Guessing: independent answers and labels with their own frequencies, or uniform classes if that is less. The
    warning needs 20 items of 2 classes, and an accuracy at most two standard errors above guessing.
    """
    if reference.best is None or reference.labels is None:
        return ()
    best, labels = np.asarray(reference.best), np.asarray(reference.labels)
    count, classes = len(best), len(np.unique(labels))
    if count < _FEWEST_LABELS or classes < 2:
        return ()
    size = int(max(best.max(), labels.max())) + 1
    by_chance = float(np.bincount(best, minlength=size) @ np.bincount(labels, minlength=size)) / count**2
    chance, right = min(by_chance, 1 / classes), float((best == labels).mean())
    if right > chance + 2 * (chance * (1 - chance) / count) ** 0.5:
        return ()
    what = f"{where}: the original itself is right on {100 * right:.1f} % of {count} items, no better than guessing"
    return (Finding("labels-at-chance", "warning", what, "Check that labels count from 0 in the model's order"),)


def _suspicions(
    source: SourceModel, contract: Contract, sets: Sets, store: StageStore, progress: Progress
) -> tuple[Finding, ...]:
    """Whether the original does better if data are read differently; made-up data cannot tell."""
    if sets.random:
        return ()
    name = key("suspicions", source.sha256, to_json(contract), sets.evaluation_digest, sets.evaluation.name)

    def found() -> tuple[Finding, ...]:
        seen = suspicions(source, contract, sets.evaluation, progress)
        return tuple(Finding(one.code, "warning", one.what, one.do) for one in seen)

    return cached_json(store, name, tuple[Finding, ...], found)
