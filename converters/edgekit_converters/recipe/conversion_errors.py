"""The converters' error tree."""

from __future__ import annotations

from typing import ClassVar

from edgekit_runtime.system.errors import EdgekitError, shorten

_MOST = 300
"""Characters of what another tool says."""


def one_line(value: BaseException | str) -> str:
    """Return another tool's message as one line, shortened, or the exception's type."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - another tool's exception
        text = ""
    return shorten(" ".join(text.split()), _MOST) or type(value).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of another tool's message, or the exception's type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class SourceError(EdgekitError):
    """The file is not a readable model, or the model has something that edgekit does not take."""

    code = "source"


class LabelOutputError(SourceError):
    """A label output that was taken for the class with the best score differs for an item."""


class ContractFileError(EdgekitError):
    """The contract file is missing, malformed, or does not fit the model."""

    code = "contract-file"


class CalibrationError(EdgekitError):
    """A calibration or evaluation set that cannot be used."""

    code = "calibration"
    reasons: ClassVar = {"evaluation": "an evaluation set that cannot be used"}


class UnlabelledError(CalibrationError):
    """No sub-folder names a class: they may not be labels at all."""


class ConversionError(EdgekitError):
    """A recipe that cannot be carried out for this model."""

    code = "conversion"


class MissingToolsError(ConversionError):
    """A recipe whose tools are an extra that is not installed; `do` has the command."""

    code = "missing-extra"


class MetricError(EdgekitError):
    """An unknown metric, one that the labels do not fit, or one whose function fails."""

    code = "metric"


class CompressError(EdgekitError):
    """A model, its data or a step that `edgekit compress` cannot work with."""

    code = "compress"
