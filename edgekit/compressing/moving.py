"""A model that leaves its folder or its size.

The contract file goes with it; of another size is the student of `--input`.

    text = moved_contract(file, contract.labels)                        # labels in it, not in a file beside it
    model = of_size(network, contract, (160, 160), "net.keras")         # the same weights, for smaller pictures
    subject = subject_of_size(path, subject, "train/", "labelled/", progress)  # its sets, read again

Rules: the original's answers stay those that artifacts are compared with; a teacher still reads pictures of its own
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.building.data import Opener, key
from edgekit.building.subject import BuildSubject
from edgekit_converters.calibration.dataset import Dataset, Subset, digest
from edgekit_converters.contract_file.describe import describe, find_contract_file
from edgekit_converters.contract_file.tasks import read_document
from edgekit_converters.errors import CompressError
from edgekit_converters.progress import Progress
from edgekit_converters.sources.load import open_source
from edgekit_converters.sources.model import LoadOptions, toml_text
from edgekit_converters.store import NO_STORE
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract


def moved_contract(file: Path, labels: Sequence[str] | None) -> str:
    """What the contract file says, for another folder. labels: those that it names."""
    said = read_document(file).data
    if not isinstance(said.get("labels"), str):
        return file.read_text(encoding="utf-8-sig")
    return toml_text({**said, "labels": list(labels or ())})


def of_size(network: Any, contract: Contract, size: tuple[int, int], where: str) -> Any:
    """A Keras model of that network and its weights, for pictures of (height, width).

    Raises CompressError for a network that takes no picture, or one whose layers need its size."""
    from edgekit_converters.compress.channels import trace, without

    if len(contract.inputs) != 1 or not pictures(contract.inputs) or contract.task == "detection":
        raise CompressError(
            "--input needs a model that takes one picture, and answers no boxes in its pixels",
            where=where,
            do='Say that it is a picture in the contract file, kind = "image"; or leave --input out',
        )
    before = network.input.shape
    last = tuple(before[1:]) == tuple(contract.inputs[0].shape)
    shape = (before[0], *size, before[3]) if last else (before[0], before[1], *size)
    if tuple(before[1:]) == tuple(shape[1:]):
        raise CompressError(f"its pictures have {size[0]}x{size[1]} pixels already", where=where, do="Change --input")
    try:
        return without(network, trace(network), np.zeros(0, np.int64), shape=shape)
    except ValueError as error:
        flat = [call.name for call in network.calls if type(call.layer).__name__ in ("Flatten", "Reshape")]
        what = f"what is behind '{flat[0]}' fits" if flat else "its layers fit"
        raise CompressError(
            f"{what} its own size alone",
            where=where,
            do="Give a network that ends in a mean over the picture (GlobalAveragePooling2D), or leave --input out",
        ) from error


def subject_of_size(path: Path, subject: BuildSubject, train: str, evaluation: str, progress: Progress) -> BuildSubject:
    """The subject with a model of another size.

    path: of that model, its contract file beside it.
    subject: of the model before.
    """
    source = open_source(path, LoadOptions(), NO_STORE)
    contract = describe(source, find_contract_file(path))
    contract = replace(contract, scores=subject.contract.scores)
    opener, sets = Opener(contract, NO_STORE, progress, source), subject.sets
    evaluated = _same_items(sets.evaluation, opener.open(evaluation))
    assert sets.calibration is not None
    new = replace(
        sets,
        evaluation=evaluated,
        calibration=_same_items(sets.calibration, opener.open(train)),
        calibration_digest=key("size", sets.calibration_digest, list(contract.inputs[0].shape)),
        evaluation_digest=key("size", sets.evaluation_digest, list(contract.inputs[0].shape)),
    )
    reference = replace(subject.reference, digests=tuple(map(digest, evaluated)))
    return replace(subject, source=source, contract=contract, sets=new, reference=reference)


def _same_items(before: Dataset, given: Dataset) -> Dataset:
    return Subset(given, before.indexes) if isinstance(before, Subset) else given
