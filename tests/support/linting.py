"""The findings of two data sets in one call."""

from __future__ import annotations

from edgekit_converters.data.dataset import Dataset
from edgekit_converters.data.lint import Finding, findings, survey
from edgekit_runtime.contract.spec import Contract


def lint(calibration: Dataset, evaluation: Dataset | None, contract: Contract) -> tuple[Finding, ...]:
    return findings(survey(calibration), None if evaluation is None else survey(evaluation), contract)
