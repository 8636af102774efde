"""The two data sets of a build, and what is cached of them for the next build.

Rules:
- an unreadable file is left out, with a finding; an item in both sets is left out of calibration;
- made-up examples need --allow-random, and every report says so;
- a cached stage's key covers all that it depends on; it is read as data, and computed again if unreadable;
- what depends on a user's own function (examples, metric) is computed each time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.building.build_request import BuildRequest
from edgekit_converters.data.dataset import Dataset, RandomDataset, Subset
from edgekit_converters.data.dataset import split as split_dataset
from edgekit_converters.data.lint import Finding, Survey, survey
from edgekit_converters.data.lint import findings as lint_findings
from edgekit_converters.data.open import open_dataset
from edgekit_converters.data.sequences import Sequences, open_sequences, random_sequences, split_sequences
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.recipe import store as stored_by
from edgekit_converters.recipe.conversion_errors import CalibrationError, UnlabelledError
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.recipe.store import StageStore, cached_json, kept
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.contract.adapt import taken
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.strict_json import to_json

_RANDOM_CALIBRATION, _RANDOM_EVALUATION = 100, 64
_OF_EVALUATION = ("unreadable", "not-finite")  # findings about a set that calibrates nothing


@dataclass(frozen=True)
class Sets:
    """The calibration and the evaluation set.

    calibration: None if not given; no int8 artifact is possible then.
    held_out: evaluation is a part of the calibration set.
    calibration_digest, evaluation_digest: of their content, for cache keys.
    evaluation_items: digest of each item at the first look.
    random: one or both are made up.
    """

    calibration: Dataset | None
    evaluation: Dataset
    held_out: bool
    findings: tuple[Finding, ...]
    calibration_digest: str = ""
    evaluation_digest: str = ""
    evaluation_items: tuple[str, ...] = ()
    random: bool = False


@dataclass(frozen=True)
class Opener:
    """Opens and surveys sets: for a stateful model, frame sequences run through `source`."""

    contract: Contract
    store: StageStore
    progress: Progress
    source: SourceModel

    def open(self, path: str, *, labelled: bool = True) -> Dataset:
        """Raises CalibrationError."""
        if self.contract.state != "none":
            return open_sequences(path, self.contract, self.source, self.progress)
        return open_dataset(path, self.contract, labelled=labelled)

    def random(self, count: int, seed: int = 0) -> Dataset:
        if self.contract.state != "none":
            return random_sequences(self.contract, self.source, count, seed, self.progress)
        return RandomDataset(self.contract, count, seed=seed)

    def split(self, given: Dataset) -> tuple[Dataset, Dataset]:
        """(calibration, held out)"""
        if isinstance(given, Sequences):
            return split_sequences(given, self.progress)
        return split_dataset(given)

    def survey(self, dataset: Dataset) -> Survey:
        return cached_survey(self.store, dataset, self.contract, self.progress)


def open_sets(request: BuildRequest, opener: Opener) -> Sets:
    """Raises CalibrationError if there is nothing to measure with, or lint finds an error."""
    contract = opener.contract
    if request.calibration is None and request.evaluation is None:
        if not request.allow_random:
            raise CalibrationError(
                "no data to calibrate or compare with",
                do="Give --calibration a folder of representative examples, and --evaluation labelled ones; "
                "or --allow-random for a first look at made-up ones",
            )
        return _random(opener, opener.random(_RANDOM_EVALUATION, seed=1))
    if request.evaluation is None:
        assert request.calibration is not None
        given, notes = _labelled_where_it_is(request.calibration, opener)
        part, held_out = opener.split(given)
        sets = _checked(opener, part, held_out, held_out=True)
        return replace(sets, findings=(*sets.findings, *notes))
    with of_evaluation():
        evaluation = opener.open(request.evaluation)
    if request.calibration is not None:
        given = opener.open(request.calibration, labelled=False)
        return _checked(opener, given, evaluation, held_out=False)
    if request.allow_random:
        return _random(opener, evaluation)
    with of_evaluation():
        evaluation, found = _readable(opener, evaluation)
        findings = tuple(f for f in lint_findings(found, None, contract) if f.code in _OF_EVALUATION)
        _refuse_errors(findings)
    return Sets(None, evaluation, False, findings, "", survey_digest(found), tuple(found.digests))


@contextmanager
def of_evaluation(own: bool = True) -> Iterator[None]:
    """A CalibrationError within has the code `evaluation`, unless the set was held out."""
    try:
        yield
    except CalibrationError as error:
        code = "evaluation" if own else error.code
        raise CalibrationError(error.what, where=error.where, do=error.do, code=code) from error


def _random(opener: Opener, evaluation: Dataset) -> Sets:
    noise = opener.random(_RANDOM_CALIBRATION)
    sets = _checked(opener, noise, evaluation, held_out=False)
    both = isinstance(evaluation.frames if isinstance(evaluation, Sequences) else evaluation, RandomDataset)
    what = "calibration and comparison used made-up examples" if both else "calibration used made-up examples"
    what = f"{what}: the ranges and measurements say little about real input"
    finding = Finding("random-data", "warning", what, "Give --calibration a folder of representative examples")
    return replace(sets, random=True, findings=(finding, *sets.findings))


def _labelled_where_it_is(path: str, opener: Opener) -> tuple[Dataset, tuple[Finding, ...]]:
    """Open a set that both calibrates and evaluates.

    Sub-folders of which none names a class are not labels, and a note says so.
    """
    try:
        return opener.open(path), ()
    except UnlabelledError as error:
        what = f"{path}: its sub-folders are not used as labels: none names a class"
        note = Finding("folders-no-labels", "note", what, f"If they are labels: {error.do}")
        return opener.open(path, labelled=False), (note,)


def unused_labels(contract: Contract, used: bool, labelled: bool, where: str) -> tuple[Finding, ...]:
    """A note if the evaluation set has labels (labelled) that no metric reads (used)."""
    if used or not labelled:
        return ()
    shape = contract.outputs[0].shape
    do = f"Give labels of the first output's shape, {list(shape)}; or name a --metric, such as your own module:function"
    if math.prod(shape) == max(shape, default=0) > 1:  # possibly one score a class
        do = 'If they are classes, write task = "classification" in the contract file; or name a --metric'
    what = f"{where}: its labels are not used, because the task is {contract.task} and no metric of it reads them"
    return (Finding("labels-unused", "note", what, do),)


def _checked(opener: Opener, given: Dataset, evaluation: Dataset, *, held_out: bool) -> Sets:
    """Lint both sets; an item in both is removed from the calibration set."""
    readable, first = _readable(opener, given)
    with of_evaluation(not held_out):
        evaluation, second = _readable(opener, evaluation)
    findings = lint_findings(first, second, opener.contract, one_set=held_out)
    _refuse_errors(findings)
    overlap = frozenset[str]().union(*(finding.digests for finding in findings))
    calibration = without(readable, first, overlap, held_out=held_out)
    digests = survey_digest(first, overlap), survey_digest(second)
    return Sets(calibration, evaluation, held_out, findings, *digests, tuple(second.digests))


def _readable(opener: Opener, dataset: Dataset) -> tuple[Dataset, Survey]:
    """The set without the files that cannot be read."""
    found = opener.survey(dataset)
    if not found.unreadable:
        return dataset, found
    return Subset(dataset, [index for index in range(len(dataset)) if index not in found.unreadable]), found


def without(dataset: Dataset, found: Survey, digests: frozenset[str], *, held_out: bool) -> Dataset:
    """Without the items of these digests. Raises CalibrationError if nothing is left."""
    if not digests:
        return dataset
    kept = [index for index, digest in enumerate(found.digests) if digest not in digests]
    if kept:
        return Subset(dataset, kept)
    what, do = "every item is in the evaluation set too", "Give other items for calibration"
    if held_out:
        what = "every item duplicates a held-out evaluation item"
        do = "Give items that differ, or an --evaluation set of its own"
    raise CalibrationError(what, where=dataset.name, do=do)


def _refuse_errors(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.level == "error":
            raise CalibrationError(finding.what, where=finding.where, do=finding.do)


def key(*parts: Any) -> str:
    """`recipe.store.key` with a digest of this package's code, which decides the stored JSON."""
    return stored_by.key(_own_code(), *parts)


@cache
def _own_code() -> str:
    return stored_by.code_digest(Path(__file__).parent)


def cached_survey(store: StageStore, dataset: Dataset, contract: Contract, progress: Progress) -> Survey:
    """The survey of a set; decodes nothing if the same files were surveyed before."""
    files = dataset.fingerprint
    if files is None:
        return survey(dataset, progress)
    name = key("survey", files, to_json(contract), dataset.name)
    return cached_json(
        store, name, Survey, lambda: survey(dataset, progress), lambda s: s.items == len(s.digests) == len(s.labels)
    )


def survey_digest(found: Survey, left_out: frozenset[str] = frozenset()) -> str:
    """Identifies the set's content: its items and their labels, not their paths."""
    items = zip(found.digests, found.labels, strict=True)
    return key("items", [[digest, label] for digest, label in items if digest not in left_out])


def cached_reference(store: StageStore, name: str, contract: Contract, made: Callable[[], Reference]) -> Reference:
    """The original's answers, with the labels, from the cache if it has them."""
    outputs = contract.of_caller.outputs

    def read(stored: bytes) -> Reference | None:
        found = _reference(stored)
        for answer in found.outputs:
            if answer.keys() != {output.name for output in outputs}:
                return None
            for output in outputs:
                taken(output, answer[output.name])
        columns = (found.labels, found.best, found.digests)
        return found if all(one is None or len(one) == len(found) for one in columns) else None

    found = kept(store, name, read)
    if found is None:
        stored = _reference_bytes(made())
        store.put(name, stored)
        found = _reference(stored)
    return found


def _reference_bytes(found: Reference) -> bytes:
    pieces: list[bytes] = []

    def packed(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value.item() if isinstance(value, np.generic) else value
        pieces.append(np.ascontiguousarray(value).tobytes())
        return {"dtype": value.dtype.str, "shape": list(value.shape)}

    head = {
        "outputs": [{name: packed(value) for name, value in answer.items()} for answer in found.outputs],
        "labels": None if found.labels is None else [packed(label) for label in found.labels],
        "best": found.best,
        "digests": found.digests,
    }
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])


def _reference(stored: bytes) -> Reference:
    start = 8 + int.from_bytes(stored[:8], "little")
    head = json.loads(stored[8:start])
    position = start

    def unpacked(value: Any) -> Any:
        nonlocal position
        if not isinstance(value, dict):
            return value
        array: NDArray[Any] = np.frombuffer(
            stored, value["dtype"], int(np.prod(value["shape"], dtype=np.int64)), position
        ).reshape(value["shape"])
        position += array.nbytes
        return array

    outputs = [{name: unpacked(value) for name, value in answer.items()} for answer in head["outputs"]]
    labels = None if head["labels"] is None else tuple(unpacked(label) for label in head["labels"])
    best = None if head["best"] is None else tuple(head["best"])
    return Reference(tuple(outputs), labels, best, tuple(head["digests"]))
