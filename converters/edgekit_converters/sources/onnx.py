"""ONNX files.

Rules: standard operators only (a custom domain needs code that no board has, and `com.microsoft` means that the file
was already optimized or quantized for one machine); no external data, because a model may not name other files; weights
stay data. The original runs in ONNX Runtime, one session made once.

    source = load(Path("net.onnx"))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError, SourceError
from edgekit_converters.sources import canonical, onnx_graph
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.sources.shapes import check_shape, file_sha256, image_layout, unique_names
from edgekit_runtime.engines import Engine, load_engine
from edgekit_runtime.errors import EngineError, MissingExtraError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["OnnxSource", "load"]

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_EXPORT_AGAIN = "Export the model to ONNX again"


class OnnxSource:
    """An ONNX model that passed every check of this module."""

    format = "onnx"

    def __init__(self, path: Path, model: Any, engine: Engine) -> None:
        self._path, self._model, self._engine = path, model, engine
        self._sha256 = file_sha256(path)
        self._inputs = _describe(model.graph, engine, str(path))
        self._outputs = _outputs(engine, self._inputs, str(path))

    @property
    def path(self) -> Path:
        return self._path

    @property
    def sha256(self) -> str:
        return self._sha256

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The original, in float, on a batch of any size; a file with a fixed batch of 1 is run once an item."""
        arrays = [np.ascontiguousarray(array, spec.dtype) for array, spec in zip(inputs, self._inputs, strict=True)]
        if len(arrays[0]) == 0:
            return [np.zeros((0, *spec.shape[1:]), spec.dtype) for spec in self._outputs]
        if all(spec.free_batch for spec in (*self._inputs, *self._outputs)):
            return self._engine.run(arrays)
        items = [self._engine.run([array[i : i + 1] for array in arrays]) for i in range(len(arrays[0]))]
        return [np.concatenate(parts) for parts in zip(*items, strict=True)]

    def onnx(self) -> bytes:
        """The same graph at opset 17 (21 at most where the source is newer), IR 10 at most, constants folded."""
        return self._onnx

    @cached_property
    def _onnx(self) -> bytes:
        free = all(spec.free_batch for spec in (*self._inputs, *self._outputs))
        inputs = onnx_graph.random_inputs(self._inputs, 3 if free else 1)
        expected = self.predict(inputs)
        model = onnx_graph.tie_down(type(self._model).FromString(self._model.SerializeToString()))
        problem = ""
        for candidate in (onnx_graph.slim(model), model):
            canonical.order(candidate)
            self._name(candidate)
            data: bytes = candidate.SerializeToString(deterministic=True)
            try:
                difference = onnx_graph.disagreement(data, inputs, expected, [spec.name for spec in self._outputs])
            except EngineError as error:
                problem = str(error)
                continue
            if difference is None:
                return data
            problem = f"the output '{difference.output}' moved by {difference.worst:.3g}"
        before, after = onnx_graph.opset_of(self._model), onnx_graph.opset_of(model)
        step = "writing the graph anew" if before == after else f"taking the graph from opset {before} to {after}"
        raise ConversionError(
            f"{step} failed: {problem}",
            where=str(self._path),
            do=f"Export it again at opset {onnx_graph.OPSET}",
        )

    def _name(self, model: Any) -> None:
        """Contract names in place of the file's (they differ where TensorFlow left ':0')."""
        specs = (*self._inputs, *self._outputs)
        onnx_graph.rename(model, {spec.tensor: spec.name for spec in specs})
        onnx_graph.set_batch(model, self._inputs, self._outputs)


def load(path: Path) -> OnnxSource:
    """Parse, check, and open a session. Raises SourceError with the reason for whatever is refused."""
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "reading an ONNX model", where=str(path)) from error
    data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # noqa: BLE001 - protobuf's DecodeError lives in the C++ package or the Python one
        _refuse(path, "this is not an ONNX model, or it is damaged", cause=error)
    if not model.graph.node or not model.opset_import:
        _refuse(path, "this is not an ONNX model, or it has no operators")
    _check(path, model)
    try:
        with quiet():
            onnx.checker.check_model(model)
    except Exception as error:  # noqa: BLE001 - ValidationError, and RuntimeError from the C++ side
        _refuse(path, f"the graph breaks ONNX's own rules: {_first_line(error)}", cause=error)
    if unused := onnx_graph.unused_inputs(model.graph):
        _refuse(path, f"its input '{unused[0]}' is used by nothing", f"{_EXPORT_AGAIN} without it")
    try:
        with quiet():
            engine = load_engine("onnx", data, threads=0, engine="onnxruntime")
    except EngineError as error:
        _refuse(path, error.what, cause=error)
    return OnnxSource(path, model, engine)


def _check(path: Path, model: Any) -> None:
    if any(tensor.data_location == tensor.EXTERNAL for tensor in _tensors(model)):
        _refuse(
            path,
            "its weights stand in another file (external data), and a model may not name other files",
            "Save it as one file: onnx.save_model(model, path, save_as_external_data=False)",
        )
    nodes = [node for graph in onnx_graph.subgraphs(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    own = {function.domain for function in model.functions}
    foreign = sorted({f"{n.domain}.{n.op_type}" for n in nodes if n.domain not in _STANDARD and n.domain not in own})
    if any(name.startswith("com.microsoft.") for name in foreign):
        _refuse(
            path,
            f"it was already optimized or quantized for ONNX Runtime ({foreign[0]})",
            "Pass the float model that it was made from",
        )
    if foreign:
        _refuse(
            path,
            f"it uses operators that no board's engine has: {', '.join(foreign[:5])}",
            f"{_EXPORT_AGAIN} with standard operators only",
        )
    if model.functions:
        _refuse(
            path,
            "it defines functions of its own, which the quantizer cannot see into",
            "Inline them: onnx.inliner.inline_local_functions(model)",
        )


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor in the file: weights, sparse weights, and constants in nodes."""
    nodes = [node for function in model.functions for node in function.node]
    for graph in onnx_graph.subgraphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        nodes += graph.node
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)


def _describe(graph: Any, engine: Engine, where: str) -> tuple[TensorSpec, ...]:
    names = unique_names([spec.tensor for spec in engine.inputs], where=where, kind="input")
    axes = {value.name: [dim.dim_param or None for dim in value.type.tensor_type.shape.dim] for value in graph.input}
    specs = []
    for name, spec in zip(names, engine.inputs, strict=True):
        described = TensorSpec(name, spec.tensor, spec.dtype, spec.shape, image_layout(spec.shape, prefer="NCHW"))
        check_shape(described, where=where, kind="input", axis_names=axes.get(spec.tensor, ()))
        specs.append(described)
    return tuple(specs)


def _outputs(engine: Engine, inputs: Sequence[TensorSpec], where: str) -> tuple[TensorSpec, ...]:
    """Output shapes: many exporters leave them open, so one run with a batch of 1 fills in what the file does not say."""
    names = unique_names([spec.tensor for spec in engine.outputs], where=where, kind="output")
    free = all(spec.free_batch for spec in inputs)
    one, two = _shapes(engine, inputs, 1, where), None
    if free:
        try:
            two = _shapes(engine, inputs, 2, where)
        except SourceError:
            two = None  # it says the batch is free and fails with two: the outputs keep a batch of 1
    specs = []
    for i, (name, spec) in enumerate(zip(names, engine.outputs, strict=True)):
        grows = two is not None and bool(one[i]) and two[i] == (2, *one[i][1:])
        described = TensorSpec(name, spec.tensor, spec.dtype, (-1, *one[i][1:]) if grows else one[i])
        check_shape(described, where=where, kind="output")
        specs.append(described)
    return tuple(specs)


def _shapes(engine: Engine, inputs: Sequence[TensorSpec], batch: int, where: str) -> list[tuple[int, ...]]:
    zeros = [np.zeros((batch, *spec.shape[1:]), spec.dtype) for spec in inputs]
    try:
        with quiet():
            return [tuple(output.shape) for output in engine.run(zeros)]
    except EngineError as error:
        raise SourceError(f"the model does not run: {error.what}", where=where, do=_EXPORT_AGAIN) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _refuse(path: Path, what: str, do: str = _EXPORT_AGAIN, *, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause
