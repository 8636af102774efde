"""A source model and its contract file -> Contract."""

from __future__ import annotations

import difflib
import math
from functools import partial
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from edgekit_converters.contract_file.document import read_document, read_text
from edgekit_converters.contract_file.images import IMAGE_KEYS, image_spec
from edgekit_converters.contract_file.states import StateKeys, carried_by_names, read_state
from edgekit_converters.contract_file.tasks import check_tasks, detection_spec, embedding_spec
from edgekit_converters.errors import ContractFileError
from edgekit_converters.sources.model import SourceModel
from edgekit_profiles.schema import Table
from edgekit_runtime.contract.kinds import network_size
from edgekit_runtime.contract.spec import Contract, InputContract, OutputContract, Task
from edgekit_runtime.tensors import TensorSpec

__all__ = ["describe", "find_contract_file", "stated_keys"]

_SUFFIX = ".contract.toml"
_MASKS = ". Where it is a class a pixel, labels that are masks of class indexes are measured as miou then"


def find_contract_file(model: Path) -> Path | None:
    """`model.contract.toml` beside `model.keras` (or `model.keras.contract.toml`), None where neither exists."""
    names = [model.name + _SUFFIX] if model.is_dir() else [model.stem + _SUFFIX, model.name + _SUFFIX]
    return next((model.parent / name for name in names if (model.parent / name).is_file()), None)


def stated_keys(file: Path | None) -> frozenset[str]:
    """The keys at the top of the file: what a person said, and nobody needs to guess."""
    return frozenset() if file is None else frozenset(read_document(file).data)


def describe(source: SourceModel, file: Path | None) -> Contract:
    """The contract of a model.

    With no file: tensors in, tensors out; a classifier if there is exactly one float output of item shape [C], C >= 2.
    `scores` stays None where the file does not say; `settle` finds it once the original has answered.
    Raises ContractFileError naming the file, the key and what to do.
    """
    outputs = tuple(OutputContract(spec.name, tuple(spec.shape[1:]), spec.dtype) for spec in source.outputs)
    if file is None:
        kept = carried_by_names(source)
        told = _told(outputs, kept)
        task: Task = "classification" if len(told) == 1 and _is_vector(told[0]) else "raw"
        return Contract(task, tuple(_tensor(spec, str(source.path)) for spec in source.inputs), outputs, **kept)
    document = read_document(file)
    document.done(("task", "labels", "scores", "input", "inputs", "state", "detection", "embedding"))
    kept = document.part(lambda: read_state(document, source)) or carried_by_names(source)
    told = _told(outputs, kept)
    task = _task(document, told)
    inputs = document.part(lambda: _inputs(document, source.inputs)) or ()
    if "task" in document.mistakes:  # what follows from it is not known
        document.refuse()
    contract = Contract(
        task=task,
        inputs=inputs,
        outputs=outputs,
        labels=document.part(lambda: _labels(document, task, told)),
        scores=document.part(lambda: _scores(document, task)),
        detection=document.part(lambda: detection_spec(document, told, network_size(inputs)))
        if task == "detection"
        else None,
        embedding=document.part(lambda: embedding_spec(document, told)) if task == "embedding" else None,
        **kept,
    )
    document.refuse()
    document.part(lambda: check_tasks(document, contract))
    document.refuse()
    return contract


def _told(outputs: tuple[OutputContract, ...], kept: StateKeys) -> tuple[OutputContract, ...]:
    """The outputs that a caller gets."""
    carried = {pair.output for pair in kept["carried"] or ()}
    return tuple(output for output in outputs if output.name not in carried)


def _task(document: Table, outputs: tuple[OutputContract, ...]) -> Task:
    guess = "classification" if len(outputs) == 1 and _is_vector(outputs[0]) else "raw"
    task = cast(Task, document.text("task", guess, get_args(Task)))
    if task == "classification" and not _is_classes(outputs[0]):
        shape = list(outputs[0].shape)
        document.wrong(
            "task",
            f"the model's first output '{outputs[0].name}' is {outputs[0].dtype} {shape}; a classifier's is one float a class",
            'Write task = "raw"' + (_MASKS if len(shape) >= 3 else ""),
        )
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
        value = _lines(document, value)
    if not isinstance(value, list) or not all(isinstance(label, str) and label.strip() for label in value):
        document.stop("labels", "is neither a file's name nor a list of names", 'Write labels = "labels.txt"')
    classes = math.prod(outputs[0].shape)
    if task == "classification" and len(value) != classes:
        more = (
            " Does the first one stand for a background class that the model lacks?"
            if len(value) == classes + 1
            else ""
        )
        document.stop(
            "labels",
            f"{source} has {len(value)} labels and the output '{outputs[0].name}' has {classes} classes",
            f"Write exactly one label a class, in index order.{more}",
        )
    return tuple(label.strip() for label in value)


def _lines(document: Table, name: str) -> list[str]:
    path = Path(document.file).parent / name
    lines = read_text(path, f"the label file named by {Path(document.file).name}").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ContractFileError(
                f"line {number} is empty", where=str(path), do="Write one label a line: the line number is the class"
            )
    return lines


def _inputs(document: Table, specs: tuple[TensorSpec, ...]) -> tuple[InputContract, ...]:
    tables = _input_tables(document, specs)
    found = [document.part(partial(_input, document, tables.get(spec.name), spec)) for spec in specs]
    return tuple(one for one in found if one is not None)


def _input(document: Table, table: Table | None, spec: TensorSpec) -> InputContract:
    return _tensor(spec, document.file) if table is None else _KINDS[_kind(table)](table, spec)


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


def _kind(table: Table) -> str:
    table.done(("kind", *IMAGE_KEYS))
    kind = table.text("kind", "", tuple(_KINDS))
    if not kind:
        table.stop("kind", "is missing", 'Write kind = "image" or kind = "tensor"')
    return kind


def _plain(table: Table, spec: TensorSpec) -> InputContract:
    for key in IMAGE_KEYS:
        if table.has(key):
            table.wrong(key, 'has no meaning with kind = "tensor"', 'Remove it, or write kind = "image"')
    return _tensor(spec, table.file)


def _image(table: Table, spec: TensorSpec) -> InputContract:
    image = image_spec(table, spec)
    return InputContract(spec.name, (image.height, image.width, image.channels), spec.dtype, image)


def _tensor(spec: TensorSpec, where: str) -> InputContract:
    if not spec.shape:
        raise ContractFileError(
            f"the model's input '{spec.name}' has no batch axis",
            where=where,
            do="Save the model so that every input's first axis is the batch",
        )
    if -1 in spec.shape[1:]:
        shape = "[" + ", ".join("?" if n == -1 else str(n) for n in spec.shape) + "]"
        raise ContractFileError(
            f"the model's input '{spec.name}' leaves axes free beside the batch: {shape}",
            where=where,
            do="Save the model with a fixed shape",
        )
    return InputContract(spec.name, tuple(spec.shape[1:]), spec.dtype)


_KINDS = {"image": _image, "tensor": _plain}
"""What `kind` may say of an input -> what makes its contract of the file's table."""
