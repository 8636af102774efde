"""An ONNX file as a graph: its main graph, read from the protobuf and run by ONNX Runtime.

    graph = OnnxGraph(Path("model.onnx").read_bytes())

Rules:
- a node with only constant inputs is not a layer: a weight behind DequantizeLinear is a constant, and reads as floats;
- the bias of a MatMul is the constant vector that its only reader adds;
- in a QDQ file the value of a tensor is what comes back after QuantizeLinear; the pairs make no tensors of their own;
- with only outputs in sight the graph runs with the engine's fusions, as boards run it; with inner tensors node by
  node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats import onnx_file
from edgekit_converters.formats.graph import KernelWindow, Layer, WatchedGraph, macs_by_tensor, same_pads
from edgekit_converters.formats.grid import Grid
from edgekit_converters.formats.workload import operators
from edgekit_converters.recipe.conversion_errors import ConversionError, first_line

KINDS = operators("onnx").kinds
_PAIRS = ("QuantizeLinear", "DequantizeLinear")


class OnnxGraph:
    """The Graph of an ONNX file. Raises ConversionError for other bytes."""

    format: Literal["tflite", "onnx", "ncnn"] = "onnx"

    def __init__(self, data: bytes) -> None:
        self._file = onnx_file.FoldedView(onnx_file.parse(data))
        self.__dict__["data"] = data
        self.inputs = self._file.inputs
        self.outputs = self._file.outputs

    @cached_property
    def data(self) -> bytes:
        return bytes(self._file.model.SerializeToString())

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        macs = macs_by_tensor("onnx", self.data)
        return tuple(self._layer(node, macs) for node in self._file.layers)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        found = dict.fromkeys(name for name in self.inputs if name in self._floats)
        for node in self._file.layers:
            for name in node.output:
                back = self._file.dequantized.get(name)
                if node.op_type not in _PAIRS and name in self._floats:
                    found[back if back is not None and back in self.outputs else name] = None
        found.update(dict.fromkeys(name for name in self.outputs if name in self._floats))
        return tuple(found)

    @cached_property
    def _floats(self) -> frozenset[str]:
        """Return the inputs and computed tensors that hold floats."""
        made = [name for node in self._file.layers for name in node.output if name]
        known = {name: kind for name in (*self.inputs, *made) if (kind := self._file.kind(name))}
        missing = [name for name in made if name not in known]
        floats = {name for name, kind in known.items() if kind in onnx_file.FLOATS}
        if missing:  # operators of other domains: their engine knows what they give
            kinds = {value.name: value.type for value in session(self._showing(missing), plain=True).get_outputs()}
            floats |= {
                name for name in missing if kinds[name] in ("tensor(float)", "tensor(float16)", "tensor(double)")
            }
        return frozenset(floats)

    @cached_property
    def grids(self) -> Mapping[str, Grid]:
        """Return the grid of each quantized tensor."""
        import onnx

        file = self._file
        found: dict[str, Grid] = {}
        for node in file.layers:
            if node.op_type not in _PAIRS:
                continue
            affine, zero = file.affine(node), file.constants.get(node.input[2]) if len(node.input) > 2 else None
            kind = zero.tensor.data_type if zero is not None else onnx.TensorProto.UINT8
            grid = None if affine is None else affine.grid(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)))
            if grid is not None:
                found.setdefault(node.input[0] if node.op_type == "QuantizeLinear" else node.output[0], grid)
        return found

    def constant(self, name: str) -> NDArray[Any]:
        return self._file.constants[name].array()

    def with_constants(self, values: Mapping[str, NDArray[Any]]) -> OnnxGraph:
        file = onnx_file.FoldedView(onnx_file.copy_model(self._file.model))
        for name, given in values.items():
            file.constants[name].overwrite(np.asarray(given))
        if "values" in self._file.__dict__:
            file.__dict__["values"] = self._file.values
        copy = OnnxGraph.__new__(OnnxGraph)
        kept = {key: value for key, value in self.__dict__.items() if key != "data"}
        copy.__dict__.update(kept)  # names, layers and costs stay as they are
        copy._file = file
        return copy

    @contextmanager
    def watch(self, tensors: Sequence[str] | None = None) -> Iterator[WatchedGraph]:
        file = self._file
        known = {*self._floats, *self.inputs, *self.outputs, *(name for node in file.layers for name in node.output)}
        names = [name for name in (self.tensors if tensors is None else tensors) if name in known]
        yield _OnnxTensorReader(self, {name: file.dequantized.get(name, name) for name in names})

    def _showing(self, names: Sequence[str]) -> bytes:
        """Return the file with exactly these outputs; the engine infers their types."""
        import onnx

        model = onnx_file.copy_model(self._file.model)
        known = {value.name: value for value in model.graph.output}
        onnx_file.replace_values(
            model.graph.output, [known.get(name) or onnx.ValueInfoProto(name=name) for name in names]
        )
        return bytes(model.SerializeToString())

    def _layer(self, node: Any, macs: Mapping[str, int]) -> Layer:
        outputs = tuple(name for name in node.output if name)
        weight, bias, axis = self._weights(node)
        kind = KINDS.get(node.op_type, "other")
        if node.op_type == "Conv" and onnx_file.attribute(node, "group", 1) > 1:
            kernel = self._file.shape(node.input[1])
            if kernel is not None and len(kernel) > 1 and kernel[1] == 1:
                kind = "depthwise"
        return Layer(
            name=outputs[0] if outputs else node.name,
            op=node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}",
            kind=kind,
            inputs=tuple(name for name in node.input if name and name not in self._file.folded),
            outputs=outputs,
            weight=weight,
            bias=bias,
            weight_axis=axis,
            macs=macs.get(outputs[0], 0) if outputs else 0,
            window=self._window(node),
        )

    def _weights(self, node: Any) -> tuple[str | None, str | None, int | None]:
        """Return kernel, bias, and the kernel's axis of output channels."""
        if node.op_type in ("Conv", "ConvTranspose") and self._known(node, 1) is not None:
            # A transposed kernel is [in, out / groups, ...].
            return self._known(node, 1), self._known(node, 2), 1 if node.op_type == "ConvTranspose" else 0
        if node.op_type == "Gemm" and self._known(node, 1) is not None:
            return self._known(node, 1), self._known(node, 2), 0 if onnx_file.attribute(node, "transB", 0) else 1
        if node.op_type == "MatMul":
            place = 1 if self._known(node, 1) is not None else 0
            weight = self._known(node, place)
            if weight is not None:
                rank = len(self._shape_of_constant(weight))
                bias = None
                user = self._file.only_user(node.output[0]) if place else None
                if user is not None and user.op_type == "Add":  # the constant vector that the only reader adds
                    other = [name for name in user.input if name != node.output[0]]
                    bias = other[0] if len(other) == 1 and len(self._shape_of_constant(other[0])) == 1 else None
                return weight, bias, max(rank - 2 + place, 0)
        return None, None, None

    def _shape_of_constant(self, name: str) -> tuple[int, ...]:
        constant = self._file.constants.get(name)
        return () if constant is None else tuple(constant.tensor.dims)

    def _known(self, node: Any, place: int) -> str | None:
        name = node.input[place] if place < len(node.input) else ""
        if name in self._file.constants:
            return name if name in self._file.initializers else onnx_file.float_name(name)
        return None

    def _window(self, node: Any) -> KernelWindow | None:
        kernel = self._file.shape(node.input[1]) if node.op_type == "Conv" else None
        if kernel is None or len(kernel) not in (3, 4):
            return None
        flat = len(kernel) == 3  # a sequence is a picture one high
        kernel = (*kernel[:2], 1, kernel[2]) if flat else kernel
        ones, none = ([1], [0, 0]) if flat else ([1, 1], [0, 0, 0, 0])
        strides, dilations = (tuple(onnx_file.attribute(node, key, ones)) for key in ("strides", "dilations"))
        pads = tuple(onnx_file.attribute(node, "pads", none))
        if flat:
            strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
        mode = onnx_file.attribute(node, "auto_pad", b"NOTSET")
        if mode in (b"SAME_UPPER", b"SAME_LOWER"):
            source = self._file.shape(node.input[0])
            if source is None or min(source[2:]) < 1:
                return None
            size = (1, source[2]) if flat else source[2:]
            pads = same_pads(size, kernel[2:], strides, dilations, upper=mode == b"SAME_UPPER")
        groups = int(onnx_file.attribute(node, "group", 1))
        return KernelWindow((kernel[2], kernel[3]), strides, dilations, pads, groups, channels_last=False)


class _OnnxTensorReader:
    """Runs the graph and reads tensors. names: tensor -> tensor that is read."""

    def __init__(self, graph: OnnxGraph, names: Mapping[str, str]) -> None:
        self._names = names
        inputs = set(graph.inputs)
        fetched = list(dict.fromkeys(name for name in names.values() if name not in inputs))
        self._fetched = fetched or list(graph.outputs)
        plain = not set(self._fetched) <= set(graph.outputs)
        data = graph._showing(self._fetched) if plain else graph.data
        self._session = session(data, plain=plain)
        self._inputs = [(value.name, _DTYPES.get(value.type)) for value in self._session.get_inputs()]

    def run(self, inputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if len(inputs) != len(self._inputs):
            raise ValueError(f"{len(inputs)} arrays for {len(self._inputs)} inputs")
        feed = {
            name: np.ascontiguousarray(array, dtype) for (name, dtype), array in zip(self._inputs, inputs, strict=True)
        }
        try:
            values = dict(zip(self._fetched, self._session.run(self._fetched, feed), strict=True))
        except Exception as error:  # its errors derive from Exception alone
            raise _failed(error) from error
        values.update({name: feed[name] for name in feed if name not in values})
        return {name: np.asarray(values[read], np.float32) for name, read in self._names.items()}


_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64} | {
    f"tensor({name})": np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "int64", "bool")
}


def session(data: bytes, *, plain: bool) -> Any:
    """Open a session. plain: without the engine's fusions. Raises ConversionError."""
    import onnxruntime

    from edgekit_runtime.engines.onnxruntime import session_options

    options = session_options(onnxruntime, 2)
    options.log_severity_level = 4
    if plain:
        data = unsigned_products(data)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors derive from Exception alone
        raise _failed(error) from error


def unsigned_products(data: bytes) -> bytes:
    """Turn int8 weights of integer products into uint8, exact on every processor.
    ONNX Runtime does so itself for exact arithmetic (`engines.onnxruntime`) where it may rewrite the graph."""
    if b"MatMulInteger" not in data:
        return data
    import onnx

    model = onnx_file.parse(data)
    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    taken = onnx_file.value_names(model)
    for node in model.graph.node:
        if node.op_type != "MatMulInteger" or node.input[1] not in weights:
            continue
        zero = node.input[3] if len(node.input) > 3 else ""
        if zero and zero not in weights:
            continue
        names = [onnx_file.free_name(f"{node.input[1]}_unsigned{end}", taken) for end in ("", "_zero")]
        zeros = onnx_file.array(weights[zero]) if zero else np.zeros((), np.int8)
        for name, signed in zip(names, (onnx_file.array(weights[node.input[1]]), zeros), strict=True):
            model.graph.initializer.append(
                onnx_file.new_constant(name, (signed.astype(np.int16) + 128).astype(np.uint8))
            )
        inputs = [*node.input, "", ""][:3]
        del node.input[:]
        node.input.extend([inputs[0], names[0], inputs[2], names[1]])
    return bytes(model.SerializeToString())


def _failed(error: Exception) -> ConversionError:
    return ConversionError(f"ONNX Runtime cannot run the model: {first_line(error)}")
