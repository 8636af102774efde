"""The two sets of a build: opened, linted, and never overlapping."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.building.request import BuildRequest
from edgekit_converters import calibration
from edgekit_converters.calibration import Dataset, Finding
from edgekit_converters.errors import CalibrationError
from edgekit_converters.progress import Progress
from edgekit_runtime.contract import Contract

__all__ = ["Sets", "open_sets"]


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
        given = _labelled_where_it_is(request.calibration, contract)
        kept, held_out = calibration.split(given)
        return _checked(kept, held_out, contract, progress, held_out=True)
    evaluation = calibration.open_dataset(request.evaluation, contract)
    if request.calibration is None:
        return Sets(None, evaluation, False, ())
    given = calibration.open_dataset(request.calibration, contract, labelled=False)
    return _checked(given, evaluation, contract, progress, held_out=False)


def _labelled_where_it_is(path: str, contract: Contract) -> Dataset:
    """Calibration data needs no labels, but the part that is held out measures accuracy where there are some."""
    try:
        return calibration.open_dataset(path, contract)
    except CalibrationError:  # sub-folders that name no class are only folders; any other fault shows again below
        return calibration.open_dataset(path, contract, labelled=False)


def _checked(given: Dataset, evaluation: Dataset, contract: Contract, progress: Progress, *, held_out: bool) -> Sets:
    """Lint both; an item that is in both is taken out of the calibration set."""
    findings = calibration.lint(given, evaluation, contract, progress)
    for finding in findings:
        if finding.level == "error":
            raise CalibrationError(finding.what, where=given.name, do=finding.do)
    overlap = frozenset[str]().union(*(finding.digests for finding in findings))
    return Sets(calibration.without(given, overlap), evaluation, held_out, findings)
