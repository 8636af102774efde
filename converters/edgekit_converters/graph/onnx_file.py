"""The protobuf of an ONNX file, indexed: who makes and who reads each tensor, which are constants, which are floats.

file = OnnxFile(model)
file.constants["conv1.weight"].array()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.formats import Affine

__all__ = ["Constant", "OnnxFile", "attribute", "failed", "float_name", "session", "unsigned_products"]

_FLOATS = frozenset({1, 10, 11, 16})  # float, float16, double and bfloat16 in TensorProto.DataType
_COPIES = frozenset({"Identity", "Cast"})


@dataclass(frozen=True)
class Constant:
    """tensor: the TensorProto that holds it. affine: how its integers stand for floats, where they do."""

    tensor: Any
    affine: Affine | None = None

    def array(self) -> NDArray[Any]:
        from onnx import numpy_helper

        values = np.asarray(numpy_helper.to_array(self.tensor))
        if self.affine is not None:
            return self.affine.to_float(values)
        return values.astype(np.float32) if self.tensor.data_type in _FLOATS else values.copy()

    def overwrite(self, values: NDArray[Any]) -> None:
        """In place. Raises ValueError for another shape."""
        from onnx import helper, numpy_helper

        name, shape = self.tensor.name, tuple(self.tensor.dims)
        if values.shape != shape:
            raise ValueError(f"'{name}' has shape {shape}, not {values.shape}")
        dtype = helper.tensor_dtype_to_np_dtype(self.tensor.data_type)
        if self.affine is not None and values.dtype.kind == "f":
            values = self.affine.to_integer(values, dtype)
        self.tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values, dtype), name))


class OnnxFile:
    """An index over a ModelProto, which it never changes. Only the main graph is looked at."""

    def __init__(self, model: Any) -> None:
        self.model = model
        graph = model.graph
        self.users: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self.constants: dict[str, Constant] = {tensor.name: Constant(tensor) for tensor in graph.initializer}
        self.folded: set[str] = set(self.constants)
        self.computed: list[Any] = []
        for node in graph.node:
            self._place(node)
        self.inputs = tuple(value.name for value in graph.input if value.name not in self.constants)
        self.outputs = tuple(value.name for value in graph.output)

    @cached_property
    def types(self) -> dict[str, tuple[int, tuple[int, ...] | None]]:
        """Element type and shape of the tensors that could be worked out; a free axis is -1."""
        import onnx

        try:
            inferred = onnx.shape_inference.infer_shapes(self.model).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            inferred = self.model.graph  # too large for one message, or of shapes that contradict each other
        found = {}
        for value in (*inferred.input, *inferred.value_info, *inferred.output):
            tensor = value.type.tensor_type
            sides = tuple(axis.dim_value if axis.HasField("dim_value") else -1 for axis in tensor.shape.dim)
            found[value.name] = (tensor.elem_type, sides if tensor.HasField("shape") else None)
        return found

    @cached_property
    def floats(self) -> frozenset[str]:
        """The computed tensors and inputs that hold floats."""
        made = [name for node in self.computed for name in node.output if name]
        known = {name: self.types[name][0] for name in (*self.inputs, *made) if self.types.get(name, (0,))[0]}
        missing = [name for name in made if name not in known]
        floats = {name for name, kind in known.items() if kind in _FLOATS}
        if missing:  # operators of other domains: their engine knows what they give
            kinds = {value.name: value.type for value in session(self.with_outputs(missing), plain=True).get_outputs()}
            floats |= {
                name for name in missing if kinds[name] in ("tensor(float)", "tensor(float16)", "tensor(double)")
            }
        return frozenset(floats)

    @cached_property
    def dequantized(self) -> dict[str, str]:
        """Tensor -> what comes back after it was put into integers, where the file does that to it."""
        found: dict[str, str] = {}
        for node in self.computed:
            if node.op_type == "QuantizeLinear":
                back = [user for user in self.users.get(node.output[0], []) if user.op_type == "DequantizeLinear"]
                if back:
                    found.setdefault(node.input[0], back[0].output[0])
        return found

    def shape(self, name: str) -> tuple[int, ...] | None:
        if name in self.constants:
            return tuple(self.constants[name].tensor.dims)
        return self.types.get(name, (0, None))[1]

    def with_outputs(self, names: list[str]) -> bytes:
        """The file with exactly these outputs. A type is not needed: the engine works it out."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {value.name: value for value in self.model.graph.output}
        del model.graph.output[:]
        model.graph.output.extend([known.get(name, onnx.ValueInfoProto(name=name)) for name in names])
        return bytes(model.SerializeToString())

    def _place(self, node: Any) -> None:
        """Among what is computed, or what is known before anything runs."""
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant":
            for item in node.attribute:
                if item.name == "value":
                    self.constants[node.output[0]] = Constant(item.t)
        elif not inputs or any(name not in self.folded for name in inputs):
            self.computed.append(node)
            return
        elif node.op_type in _COPIES and inputs[0] in self.constants:
            self.constants[node.output[0]] = self.constants[inputs[0]]
        elif node.op_type == "DequantizeLinear" and inputs[0] in self.constants:
            affine = self.affine(node)
            if affine is not None:
                self.constants[node.output[0]] = Constant(self.constants[inputs[0]].tensor, affine)
                self.constants.setdefault(float_name(node.output[0]), self.constants[node.output[0]])
        self.folded.update(node.output)

    def affine(self, node: Any) -> Affine | None:
        """Of a QuantizeLinear or DequantizeLinear whose scale is a constant."""
        if attribute(node, "block_size", 0) or node.input[1] not in self.constants:
            return None
        scale = self.constants[node.input[1]].array()
        given = len(node.input) > 2 and node.input[2] in self.constants
        zero = self.constants[node.input[2]].array() if given else np.zeros(1)
        return Affine(scale.reshape(-1), zero.astype(np.int64).reshape(-1), int(attribute(node, "axis", 1)))


def float_name(name: str) -> str:
    """What a constant was called before onnxruntime's quantizer put it into integers."""
    return name.removesuffix("_DequantizeLinear_Output")


def session(data: bytes, *, plain: bool) -> Any:
    """plain: node by node, as the file says; otherwise with the engine's own fusions. Raises ConversionError."""
    import onnxruntime

    from edgekit_runtime.engines.onnx import session_options

    options = session_options(onnxruntime, 2)
    options.log_severity_level = 4
    if plain:
        data = unsigned_products(data)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors derive from Exception alone
        raise failed(error) from error


def unsigned_products(data: bytes) -> bytes:
    """The model with int8 weights of integer products as uint8: the same sums, and exact on every processor.

    ONNX Runtime does so itself for exact arithmetic (`engines.onnx`), but only where it may rewrite the graph.
    """
    if b"MatMulInteger" not in data:
        return data
    import onnx
    from onnx import numpy_helper

    model = onnx.ModelProto.FromString(data)
    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    for index, node in enumerate(model.graph.node):
        if node.op_type != "MatMulInteger" or node.input[1] not in weights:
            continue
        zero = node.input[3] if len(node.input) > 3 else ""
        if zero and zero not in weights:
            continue
        names = [f"{node.input[1]}_unsigned_{index}", f"{node.input[1]}_unsigned_{index}_zero"]
        zeros = numpy_helper.to_array(weights[zero]) if zero else np.zeros((), np.int8)
        for name, array in zip(names, (numpy_helper.to_array(weights[node.input[1]]), zeros), strict=True):
            model.graph.initializer.append(
                numpy_helper.from_array((array.astype(np.int16) + 128).astype(np.uint8), name)
            )
        inputs = [*node.input, "", ""][:3]
        del node.input[:]
        node.input.extend([inputs[0], names[0], inputs[2], names[1]])
    return bytes(model.SerializeToString())


def failed(error: Exception) -> ConversionError:
    lines = str(error).strip().splitlines()
    return ConversionError(f"ONNX Runtime cannot run the model: {lines[0] if lines else type(error).__name__}")


def attribute(node: Any, name: str, default: Any) -> Any:
    import onnx

    found: Iterator[Any] = (onnx.helper.get_attribute_value(item) for item in node.attribute if item.name == name)
    return next(found, default)
