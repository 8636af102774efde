"""Float .tflite files, run by LiteRT as boards run them.

Rules: `tflite_file` says what a file may hold; a batch of 1, because many graphs take no other; inputs and outputs are called
as in the file's signature, or as its tensors where it has none.

    source = load(Path("net.tflite"), LoadOptions())
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.errors import SourceError, one_line
from edgekit_converters.sources import exported, onnx_graph, tflite_file
from edgekit_converters.sources.model import Description, Note, model_sha256
from edgekit_converters.sources.options import LoadOptions
from edgekit_converters.sources.quiet import import_tensorflow, quiet
from edgekit_converters.sources.shapes import (
    check_inputs,
    check_named,
    image_layout,
    measured_outputs,
    pin,
    unique_names,
)
from edgekit_converters.sources.tflite_file import TfliteFile
from edgekit_runtime.engines import Engine, load_engine
from edgekit_runtime.errors import EngineError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["TfliteModel", "load"]


@dataclass(frozen=True, eq=False, kw_only=True)
class TfliteModel(Description):
    """See `model.TfliteSource`."""

    data: bytes = field(repr=False)
    engine: Engine = field(repr=False)

    def tflite(self) -> bytes:
        """The file's bytes; float16 weights are float32 in them, and pinned shapes are fixed."""
        return self.data

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The original, in float, one item at a time."""
        return self.answered(inputs, self.engine.run, at_once=False)

    def onnx(self) -> bytes:
        """Through tf2onnx, opset 17, IR 10, batch of 1; image inputs are NCHW there. Raises ConversionError."""
        return self._onnx

    @cached_property
    def _onnx(self) -> bytes:
        try:
            model = _exported(self)
        except Exception as error:
            raise exported.failed(self, one_line(error)) from error
        data, problem = exported.proved(model, self, 1)
        if data is None:
            raise exported.failed(self, problem)
        return data


def load(path: Path, options: LoadOptions) -> TfliteModel:
    """Raises SourceError with the reason for whatever is refused."""
    where = str(path)
    file = tflite_file.read(path)
    data = _pinned(file, options, where)
    try:
        with quiet():
            engine = load_engine("tflite", data)
    except EngineError as error:
        raise SourceError(error.what, where=where, do="Convert or download it again") from error
    inputs = tuple(
        replace(spec, name=name, shape=(1, *spec.shape[1:]), layout=image_layout(spec.shape, prefer="NHWC"))
        for name, spec in zip(_called(file, engine.inputs, where, "input"), engine.inputs, strict=True)
    )
    names = _called(file, engine.outputs, where, "output")

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            return engine.run(arrays)
        except EngineError as error:
            raise SourceError(f"the model does not run: {error.what}", where=where, do="Convert it again") from error

    tensors = [(name, spec.tensor) for name, spec in zip(names, engine.outputs, strict=True)]
    outputs = measured_outputs(tensors, run, inputs, where=where)
    halved = f"{file.halved} weights are stored as float16: what was lost to that is not measured"
    return TfliteModel(
        path=path,
        format="tflite",
        sha256=model_sha256(path, options),
        inputs=inputs,
        outputs=outputs,
        notes=(Note("float16-weights", halved, "Pass the float32 model, if there is one"),) if file.halved else (),
        data=data,
        engine=engine,
    )


def _pinned(file: TfliteFile, options: LoadOptions, where: str) -> bytes:
    """The file with every axis fixed; the error for a free one shows the option to give."""
    names = {tensor: file.names.get(tensor, tensor) for tensor in file.shapes}
    check_named(options.shapes, list(names.values()), where=where)
    shapes: dict[str, tuple[int, ...]] = {}
    specs = list[TensorSpec]()
    for tensor, shape in file.shapes.items():
        wanted = options.shapes.get(names[tensor])
        pinned = shape if wanted is None else pin(names[tensor], shape, wanted, where=where)
        specs.append(TensorSpec(names[tensor], tensor, "float32", pinned))
        if pinned != shape or -1 in shape:
            shapes[tensor] = (1, *pinned[1:])
    check_inputs(specs, where=where)
    if not shapes:
        return file.data
    try:
        with quiet():
            return tflite_file.with_shapes(file.data, shapes)
    except ValueError as error:
        raise SourceError(f"the graph does not take these shapes: {error}", where=where, do="Check --shape") from error


def _called(file: TfliteFile, specs: Sequence[TensorSpec], where: str, kind: str) -> tuple[str, ...]:
    return unique_names([file.names.get(spec.tensor, spec.tensor) for spec in specs], where=where, kind=kind)


def _exported(source: TfliteModel) -> Any:
    import_tensorflow()
    import tf2onnx

    pictures = [spec.tensor for spec in source.inputs if spec.layout == "NHWC"]
    with tempfile.NamedTemporaryFile(suffix=".tflite") as file, quiet():
        Path(file.name).write_bytes(source.data)
        model, _ = tf2onnx.convert.from_tflite(file.name, opset=onnx_graph.OPSET, inputs_as_nchw=pictures or None)
    exported.adopt(model, source, {spec.tensor: spec.name for spec in (*source.inputs, *source.outputs)}, 1)
    return model
