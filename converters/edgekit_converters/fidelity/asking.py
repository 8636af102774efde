"""The original, asked; what it raises on an item is the item's fault, and is said of the item.

    answers = ask(source, intake, group, tensors)
    check_answerable(source, contract, calibration_set, progress)       # only where inputs are whole numbers, such as token ids

Rules:
- whatever a framework raises becomes one CalibrationError: which item, the framework's reason in one line, what to do;
- a framework's own lines are kept off the terminal; running out of memory is nobody's item.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, Example
from edgekit_converters.calibration.decode import sets_of
from edgekit_converters.errors import CalibrationError, SourceError
from edgekit_converters.fidelity.batches import Intake
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.sources.quiet import quiet
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.errors import EdgekitError, EngineError, shortened

__all__ = ["AT_ONCE", "ask", "check_answerable", "reason"]

AT_ONCE = 32
"""Items a batch, where the original's batch axis is free."""

_LONGEST = 200
_STACK = re.compile(r"^(Graph execution error|Detected at node|File \"|\[\[\{\{node|During handling|Stack trace)")
_OUTSIDE = (  # TensorFlow's Gather; ONNX Runtime's, which also counts from the end
    re.compile(r"indices\[[^]]*] = (?P<value>-?\d+) is not in \[0, (?P<size>\d+)\)"),
    re.compile(r"idx=(?P<value>-?\d+) must be within the inclusive range \[-?\d+,\s*(?P<last>\d+)]"),
)


def ask(
    source: SourceModel, intake: Intake, group: Sequence[Example], tensors: list[NDArray[Any]]
) -> list[NDArray[Any]]:
    """The original's answers to a batch. Raises CalibrationError with the first item that it does not answer."""
    try:
        return _quietly(source, tensors)
    except Exception as error:
        if not _is_of_the_item(error):
            raise
        for example in group:
            _alone(source, intake, example)
        raise SourceError(
            f"the original model answers each item alone and not {len(group)} at once: {reason(error)}",
            where=str(source.path),
            do="Save the model with a batch axis that is free, or fixed to 1",
        ) from error


def check_answerable(source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent) -> None:
    """Ask the original for every item where an input is whole numbers: ids that it has no row for stop it, and every conversion
    of it, in the middle. Raises CalibrationError."""
    if not any(sets_of(spec).holds_ids(spec) for spec in contract.inputs):
        return
    intake, done = Intake(contract, source.inputs, AT_ONCE), 0
    for group, tensors in intake.batches(dataset):
        ask(source, intake, group, tensors)
        done += len(group)
        progress("checking the ids", done, len(dataset))


def reason(error: BaseException) -> str:
    """A framework's reason in one line: no stack, no node names."""
    text = error.what if isinstance(error, EdgekitError) else str(error)
    lines = [line.strip() for line in text.splitlines()]
    said = next((line for line in lines if line and not _STACK.match(line)), "") or type(error).__name__
    return shortened(said, _LONGEST)


def _quietly(source: SourceModel, tensors: list[NDArray[Any]]) -> list[NDArray[Any]]:
    with quiet():
        return source.predict(tensors)


def _alone(source: SourceModel, intake: Intake, example: Example) -> None:
    try:
        _quietly(source, intake.adapt(example))
    except Exception as error:
        if not _is_of_the_item(error):
            raise
        raise _unanswered(error, example) from error


def _is_of_the_item(error: Exception) -> bool:
    """Not where edgekit has said already what is wrong, or the machine is too small."""
    return not isinstance(error, MemoryError) and (
        isinstance(error, EngineError) or not isinstance(error, EdgekitError)
    )


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
