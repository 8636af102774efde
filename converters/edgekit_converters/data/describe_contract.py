"""A source model and its contract file -> Contract, with what only the model's answers show.

    contract = describe(source, find_contract_file(Path("model.keras")))
    scores = detect_scores(np.array([[0.1, 0.9], [0.7, 0.3]]))       # "probabilities"

Rules: a picture's height, width and channels come from the model's own input, never from the file; the original's
answers distinguish classes from numbers, and probabilities from logits.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgekit_converters.data.contract_tasks import (
    StateKeys,
    carried_by_names,
    check_tasks,
    detection_spec,
    embedding_spec,
    read_document,
    read_state,
    read_stated,
    read_text,
)
from edgekit_converters.data.lint import Finding
from edgekit_converters.data.output_kinds import FEW, confidence, is_curve
from edgekit_converters.data.texts import text_spec
from edgekit_converters.recipe.conversion_errors import ContractFileError
from edgekit_converters.sources.shapes import shape_text
from edgekit_converters.sources.source_model import SourceModel
from edgekit_profiles.schema import Table
from edgekit_runtime.contract.kinds import network_size
from edgekit_runtime.contract.spec import (
    Color,
    Contract,
    EmbeddingSpec,
    ImageSpec,
    InputContract,
    Interpolation,
    OutputContract,
    Resize,
    Task,
    TensorSpec,
)

IMAGE_KEYS = ("color", "resize", "crop", "interpolation", "mean", "std")
_LARGEST, _LEAST_STD = 1e6, 1e-6  # for pixels of 0 to 255 room for any scaling, and none for a slip of the pen

_NORMALISATIONS = (
    "Say what the model was trained on: mean = 0 and std = 1 for pixels 0..255, mean = 0 and std = 255 for 0..1, "
    "mean = 127.5 and std = 127.5 for -1..1"
)


def image_spec(table: Table, tensor: TensorSpec) -> ImageSpec:
    """Raises ContractFileError where the keys contradict each other or the model's input."""
    shape, as_tensor = shape_text(tensor.shape), 'Write kind = "tensor"'
    if tensor.layout is None or len(tensor.shape) != 4:
        table.stop("kind", f"the model's input '{tensor.name}' has shape {shape}, which is not a picture's", as_tensor)
    _, *axes = tensor.shape
    height, width, channels = axes if tensor.layout == "NHWC" else (axes[1], axes[2], axes[0])
    if channels not in (1, 3):
        what = f"the model's input '{tensor.name}' has {channels} channels; a picture has 1 or 3"
        table.stop("kind", what, as_tensor)
    if -1 in (height, width):
        do = "Save the model with a fixed height and width"
        table.stop("kind", f"the model's input '{tensor.name}' leaves its size free: {shape}", do)
    mean, std = _normalisation(table, tensor, channels)
    resize = cast(Resize, table.text("resize", "stretch", get_args(Resize)))
    crop = table.real("crop", 1.0)
    if not 0 < crop <= 1:
        table.wrong("crop", f"{crop:g} is not a fraction", "Write a number above 0 and at most 1, e.g. 0.875")
    if table.has("crop") and resize != "center-crop":
        table.wrong("crop", f'has no meaning with resize = "{resize}"', 'Write resize = "center-crop"')
    color = cast(Color, table.text("color", "gray" if channels == 1 else "rgb", get_args(Color)))
    if (color == "gray") != (channels == 1):
        fitting = '"gray"' if channels == 1 else '"rgb" or "bgr"'
        table.wrong("color", f'"{color}" does not fit an input with {channels} channels', f"Write {fitting}")
    interpolation = cast(Interpolation, table.text("interpolation", "bilinear", get_args(Interpolation)))
    return ImageSpec(height, width, mean, std, color, resize, crop, interpolation)


def _normalisation(table: Table, tensor: TensorSpec, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, std = table.reals("mean", channels), table.reals("std", channels)
    neutral = ((0.0,) * channels, (1.0,) * channels)
    if np.issubdtype(np.dtype(tensor.dtype), np.integer):
        if (mean or neutral[0], std or neutral[1]) != neutral:
            key = "mean" if mean not in (None, neutral[0]) else "std"
            table.wrong(key, f"the model takes {tensor.dtype} pixels as they are", "Remove mean and std")
        return neutral
    if mean is None or std is None:
        for key, given in (("mean", mean), ("std", std)):
            if given is None:
                table.wrong(key, "is missing", _NORMALISATIONS)
        return neutral
    for value in mean:
        if abs(value) > _LARGEST:
            table.wrong("mean", f"{value:g} is beyond any pixel, which is 0 to 255", _NORMALISATIONS)
    for value in std:
        if value == 0:
            table.wrong("std", "0 would divide by zero", _NORMALISATIONS)
        elif not _LEAST_STD <= value <= _LARGEST:
            bounds = f"{_LEAST_STD:g} to {_LARGEST:g}"
            table.wrong("std", f"{value:g} is not a standard deviation of pixels: use {bounds}", _NORMALISATIONS)
    return mean, std


_SUFFIX = ".contract.toml"
_MASKS = ". Where it is a class a pixel, labels that are masks of class indexes are measured as miou then"


def default_file(model: Path) -> Path:
    """`model.contract.toml` beside `model.keras`, `folder.contract.toml` beside a folder."""
    return model.parent / ((model.name if model.is_dir() else model.stem) + _SUFFIX)


def find_contract_file(model: Path) -> Path | None:
    """`model.contract.toml` beside `model.keras` (or `model.keras.contract.toml`), or None."""
    beside = (default_file(model), model.with_name(model.name + _SUFFIX))
    return next((file for file in beside if os.path.isfile(file)), None)  # noqa: PTH113 - False for too long a name


def stated_keys(file: Path | None, source: SourceModel | None = None) -> frozenset[str]:
    """The keys that the file, or the model itself, states, so that they need no guess."""
    if file is not None:
        return frozenset(read_document(file).data)
    return frozenset(read_stated(source.stated, source.path).data) if source is not None else frozenset()


def describe(source: SourceModel, file: Path | None) -> Contract:
    """The contract of a model.
    Without a file: what the model file itself says; else tensors in, tensors out, and a classifier if the only output
    is
    float of item shape [C], C >= 2. `scores` stays None if the file does not say; `settle` finds it in the answers.
    Raises ContractFileError naming the file, the key and what to do."""
    outputs = tuple(OutputContract(spec.name, tuple(spec.shape[1:]), spec.dtype) for spec in source.outputs)
    if file is None and not source.stated:
        kept = carried_by_names(source)
        returned = _of_caller(outputs, kept)
        task: Task = "classification" if len(returned) == 1 and _is_vector(returned[0]) else "raw"
        return Contract(task, tuple(_tensor(spec, str(source.path)) for spec in source.inputs), outputs, **kept)
    document = read_stated(source.stated, source.path) if file is None else read_document(file)
    document.done(
        ("task", "labels", "scores", "input", "inputs", "state", "text", "classification", "detection", "embedding")
    )
    kept = document.part(lambda: read_state(document, source)) or carried_by_names(source)
    outputs = _scores_first(document, outputs, _of_caller(outputs, kept))
    returned = _of_caller(outputs, kept)
    task = _task(document, returned)
    inputs = document.part(lambda: _inputs(document, source.inputs)) or ()
    if "task" in document.mistakes:  # what follows from it is not known
        document.refuse()
    contract = Contract(
        task=task,
        inputs=inputs,
        outputs=outputs,
        labels=document.part(lambda: _labels(document, task, returned)),
        scores=document.part(lambda: _scores(document, task)),
        detection=document.part(lambda: detection_spec(document, returned, network_size(inputs)))
        if task == "detection"
        else None,
        embedding=document.part(lambda: embedding_spec(document, returned)) if task == "embedding" else None,
        text=document.part(lambda: text_spec(document, inputs)) if inputs else None,
        **kept,
    )
    document.refuse()
    document.part(lambda: check_tasks(document, contract))
    document.refuse()
    return contract


def _of_caller(outputs: tuple[OutputContract, ...], kept: StateKeys) -> tuple[OutputContract, ...]:
    """The outputs that a caller gets."""
    carried = {pair.output for pair in kept["carried"] or ()}
    return tuple(output for output in outputs if output.name not in carried)


def _scores_first(
    document: Table, outputs: tuple[OutputContract, ...], returned: tuple[OutputContract, ...]
) -> tuple[OutputContract, ...]:
    """The outputs with the one of [classification] first, as a classifier's scores are."""
    table = document.optional_table("classification")
    if table is None:
        return outputs
    table.done(("output",))
    name, names = table.text("output"), [output.name for output in returned]
    if table.has("output") and name not in names:
        table.wrong("output", f"the model has no output '{name}'", f"Name one of them: {', '.join(names)}")
    return tuple(sorted(outputs, key=lambda output: output.name != name))


def _task(document: Table, outputs: tuple[OutputContract, ...]) -> Task:
    chosen = document.has("classification")
    guess = "classification" if chosen or (len(outputs) == 1 and _is_vector(outputs[0])) else "raw"
    task = cast(Task, document.text("task", guess, get_args(Task)))
    if chosen and task != "classification":
        document.wrong("classification", f"has no meaning for a model whose task is {task}", "Remove the table")
    if task == "classification" and not _is_classes(outputs[0]):
        shape, others = list(outputs[0].shape), [output.name for output in outputs if _is_classes(output)]
        which = "output" if chosen else "first output"
        do = f'Write output = "{others[0]}" in [classification]' if others else ""
        is_now = f"the model's {which} '{outputs[0].name}' is {outputs[0].dtype} {shape}"
        do = do or 'Write task = "raw"' + (_MASKS if len(shape) >= 3 else "")
        document.wrong("task", f"{is_now}; a classifier's is one float a class", do)
    return task


def _is_vector(output: OutputContract) -> bool:
    return len(output.shape) == 1 and _is_classes(output)


def _is_classes(output: OutputContract) -> bool:
    """Two classes or more along one axis; the others, if any, are 1."""
    floating = np.issubdtype(np.dtype(output.dtype), np.floating)
    return bool(floating) and max(output.shape, default=0) >= 2 and math.prod(output.shape) == max(output.shape)


def _scores(document: Table, task: Task) -> Literal["probabilities", "logits"] | None:
    if document.has("scores") and task != "classification":
        do = "Write activation in [detection]" if task == "detection" else "Remove it"
        document.stop("scores", f"a model whose task is {task} has no scores", do)
    scores = document.text("scores", "", ("probabilities", "logits"))
    return cast(Literal["probabilities", "logits"], scores) if scores else None


def _labels(document: Table, task: Task, outputs: tuple[OutputContract, ...]) -> tuple[str, ...] | None:
    value = document.data.get("labels")
    if value is None:
        return None
    if task not in ("classification", "detection"):
        document.stop("labels", f"a model whose task is {task} has no classes", 'Remove it, or task = "classification"')
    source = "the list"
    if isinstance(value, str):
        if not value.strip():
            document.stop("labels", "is empty", 'Write labels = "labels.txt", or remove it')
        source = value
        path = Path(document.file).parent / value
        lines = read_text(path, f"the label file named by {Path(document.file).name}").split("\n")
        while lines and not lines[-1].strip():
            lines.pop()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                do = "Write one label a line: the line number is the class"
                raise ContractFileError(f"line {number} is empty", where=str(path), do=do)
        value = lines
    if not isinstance(value, list) or not all(isinstance(label, str) and label.strip() for label in value):
        document.stop("labels", "is neither a file's name nor a list of names", 'Write labels = "labels.txt"')
    classes = math.prod(outputs[0].shape)
    if task == "classification" and len(value) != classes:
        what = f"{source} has {len(value)} labels and the output '{outputs[0].name}' has {classes} classes"
        do = "Write exactly one label a class, in index order"
        if len(value) == classes + 1:
            do += ". Does the first one stand for a background class that the model lacks?"
        document.stop("labels", what, do)
    return tuple(label.strip() for label in value)


def _inputs(document: Table, specs: tuple[TensorSpec, ...]) -> tuple[InputContract, ...]:
    tables = _input_tables(document, specs)

    def read(spec: TensorSpec) -> InputContract:
        table = tables.get(spec.name)
        if table is None:
            return _tensor(spec, document.file)
        table.done(("kind", *IMAGE_KEYS))
        kind = table.text("kind", "", ("image", "tensor"))
        if not kind:
            table.stop("kind", "is missing", 'Write kind = "image" or kind = "tensor"')
        if kind == "image":
            image = image_spec(table, spec)
            return InputContract(spec.name, (image.height, image.width, image.channels), spec.dtype, image)
        for key in IMAGE_KEYS:
            if table.has(key):
                table.wrong(key, 'has no meaning with kind = "tensor"', 'Remove it, or write kind = "image"')
        return _tensor(spec, table.file)

    found = [document.part(partial(read, spec)) for spec in specs]
    return tuple(one for one in found if one is not None)


def _input_tables(document: Table, specs: tuple[TensorSpec, ...]) -> dict[str, Table]:
    names = [spec.name for spec in specs]
    single, several = document.optional_table("input"), document.optional_table("inputs")
    if single is not None and several is not None:
        document.stop("inputs", "stands beside [input]", "Keep one of the two")
    if single is not None:
        if len(names) > 1:
            document.stop("input", f"the model has {len(names)} inputs", f"Write [inputs.{names[0]}] and so on")
        return {names[0]: single}
    if several is None:
        return {}
    for name in several.data:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Its inputs: {', '.join(names)}"
            several.stop(name, f"the model has no input '{name}'", hint)
    return {name: several.table(name) for name in several.data}


def _tensor(spec: TensorSpec, where: str) -> InputContract:
    if not spec.shape:
        do = "Save the model so that every input's first axis is the batch"
        raise ContractFileError(f"the model's input '{spec.name}' has no batch axis", where=where, do=do)
    if -1 in spec.shape[1:]:
        shape = shape_text(spec.shape)
        what = f"the model's input '{spec.name}' leaves axes free beside the batch: {shape}"
        raise ContractFileError(what, where=where, do="Save the model with a fixed shape")
    return InputContract(spec.name, tuple(spec.shape[1:]), spec.dtype)


_ENOUGH = 64  # answers looked at: one logit row in them is enough
_SLACK = 1e-3  # what a sum of rounded numbers may be off
_WIDE = 32  # values of which softmax leaves each but little where they are not scores
_FLAT = 0.1
"""Mean best probability below which so many values choose nothing: 0.7 of EfficientNet-Lite0's scores, 0.02 of its
features."""
_OTHER = {"probabilities": "logits", "logits": "probabilities"}


def detect_scores(rows: ArrayLike) -> Literal["probabilities", "logits"]:
    """Probabilities if every row is non-negative and sums to 1 +- 1e-3.
    rows: [N, C] answers of a classifier, N >= 1."""
    table = np.asarray(rows, np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"expected [N, C] rows, got shape {table.shape}")
    likely = bool((table >= 0).all() and (np.abs(table.sum(axis=1) - 1) <= _SLACK).all())
    return "probabilities" if likely else "logits"


def settle(
    contract: Contract,
    answers: Sequence[Mapping[str, NDArray[Any]]],
    stated: Collection[str] = (),
    *,
    labelled: bool = False,
) -> tuple[Contract, tuple[Finding, ...]]:
    """Fill in what the contract file left out, from the original's answers.
    Each guess comes with a note. What the file states stays, with a warning (`scores-normalised`) if the answers say
    otherwise. Vectors of length 1 are an embedding's whatever the stated task, unless the file names classes. Without a
    stated task the model is a classifier if its answers may be scores of classes that exclude each other (see
    `_no_scores`), else raw.
    stated: the keys of the contract file.
    labelled: the evaluation set has classes."""
    if contract.task == "embedding" and answers:
        return contract, _classes_after_all(contract, answers)
    if contract.task != "classification" or (contract.scores is not None and not answers):
        return contract, ()
    name = contract.caller_outputs[0].name
    rows = np.stack([np.asarray(answer[name], np.float64).reshape(-1) for answer in answers[:_ENOUGH]])
    unit = len(rows) > 1 and bool((np.abs(np.linalg.norm(rows, axis=1) - 1) <= _SLACK).all())
    if unit and rows.shape[1] >= FEW and detect_scores(rows) == "logits":
        return _of_length_1(contract, name, stated, labelled=labelled)
    if contract.scores is not None:
        return contract, _doubted(contract.scores, name, rows)
    scores = detect_scores(rows)
    if not {"task", "labels"}.isdisjoint(stated):
        do = f'If that is wrong, write scores = "{_OTHER[scores]}" in the contract file'
        note = Finding("guessed-scores", "note", f"the output '{name}' is taken for {scores}, by what it answered", do)
        return replace(contract, scores=scores), (note,)
    why = "" if scores == "probabilities" else _no_scores(rows, unit=unit)
    if why:
        what = f"the task is taken for raw: '{name}' answers {why}"
        do = 'Where they are scores of classes, write task = "classification" in the contract file'
        if not rows.any():
            do = "Check that the items are what the model takes, in its units; a contract file may state the task"
        return replace(contract, task="raw"), (Finding("guessed-task", "note", what, do),)
    what = f"the task is taken for classification, and '{name}' for {scores}, by its shape and what it answered"
    do = f'Write task = "classification" and scores = "{scores}" in the contract file, or task = "raw"'
    return replace(contract, scores=scores), (Finding("guessed-task", "note", what, do),)


def _no_scores(rows: NDArray[np.float64], *, unit: bool) -> str:
    """Why rows that are not probabilities are not logits of classes either; "" if they may be."""
    if not rows.any():
        return "zeros only, which says nothing of scores"
    if (rows >= 0).all() and (rows <= 1).all():
        return "values from 0 to 1 that do not sum to 1, as no classifier's do"
    if unit:
        return "vectors of length 1, as directions have"
    if is_curve(rows):
        return "values of which neighbours go together, as a forecast's do and scores do not"
    winners = len(np.unique(rows.argmax(axis=1)))
    if rows.shape[1] >= _WIDE and (confidence(rows) < _FLAT or (winners == 1 and len(rows) >= FEW)):
        return "vectors whose best value stands out nowhere, or is always the same, as an embedding's are"
    return ""


def _of_length_1(
    contract: Contract, name: str, stated: Collection[str], *, labelled: bool
) -> tuple[Contract, tuple[Finding, ...]]:
    """What becomes of a classifier that answers vectors of length 1."""
    seen = f"'{name}' answers vectors of length 1, as embeddings are"
    if "labels" in stated or ("task" in stated and labelled):
        what = f"there are labels of classes, but {seen}"
        do = 'If they are not scores, write task = "embedding" in the contract file, without labels'
        return contract, (Finding("task-doubted", "warning", what, do),)
    settled = replace(contract, task="embedding", scores=None, labels=None, embedding=EmbeddingSpec(name))
    do = 'Write task = "embedding" in the contract file; or name the classes in `labels`, where they are scores'
    if {"task", "scores"}.isdisjoint(stated):
        return settled, (Finding("guessed-task", "note", f"the task is taken for embedding: {seen}", do),)
    what = f"the contract file says that the task is classification, but {seen}: they are compared as such"
    return settled, (Finding("task-doubted", "warning", what, do),)


def _classes_after_all(contract: Contract, answers: Sequence[Mapping[str, NDArray[Any]]]) -> tuple[Finding, ...]:
    assert contract.embedding is not None
    name = contract.embedding.output
    rows = np.stack([np.asarray(answer[name], np.float64).reshape(-1) for answer in answers[:_ENOUGH]])
    if detect_scores(rows) == "logits":
        return ()
    what = (
        f"the contract file says that '{name}' is an embedding, but its values lie in 0..1 and sum to 1, as scores do"
    )
    do = 'If they are scores of classes, write task = "classification" in the contract file'
    return (Finding("task-doubted", "warning", what, do),)


def _doubted(stated: Literal["probabilities", "logits"], name: str, rows: NDArray[np.float64]) -> tuple[Finding, ...]:
    """rows: [N, C], the answers of the output that is called `name`."""
    if stated == "logits" and detect_scores(rows) == "probabilities":
        what = f"the contract file says that '{name}' answers logits, but its values lie in 0..1 and sum to 1"
        why = "they are probabilities already, and softmax of them is nearly flat"
    elif stated == "probabilities" and not ((rows >= -_SLACK) & (rows <= 1 + _SLACK)).all():
        span = f"from {rows.min():.3g} to {rows.max():.3g}"
        what = f"the contract file says that '{name}' answers probabilities, but its values are {span}"
        why = "nothing makes probabilities of them"
    else:
        return ()
    do = f'If they are {_OTHER[stated]}, write scores = "{_OTHER[stated]}" in the contract file'
    return (Finding("scores-normalised", "warning", f"{what}: {why}", do),)
