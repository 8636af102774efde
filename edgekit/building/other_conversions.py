"""Files of `build --compare`: another tool made them of the same model.

    files = read_compared([Path("mine_int8.tflite")])
    results = measure_compared(maker, files)            # one RecipeResult a file, under the file's name

Rules:
- tensors are matched with the model's by name, else by shape; a file without a unique match is refused;
- a picture may have its channels first or last, whatever the model has;
- the file is measured, estimated and shown, and never chosen, repaired or packed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn, cast

import numpy as np

from edgekit.building.build_subject import BuildSubject
from edgekit.building.making import Maker, RecipeResult
from edgekit.packaging.model_file import form_of, read_model
from edgekit.packaging.output_errors import ComparedFileError
from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.workload import precision_of, quantized_fraction
from edgekit_converters.recipe.artifact import Artifact, Precision, Recipe, transposed_shape
from edgekit_converters.sources.shapes import graph_names, shape_text
from edgekit_runtime.contract.spec import Layout, TensorSpec
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.errors import BundleError, EdgekitError

_DO = "Convert it again from the model that is built here, or leave it out"
_OTHER: dict[Layout | None, Layout] = {"NHWC": "NCHW", "NCHW": "NHWC"}


@dataclass(frozen=True)
class ComparedFile:
    """name: the file's own, or its path where two files share a name. data: its bytes."""

    path: Path
    name: str
    format: Literal["tflite", "onnx"]
    data: bytes


def read_compared(paths: Sequence[Path]) -> tuple[ComparedFile, ...]:
    """Raises ComparedFileError if a file is unreadable, not a model, or given twice."""
    shared = Counter(path.name for path in paths)
    found: dict[str, ComparedFile] = {}
    for path in paths:
        do = "Pass a .tflite or .onnx file"
        try:
            form, data = form_of(path), read_model(path)
        except BundleError as error:
            raise ComparedFileError(error.what, where=str(path), do=do) from error
        if form == "bundle":
            raise ComparedFileError("is a bundle", where=str(path), do=f"{do}; edgekit export takes it out of one")
        key = hashlib.sha256(data).hexdigest()
        if key in found:
            raise ComparedFileError(f"is the same file as {found[key].path}", where=str(path), do="Pass it once")
        found[key] = ComparedFile(path, path.name if shared[path.name] == 1 else str(path), form, data)
    return tuple(found.values())


def measure_compared(maker: Maker, files: Sequence[ComparedFile]) -> list[RecipeResult]:
    """Compare each file with the original. Raises ComparedFileError if a file has no answers."""
    return maker.workers.run([partial(_measured, maker, file) for file in files])


def _measured(maker: Maker, file: ComparedFile) -> RecipeResult:
    found = maker.compare(RecipeResult(_recipe(file, "int8"), compared_artifact(file, maker.subject)))
    if found.failed is not None:
        raise ComparedFileError(found.failed, where=str(file.path), do=found.advice or _DO)
    return replace(found, file=file.path)


def compared_artifact(file: ComparedFile, subject: BuildSubject) -> Artifact:
    """The file as an artifact of the subject. Raises ComparedFileError if it does not fit."""
    where = str(file.path)
    try:
        with load_engine(file.format, file.data) as engine:
            took, gave = engine.inputs, engine.outputs
        macs, weights = quantized_fraction(file.format, file.data)
        precision = cast(Precision, precision_of(file.format, file.data))
    except EdgekitError as error:
        raise ComparedFileError(error.what, where=where, do=error.do or _DO) from error
    called = _signature(file)
    inputs = _matched("input", took, subject.source.inputs, called, where)
    outputs = _matched("output", gave, subject.source.outputs, called, where)
    for tensor in inputs:
        wanted = np.dtype(subject.contract.input(tensor.name).dtype)
        if wanted.kind == "f" and np.dtype(tensor.dtype).kind != "f" and tensor.quantization is None:
            raise ComparedFileError(
                f"its input '{tensor.tensor}' takes {tensor.dtype} numbers that stand for themselves, and the model "
                f"takes {wanted}",
                where=where,
                do="Convert it again with the input quantized or in float, and pre-processing outside of the file",
            )
    return Artifact(_recipe(file, precision), file.data, inputs, outputs, float(macs), float(weights), {})


def _recipe(file: ComparedFile, precision: Precision) -> Recipe:
    return Recipe(file.name, file.format, precision, default=False, finished=True)


def _signature(file: ComparedFile) -> dict[str, str]:
    """Tensor -> its name in a .tflite file's only signature."""
    if file.format != "tflite":
        return {}
    found = tflite.read(file.data)
    if len(found.signatures) != 1:
        return {}
    tensors = found.subgraphs[found.signatures[0].subgraph].tensors
    return {tensors[index].label: name for index, name in found.signatures[0].names.items()}


def _matched(
    kind: str, tensors: Sequence[TensorSpec], specs: Sequence[TensorSpec], called: dict[str, str], where: str
) -> tuple[TensorSpec, ...]:
    """The file's tensors in their order, named as the model's."""
    if len(tensors) != len(specs):
        _refuse(kind, tensors, specs, where)
    plain = dict(zip(graph_names(specs), specs, strict=True))
    names = {_plain_name(called.get(tensor.tensor, tensor.tensor)): tensor for tensor in tensors}
    pairs: dict[str, TensorSpec] = {}
    if len(names) == len(specs) and names.keys() == plain.keys():
        pairs = {spec.name: names[name] for name, spec in plain.items()}
        if any(_fitting(pairs[spec.name], spec) is None for spec in specs):
            _refuse(kind, tensors, specs, where)
    else:
        for spec in specs:
            fitting = [tensor for tensor in tensors if _fitting(tensor, spec) is not None]
            if not fitting:
                _refuse(kind, tensors, specs, where)
            if len(fitting) > 1:
                raise ComparedFileError(
                    f"{len(fitting)} of its {kind}s have the shape of '{spec.name}', and none has its name",
                    where=where,
                    do=f"Name its {kind}s as the model does: {', '.join(one.name for one in specs)}",
                )
            pairs[spec.name] = fitting[0]
        if len({tensor.tensor for tensor in pairs.values()}) != len(specs):
            _refuse(kind, tensors, specs, where)
    by_tensor = {tensor.tensor: name for name, tensor in pairs.items()}
    wanted = {spec.name: spec for spec in specs}
    return tuple(
        replace(tensor, name=(name := by_tensor[tensor.tensor]), layout=_fitting(tensor, wanted[name]) or None)
        for tensor in tensors
    )


def _plain_name(name: str) -> str:
    """The name without TensorFlow's and its converters' additions."""
    return re.sub(r"\W", "_", name.removeprefix("serving_default_").split(":")[0], flags=re.ASCII)


def _fitting(tensor: TensorSpec, spec: TensorSpec) -> Layout | Literal[""] | None:
    """The layout in which the tensor has the model's shape, "" if it names none; None if no fit."""
    if _same(tensor.shape, spec.shape):
        return spec.layout or ""
    if spec.layout is not None and _same(tensor.shape, transposed_shape(spec)):
        return _OTHER[spec.layout]
    return None


def _same(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether all sides but the batch match; a free side (-1) matches any."""
    return len(shape) == len(wanted) and all(
        side in (-1, want) for side, want in zip(shape[1:], wanted[1:], strict=True)
    )


def _refuse(kind: str, tensors: Sequence[TensorSpec], specs: Sequence[TensorSpec], where: str) -> NoReturn:
    def listed(each: Sequence[tuple[str, tuple[int, ...]]]) -> str:
        return ", ".join(f"'{name}' {shape_text(shape)}" for name, shape in each)

    has = listed([(tensor.tensor, tensor.shape) for tensor in tensors])
    wants = listed([(spec.name, spec.shape) for spec in specs])
    raise ComparedFileError(f"its {kind}s are {has}; the model's are {wants}", where=where, do=_DO)
