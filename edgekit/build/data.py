"""The two sets of a build: opened, linted, and never overlapping."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.build.request import BuildRequest
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
    given = None
    if request.calibration is not None:
        given = calibration.open_dataset(request.calibration, contract, labelled=False)
    if request.evaluation is not None:
        evaluation = calibration.open_dataset(request.evaluation, contract)
        if given is None:
            return Sets(None, evaluation, False, ())
        findings = calibration.lint(given, evaluation, contract, progress)
        _refuse_errors(findings, given)
        overlap = frozenset[str]().union(*(finding.digests for finding in findings))
        return Sets(calibration.without(given, overlap), evaluation, False, findings)
    assert given is not None
    findings = calibration.lint(given, None, contract, progress)
    _refuse_errors(findings, given)
    kept, held_out = calibration.split(given)
    return Sets(kept, held_out, True, findings)


def _refuse_errors(findings: tuple[Finding, ...], dataset: Dataset) -> None:
    for finding in findings:
        if finding.level == "error":
            raise CalibrationError(finding.what, where=dataset.name, do=finding.do)
