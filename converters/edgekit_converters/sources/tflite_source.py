""".tflite files run by LiteRT: float ones, and finished ones that are packed as they are.

    source = load(Path("net.tflite"), LoadOptions())
    source = load_finished(Path("wake.tflite"), LoadOptions(as_is=True))     # quantized, or with its state inside

Rules:
- an original is a float model without a state inside: a quantized one has lost what a comparison needs;
- built-in operators only; float16 weights become float32, so that every recipe finds the same kind of file;
- a batch of 1, because many graphs take no other; names are those of the file's signature, or else of its tensors;
- a finished file is neither converted nor compared. `predict` takes and gives the real numbers (float32) that 8-bit
  inputs and outputs stand for; only `reset` clears a state inside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.recipe.conversion_errors import ConversionError, SourceError, one_line
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet
from edgekit_converters.sources import float_onnx, shapes, tensorflow_to_onnx
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import Note, SourceModel, State, model_sha256, refusing
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.pixels import quantize
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, load_engine
from edgekit_runtime.modelfile.check import DELEGATED, delegated_operators
from edgekit_runtime.system.errors import MissingExtraError

_AGAIN = "Convert or download it again"
_AS_IS = "or pack the file as it is, with nothing measured: edgekit build FILE --recipe tflite-as-is"
_MADE_FROM = f"Pass the float model that it was made from: the Keras, SavedModel, ONNX or float .tflite file; {_AS_IS}"
_STATEFUL = frozenset(["VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE", "CALL_ONCE"])
_WEIGHTED = frozenset(
    "CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV FULLY_CONNECTED CONV_3D BATCH_MATMUL PRELU".split()  # noqa: SIM905
)
_NARROW = frozenset(["INT8", "UINT8", "INT4", "INT2", "INT16"])


@dataclass(frozen=True)
class FloatTflite:
    """A parsed float .tflite file.
    data: the float32 file.
    names: tensor's name -> the signature's, if the file has one.
    shapes: of inputs, by tensor, -1 for a free axis.
    halved: how many weights were float16.
    stateful: operators that keep a state inside."""

    data: bytes
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    halved: int
    stateful: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def read(path: Path, *, as_is: bool = False) -> FloatTflite:
    """Read a .tflite file. Raises SourceError with the reason.
    as_is: accept quantized files and those with a state inside, unchanged."""
    data = path.read_bytes()
    try:
        file = tflite.read(data)
        if len(file.signatures) > 1:
            keys = ", ".join(signature.key for signature in file.signatures)
            _refuse(path, f"it has {len(file.signatures)} signatures: {keys}", "Convert it again with one of them")
        names = {
            file.subgraphs[signature.subgraph].tensors[index].label: name
            for signature in file.signatures
            for index, name in signature.names.items()
        }
        inputs = [file.main.tensors[index] for index in file.main.inputs]
        sizes = {tensor.label: tensor.signature or tensor.shape for tensor in inputs}
        # Built-in ones by name, others with what they are in front
        found = {operator for graph in file.subgraphs for operator in graph.operators}
        flex = {one.op for one in found if one.custom and one.op.startswith("Flex")}
        custom = {one.op for one in found if one.custom} - flex
        builtin = {one.op for one in found if not one.custom}
        operators = frozenset(builtin | {f"CUSTOM {op}" for op in custom} | {f"SELECT-TF {op[4:]}" for op in flex})
        # What keeps a state inside, in words
        variable = any(tensor.variable for graph in file.subgraphs for tensor in graph.tensors)
        stateful = tuple(sorted(operators & _STATEFUL)) or (("a variable tensor",) if variable else ())
        if not as_is:
            _check_original(path, file, stateful)
        # operators of a known delegate may be in a finished file; the delegate must be there to run it
        run_elsewhere = {f"CUSTOM {name}" for name in DELEGATED} if as_is else set()
        foreign = sorted(n for n in operators - run_elsewhere if n.startswith(("CUSTOM ", "SELECT-TF ")))
        if foreign:
            do = "Convert it again with built-in operators only, or pass the model that it was made from"
            _refuse(path, f"it has operators that boards' runtimes do not have: {', '.join(foreign[:5])}", do)
        data, halved = (data, 0) if as_is else _widened(data, file)
        file = tflite.read(data) if halved else file
        _check_weights(path, data, file)
    except ModuleNotFoundError as error:
        raise MissingExtraError("convert", "reading a .tflite model", where=str(path)) from error
    except (ConversionError, IndexError, ValueError, MemoryError) as error:
        _refuse(path, "this is not a TFLite model, or it is damaged", _AGAIN, error)
    called = tuple(sorted(name.removeprefix("CUSTOM ") for name in operators))
    return FloatTflite(data, names, sizes, halved, stateful, called)


def with_shapes(data: bytes, sizes: Mapping[str, Sequence[int]]) -> bytes:
    """Set input shapes, by tensor name, and every shape that follows from them.
    Raises ValueError or RuntimeError if the graph does not take them."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    # A delegate would keep the shapes inside its part of the graph to itself.
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=plain)
    for detail in interpreter.get_input_details():
        if detail["name"] in sizes:
            interpreter.resize_tensor_input(detail["index"], list(sizes[detail["name"]]), strict=True)
    interpreter.allocate_tensors()
    model = tfl.read(data)
    found = {detail["index"]: detail["shape"] for detail in interpreter.get_tensor_details()}
    for index, tensor in enumerate(model.subgraphs[0].tensors):
        if index in found and not tfl.is_constant(model, tensor):
            tensor.shape = np.asarray(found[index], np.int32)
            tensor.shapeSignature = None
    return tfl.write(model)


def _check_original(path: Path, file: tflite.TfliteFile, stateful: Sequence[str]) -> None:
    tensors = [tensor for graph in file.subgraphs for tensor in graph.tensors]
    quantized = next((tensor for tensor in tensors if tensor.dtype in _NARROW and tensor.affine is not None), None)
    also = f"; it also keeps a state inside ({', '.join(stateful)})" if stateful else ""
    if quantized is not None:
        what = f"it is already quantized ('{quantized.label}' is {quantized.dtype.lower()})"
        _refuse(path, f"{what}, and what that lost cannot be measured or undone{also}", _MADE_FROM)
    if stateful:
        do = f"Convert it again with its state as an input and the new state as an output; {_AS_IS}"
        _refuse(path, f"it keeps a state inside ({', '.join(stateful)}), and no recipe converts that", do)


def _widened(data: bytes, file: tflite.TfliteFile) -> tuple[bytes, int]:
    """Store float16 weights behind a DEQUANTIZE as float32; also return how many."""
    if not any(tensor.dtype == "FLOAT16" and tensor.constant for graph in file.subgraphs for tensor in graph.tensors):
        return data, 0
    model, widened = tfl.read(data), 0
    for graph in model.subgraphs:
        kept = []
        for operator in graph.operators or []:
            tensor = graph.tensors[operator.inputs[0]] if tfl.op_of(model, operator) == "DEQUANTIZE" else None
            if tensor is None or tfl.type_of(tensor) != "FLOAT16" or not tfl.is_constant(model, tensor):
                kept.append(operator)
                continue
            values = tfl.constant(model, tensor).astype(np.float32)
            graph.tensors[operator.outputs[0]].buffer = tfl.add_constant(model, values)
            widened += 1
        graph.operators = kept
    return tfl.write(model) if widened else data, widened


def _check_weights(path: Path, data: bytes, file: tflite.TfliteFile) -> None:
    """Raise SourceError for a NaN in a constant, or an infinity in a layer's weights."""
    weights = {
        graph.tensors[index].label
        for graph in file.subgraphs
        for operator in graph.operators
        if operator.op in _WEIGHTED
        for index in operator.inputs
        if index >= 0
    }
    constants = (
        (tensor.label, tflite.raw_bytes(data, tensor).view(tflite.DTYPES[tensor.dtype]))
        for graph in file.subgraphs
        for tensor in graph.tensors
        if tensor.constant and tensor.dtype in ("FLOAT32", "FLOAT16", "FLOAT64")
    )
    shapes.check_finite(constants, where=str(path), may_be_infinite=lambda name: name not in weights)


def _refuse(path: Path, what: str, do: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do=do) from cause


@dataclass(frozen=True, eq=False, kw_only=True)
class TfliteModel(SourceModel):
    """A source that is a float .tflite already. Its `tensor` names are the file's."""

    data: bytes = field(repr=False)
    engine: Engine = field(repr=False)

    def tflite(self) -> bytes:
        """Return the file's bytes, with float32 weights and fixed shapes."""
        return self.data

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the original in float, one item at a time."""
        return self.answered(inputs, self.engine.run, at_once=False)

    @cached_property
    def _onnx(self) -> bytes:
        try:
            import_tensorflow()
            import tf2onnx

            pictures = [spec.tensor for spec in self.inputs if spec.layout == "NHWC"]
            with tempfile.NamedTemporaryFile(suffix=".tflite") as file, quiet():
                Path(file.name).write_bytes(self.data)
                model, _ = tf2onnx.convert.from_tflite(
                    file.name, opset=float_onnx.OPSET, inputs_as_nchw=pictures or None
                )
            tensorflow_to_onnx.adopt(model, self, {spec.tensor: spec.name for spec in (*self.inputs, *self.outputs)}, 1)
        except Exception as error:
            raise tensorflow_to_onnx.export_error(self, one_line(error)) from error
        data, problem = tensorflow_to_onnx.prove_export(model, self, 1)
        if data is None:
            raise tensorflow_to_onnx.export_error(self, problem)
        return data


def load(path: Path, options: LoadOptions) -> TfliteModel:
    """Read and check the file. Raises SourceError with the reason."""
    where = str(path)
    file = read(path)
    data = _pinned(file, options, where)
    engine = _engine(data, where, _AGAIN)
    named = _named(file, engine.inputs, where, "input")
    inputs = tuple(replace(spec, layout=shapes.image_layout(spec.shape, prefer="NHWC")) for spec in named)
    tensors = [(spec.name, spec.tensor) for spec in _named(file, engine.outputs, where, "output")]
    outputs = shapes.measured_outputs(tensors, lambda arrays: _run(engine, arrays, where), inputs, where=where)
    halved = f"{file.halved} weights are stored as float16: accuracy that was lost to that is not measured"
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


def _pinned(file: FloatTflite, options: LoadOptions, where: str) -> bytes:
    """Fix every axis; the error for a free one shows the option to give."""
    names = {tensor: file.names.get(tensor, tensor) for tensor in file.shapes}
    shapes.check_named(options.shapes, list(names.values()), where=where)
    sizes: dict[str, tuple[int, ...]] = {}
    specs = list[TensorSpec]()
    for tensor, shape in file.shapes.items():
        wanted = options.shapes.get(names[tensor])
        pinned = shape if wanted is None else shapes.pin(names[tensor], shape, wanted, where=where)
        specs.append(TensorSpec(names[tensor], tensor, "float32", pinned))
        if pinned != shape or -1 in shape:
            sizes[tensor] = (1, *pinned[1:])
    shapes.check_inputs(specs, where=where)
    if not sizes:
        return file.data
    with refusing(where, "the graph does not take these shapes:", "Check --shape"):
        return with_shapes(file.data, sizes)


def _engine(data: bytes, where: str, do: str) -> Engine:
    with refusing(where, "", do):
        return load_engine("tflite", data)


def _run(engine: Engine, arrays: list[NDArray[Any]], where: str) -> list[NDArray[Any]]:
    with refusing(where, "the model does not run:", "Convert it again"):
        return engine.run(arrays)


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedTflite(SourceModel):
    """A source that is packed as it is, and its own original.
    tensors: inputs and outputs as in the file, with the contract's names."""

    data: bytes = field(repr=False)
    engine: Engine = field(repr=False)
    tensors: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]

    def finished(self) -> bytes:
        """Return the file's bytes."""
        return self.data

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run items in order; inputs and outputs are real numbers.
        With a state inside, each follows the one before."""
        took, gave = self.tensors

        def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
            raw = self.engine.run([_stored(array, spec) for array, spec in zip(arrays, took, strict=True)])
            ends = zip(raw, gave, self.outputs, strict=True)
            return [dequantize(value, tensor, np.dtype(spec.dtype)) for value, tensor, spec in ends]

        return self.answered(inputs, run, at_once=False)

    def reset(self) -> None:
        if self.state == "internal":
            self.engine.reset()

    def onnx(self) -> bytes:
        what = "a finished .tflite is packed as it is and cannot be converted"
        raise ConversionError(what, where=self.path.name)


def load_finished(path: Path, options: LoadOptions) -> FinishedTflite:
    """Read and check the file. Raises SourceError with the reason."""
    where = str(path)
    file = read(path, as_is=True)
    shapes.check_named(options.shapes, list(file.names.values()), where=where)
    if options.shapes:
        raise SourceError("a file that is packed as it is keeps its shapes", where=where, do="Leave --shape out")
    do = "Set EDGEKIT_DELEGATE to the accelerator's library" if delegated_operators(file.operators) else _AGAIN
    engine = _engine(file.data, where, do)
    took = _named(file, engine.inputs, where, "input")
    gave = _named(file, engine.outputs, where, "output")
    inputs = tuple(replace(_real(spec), layout=shapes.image_layout(spec.shape, prefer="NHWC")) for spec in took)
    shapes.check_inputs(inputs, where=where)

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        return _run(engine, [_stored(array, spec) for array, spec in zip(arrays, took, strict=True)], where)

    measured = shapes.measured_outputs([(spec.name, spec.tensor) for spec in gave], run, inputs, where=where)
    outputs = tuple(replace(_real(spec), shape=found.shape) for spec, found in zip(gave, measured, strict=True))
    engine.reset()
    pairs = () if file.stateful else shapes.state_pairs(inputs, outputs)
    kept: State = "internal" if file.stateful else "explicit" if pairs else "none"
    what = "the file is packed as it is: nothing was converted, and accuracy lost in its making is not measured"
    notes = [Note("as-is", what, "To measure it, pass the float model that it was made from")]
    if file.stateful:
        inside = f"the model keeps a state inside ({', '.join(file.stateful)}): run it with model.session()"
        notes.append(Note("internal-state", inside))
    return FinishedTflite(
        path=path,
        format="tflite",
        sha256=model_sha256(path, options),
        inputs=inputs,
        outputs=outputs,
        state=kept,
        state_pairs=pairs,
        notes=tuple(notes),
        data=file.data,
        engine=engine,
        tensors=(tuple(replace(spec, layout=real.layout) for spec, real in zip(took, inputs, strict=True)), gave),
    )


def _named(file: FloatTflite, specs: Sequence[TensorSpec], where: str, kind: str) -> tuple[TensorSpec, ...]:
    names = shapes.unique_names([file.names.get(spec.tensor, spec.tensor) for spec in specs], where=where, kind=kind)
    return tuple(replace(spec, name=name, shape=(1, *spec.shape[1:])) for name, spec in zip(names, specs, strict=True))


def _real(spec: TensorSpec) -> TensorSpec:
    """Describe the real numbers that a quantized tensor stands for."""
    return spec if spec.quantization is None else replace(spec, dtype="float32", quantization=None)


def _stored(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    if spec.quantization is None:
        return np.ascontiguousarray(array, spec.dtype)
    return quantize(array, spec.quantization, np.dtype(spec.dtype))
