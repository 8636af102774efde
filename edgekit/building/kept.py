"""What a build remembers of the one before: the stages that cost most, each under a key of all that it depends on.

Rules: what the store gives back is read as data, never run, and what cannot be read is made again; a person's own
function (examples, metric) is code that edgekit cannot see through, so what it has a hand in is made anew each time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters import store as stored_by
from edgekit_converters.calibration import Dataset, Survey, fingerprint, survey
from edgekit_converters.fidelity import Reference
from edgekit_converters.progress import Progress
from edgekit_converters.store import Store, kept_json
from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.contract import Contract

__all__ = ["kept_reference", "kept_survey", "key", "survey_digest"]


def key(*parts: Any) -> str:
    """As `edgekit_converters.store.key`, and of this package's own code: it decides what a stage's JSON looks like."""
    return stored_by.key(_own_code(), *parts)


@cache
def _own_code() -> str:
    return stored_by.code_digest(Path(__file__).parent)


def kept_survey(store: Store, dataset: Dataset, contract: Contract, progress: Progress) -> Survey:
    """The survey of a set, without decoding a file where the same files were surveyed before."""
    files = fingerprint(dataset)
    if files is None:
        return survey(dataset, progress)
    name = key("survey", files, to_json(contract), dataset.name)
    return kept_json(store, name, Survey, lambda: survey(dataset, progress))


def survey_digest(found: Survey, left_out: frozenset[str] = frozenset()) -> str:
    """What tells the set's content from another's: its items and their labels, wherever they lie."""
    items = zip(found.digests, found.labels, strict=True)
    return key("items", [[digest, label] for digest, label in items if digest not in left_out])


def kept_reference(store: Store, name: str, made: Callable[[], Reference]) -> Reference:
    """The original's answers. Labels that are arrays go with them."""
    stored = store.get(name)
    if stored is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            return _reference(stored)
    stored = _reference_bytes(made())
    store.put(name, stored)
    return _reference(stored)


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

    outputs: list[Mapping[str, NDArray[Any]]] = []
    for answer in head["outputs"]:
        outputs.append({name: unpacked(value) for name, value in answer.items()})
    labels = None if head["labels"] is None else tuple(unpacked(label) for label in head["labels"])
    best = None if head["best"] is None else tuple(head["best"])
    return Reference(tuple(outputs), labels, best, tuple(head["digests"]))
