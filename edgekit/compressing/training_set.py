"""The training set of `edgekit compress`.

It is checked against the evaluation set, and read as the model takes it.

    given, found = training_set(request, subject, store, progress)              # a dataset, and what a look at it found
    kind = check_labels(subject, found, request.train)                          # "classes", "numbers" or "boxes"
    data = training_data(subject, Subset(given, readable), kind, folder, progress)

Rules:
- no item of the evaluation set is trained on: where the training set holds one, it is refused and the items counted;
- labels that are missing or all the same are refused; what is no class was refused where it was read;
- the items are in a file, because they may be more than the memory holds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.building.data import Opener, cached_survey
from edgekit.building.subject import BuildSubject
from edgekit.compressing.request import CompressRequest
from edgekit_converters.calibration.dataset import Dataset, Subset
from edgekit_converters.calibration.lint import Survey
from edgekit_converters.calibration.observe import SourceSamples
from edgekit_converters.errors import CompressError
from edgekit_converters.progress import Progress
from edgekit_converters.store import StageStore

ITEMS = "items.npy"
"""The items, while a model is trained on them."""
_SHOWN = 3


def training_set(
    request: CompressRequest, subject: BuildSubject, store: StageStore, progress: Progress
) -> tuple[Dataset, Survey]:
    """The training set, which holds no evaluation item. Raises CompressError, CalibrationError."""
    opener = Opener(subject.contract, store, progress, subject.source)
    given = opener.open(request.train, labelled=subject.contract.task != "detection")
    found = cached_survey(store, given, subject.contract, progress)
    evaluated = set(subject.sets.evaluation_items)
    shared = [origin for one in found.by_digest if one in evaluated for origin in found.by_digest[one]]
    if shared:
        shown = ", ".join(shared[:_SHOWN]) + (", ..." if len(shared) > _SHOWN else "")
        raise CompressError(
            f"{len(shared)} of its {found.items} items are in the evaluation set too: {shown}",
            where=request.train,
            do="Take them out of one of the two: an accuracy on items that were trained on says nothing",
        )
    if found.not_finite:
        raise CompressError(
            f"{len(found.not_finite)} of its items hold NaN or infinity, {found.not_finite[0]} for one",
            where=request.train,
            do="Leave them out",
        )
    if len(found.digests) < 2 * request.batch:
        raise CompressError(
            f"{len(found.digests)} items are fewer than two batches of {request.batch}",
            where=request.train,
            do="Give more labelled items, or a smaller --batch",
        )
    return given, found


def check_labels(subject: BuildSubject, found: Survey, train: str) -> Literal["classes", "numbers", "boxes"]:
    """Refuse labels of the wrong form; what is no class was refused where it was read.

    A detector's are of any form, and are not read.

    Raises CompressError for labels that are missing or all the same.
    """
    if subject.contract.task == "detection":
        return "boxes"
    evaluation = subject.sets.evaluation.name
    sets = ((train, found.labels), (evaluation, list(map(str, subject.reference.labels or ()))))
    for where, labels in sets:
        missing = labels.count("") if labels else len(subject.reference)
        if missing:
            raise CompressError(
                f"{missing} of its {len(labels) or missing} items have no label",
                where=where,
                do="Give labels: sub-folders named as the classes, or `y` in an .npz",
            )
    if subject.contract.task != "classification":
        return "numbers"
    for where, labels in sets:
        counted = Counter(labels)
        if len(counted) < 2:
            raise CompressError(
                f"all its {len(labels)} items have one label, {next(iter(counted))}",
                where=where,
                do="Give items of every class that the model knows",
            )
    return "classes"


def training_data(subject: BuildSubject, given: Subset, kind: str, folder: Path, progress: Progress) -> Any:
    """The training set as the model takes it, in a file of the folder.

    It may be larger than the memory.
    """
    from edgekit_converters.compress.lessons import TrainingData
    from edgekit_converters.compress.train import array_on_disk

    samples = SourceSamples(given, subject.contract, subject.source)
    x: NDArray[np.float32] | None = None
    labels: list[Any] = []
    for index, example in enumerate(given):
        (item,) = samples.adapt(example)
        if x is None:
            x = array_on_disk(folder / ITEMS, (len(given), *item.shape[1:]))
        x[index] = item[0]
        labels.append(example.label)
        progress("reading the training set", index + 1, len(given))
    assert x is not None
    if kind == "boxes":
        return TrainingData(x, None, "boxes")
    if kind == "classes":
        return TrainingData(x, np.asarray(labels, np.int64), "classes")
    return TrainingData(x, np.asarray(labels, np.float32).reshape(len(labels), -1), "numbers")
