"""The converters' error tree."""

from __future__ import annotations

from edgekit_runtime.system.errors import EdgekitError, shorten

_MOST = 300
"""Characters of what another tool says."""


def one_line(value: BaseException | str) -> str:
    """What another tool says in one line, cut at the end of a word.
    The exception's kind where it says nothing."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - another tool's exception
        text = ""
    return shorten(" ".join(text.split()), _MOST) or type(value).__name__


def first_line(error: BaseException) -> str:
    """What another tool says first; the exception's kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class SourceError(EdgekitError):
    """The file is no model edgekit can read, or the model has something edgekit does not take."""

    code = "source"


class LabelOutputError(SourceError):
    """A label that was taken for the class with the best score is another for an item."""


class ContractFileError(EdgekitError):
    """The contract file is missing, malformed, or does not fit the model."""

    code = "contract-file"


class CalibrationError(EdgekitError):
    """A calibration or evaluation set that cannot be used."""

    code = "calibration"


class UnlabelledError(CalibrationError):
    """Not one of a folder's sub-folders names a class: they may be no labels at all."""


class ConversionError(EdgekitError):
    """A recipe that cannot be carried out for this model."""

    code = "conversion"


class MissingToolsError(ConversionError):
    """A recipe whose tools are an extra that is not installed.
    `do` holds the command that adds it."""

    code = "missing-extra"


class MetricError(EdgekitError):
    """A metric that there is none of, that the labels do not fit, or whose function fails."""

    code = "metric"


class CompressError(EdgekitError):
    """A model, its data or a step that `edgekit compress` cannot work with."""

    code = "compress"
