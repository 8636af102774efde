"""The two sets of a build: opened, linted, and never overlapping."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekit.building.request import BuildRequest
from edgekit_converters import calibration
from edgekit_converters.calibration import Dataset, Finding
from edgekit_converters.errors import CalibrationError, UnlabelledError
from edgekit_converters.progress import Progress
from edgekit_runtime.contract import Contract

__all__ = ["Sets", "open_sets", "unused_labels"]


@dataclass(frozen=True)
class Sets:
    """calibration: None where none was given, and then no int8 can be made. held_out: evaluation is a part of it."""

    calibration: Dataset | None
    evaluation: Dataset
    held_out: bool
    findings: tuple[Finding, ...]


def open_sets(request: BuildRequest, contract: Contract, progress: Progress) -> Sets:
    """Raises CalibrationError when there is nothing to measure with, or lint finds an error."""
    if request.calibration is None and request.evaluation is None:
        raise CalibrationError(
            "there is nothing to calibrate or to compare with",
            do="Give --calibration a folder of representative examples, and --evaluation labelled ones",
        )
    if request.evaluation is None:
        assert request.calibration is not None
        given, notes = _labelled_where_it_is(request.calibration, contract)
        kept, held_out = calibration.split(given)
        sets = _checked(kept, held_out, contract, progress, held_out=True)
        return replace(sets, findings=(*sets.findings, *notes))
    evaluation = calibration.open_dataset(request.evaluation, contract)
    if request.calibration is None:
        return Sets(None, evaluation, False, ())
    given = calibration.open_dataset(request.calibration, contract, labelled=False)
    return _checked(given, evaluation, contract, progress, held_out=False)


def _labelled_where_it_is(path: str, contract: Contract) -> tuple[Dataset, tuple[Finding, ...]]:
    """Calibration data needs no labels, but the part that is held out measures accuracy where there are some.

    Sub-folders of which none names a class are only folders, and it is said; one among others that do is misspelt.
    """
    try:
        return calibration.open_dataset(path, contract), ()
    except UnlabelledError as error:
        what = f"{path}: its sub-folders are not taken for labels, because none of them names a class"
        note = Finding("folders-no-labels", "note", what, f"If they are labels: {error.do}")
        return calibration.open_dataset(path, contract, labelled=False), (note,)


def unused_labels(contract: Contract, labelled: bool, where: str) -> tuple[Finding, ...]:
    """A note where the evaluation set has labels that no metric of this task reads. labelled: it has some."""
    if contract.task == "classification" or not labelled:
        return ()
    return (
        Finding(
            "labels-unused",
            "note",
            f"{where}: its labels are not used, because the task is {contract.task} and has no accuracy",
            'If they are classes, write task = "classification" in the contract file',
        ),
    )


def _checked(given: Dataset, evaluation: Dataset, contract: Contract, progress: Progress, *, held_out: bool) -> Sets:
    """Lint both; an item that is in both is taken out of the calibration set."""
    findings = calibration.lint(given, evaluation, contract, progress)
    for finding in findings:
        if finding.level == "error":
            raise CalibrationError(finding.what, where=given.name, do=finding.do)
    overlap = frozenset[str]().union(*(finding.digests for finding in findings))
    return Sets(calibration.without(given, overlap), evaluation, held_out, findings)
