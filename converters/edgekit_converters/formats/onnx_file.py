"""An .onnx file: makers and readers of each value, constants as arrays, and edits.

    view = GraphView(parse(data))
    view.maker("y").op_type, [node.op_type for node in view.users("y")], view.shape("y")
    FoldedView(parse(data)).constants["conv1.weight"].array()

Rules:
- a view is of the main graph, and values inside If, Loop or Scan count as read by that node; an edit that changes
  makers
  or readers needs a new view, and keeps all else;
- what cannot be inferred is unknown, never an error;
- functions import the onnx package, this module does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.formats.grid import AffineGrid
from edgekit_converters.recipe.conversion_errors import ConversionError

FLOATS = frozenset({1, 10, 11, 16})
"""float, float16, double and bfloat16 in TensorProto.DataType."""

_COPIES = frozenset({"Identity", "Cast"})


def parse(data: bytes) -> Any:
    """Parse an onnx.ModelProto. Raises ConversionError for other bytes."""
    import onnx

    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError derives from Exception alone
        raise ConversionError("these bytes are not an ONNX model") from error
    if not model.graph.node:
        raise ConversionError("these bytes are not an ONNX model")
    return model


def subgraphs(graph: Any) -> Iterator[Any]:
    """Yield the graph and every graph inside its nodes (If, Loop, Scan)."""
    yield graph
    for node in graph.node:
        for inner in _bodies(node):
            yield from subgraphs(inner)


def nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes in order, each followed by those of its inner graphs."""
    for node in graph.node:
        yield node
        for inner in _bodies(node):
            yield from nodes(inner)


def _bodies(node: Any) -> Iterator[Any]:
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def reads(node: Any) -> Iterator[str]:
    """Yield the values that a node reads, inner graphs included."""
    yield from node.input
    for body in _bodies(node):
        for graph in subgraphs(body):
            yield from (value.name for value in graph.output)
            for child in graph.node:
                yield from child.input


def tensors(model: Any) -> Iterator[Any]:
    """Yield every tensor: weights, sparse weights, constants in nodes and functions."""
    for graph in subgraphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for holder in (model.graph, *model.functions):
        for item in (item for node in nodes(holder) for item in node.attribute):
            if item.HasField("t"):
                yield item.t
            if item.HasField("sparse_tensor"):
                yield from (item.sparse_tensor.values, item.sparse_tensor.indices)
            yield from item.tensors


def constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of one graph's weights and constants."""
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant":
            yield from ((node.output[0], item.t) for item in node.attribute if item.name == "value")


def array(tensor: Any) -> NDArray[Any]:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(tensor))


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return a node's attribute."""
    from onnx import helper

    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def opset_of(model: Any) -> int:
    """Return the version of the standard operators."""
    return max((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def given(graph: Any) -> list[Any]:
    """Return the inputs without weights, which IR 3 lists among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def sizes(value: Any) -> tuple[int, ...]:
    """Return an input's or output's sizes; -1 if symbolic, absent, or below 1."""
    return tuple(int(dim.dim_value) if dim.dim_value > 0 else -1 for dim in value.type.tensor_type.shape.dim)


def set_sizes(value: Any, wanted: Iterable[int]) -> None:
    """Set a value's sizes in place; -1 is a free axis called `batch`."""
    shape = value.type.tensor_type.shape
    del shape.dim[:]
    for size in wanted:
        if size == -1:
            shape.dim.add().dim_param = "batch"
        else:
            shape.dim.add().dim_value = size


def makers_behind(graph: Any, names: Iterable[str]) -> Iterator[Any]:
    """Yield the nodes that these values need, nearest first."""
    makers = {name: node for node in graph.node for name in node.output if name}
    pending, seen = list(names), set[str]()
    while pending:
        name = pending.pop(0)
        if name in seen or name not in makers:
            continue
        seen.update(makers[name].output)
        yield makers[name]
        pending += reads(makers[name])


def drop_unread(graph: Any) -> None:
    """Remove the weights that nothing reads, in place."""
    used = {value.name for value in graph.output} | {name for node in graph.node for name in reads(node)}
    replace_values(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in used])


@dataclass(frozen=True)
class Value:
    """kind: element type as in TensorProto.DataType, 0 if unknown.
    shape: -1 for a free axis, None without a rank."""

    kind: int
    shape: tuple[int, ...] | None


def values(graph: Any) -> dict[str, Value]:
    """Return the types and shapes that the graph states."""
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        sides = tuple(int(axis.dim_value) if axis.HasField("dim_value") else -1 for axis in tensor.shape.dim)
        found[value.name] = Value(int(tensor.elem_type), sides if tensor.HasField("shape") else None)
    return found


def copy_model(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def replace_values(field: Any, items: Iterable[Any]) -> None:
    """Replace a repeated field's items by copies of these, which may be its own, in place."""
    copies = [copy_model(item) for item in items]
    del field[:]
    field.extend(copies)


def new_node(op: str, inputs: Iterable[str], outputs: Iterable[str], name: str = "", **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, list(inputs), list(outputs), name, **attributes)


def new_constant(name: str, values: NDArray[Any]) -> Any:
    """Make an initializer."""
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name)


def value_names(model: Any) -> set[str]:
    """Return the names of all values, inner graphs included."""
    found = {name for node in nodes(model.graph) for name in (*node.input, *node.output)}
    for graph in subgraphs(model.graph):
        found.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    return found


def free_name(wanted: str, taken: set[str]) -> str:
    """Return the name, numbered if taken, and mark it as taken."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def name_nodes(model: Any) -> None:
    """Number nodes that share a name, in place: engines refuse duplicates."""
    for graph in subgraphs(model.graph):
        taken = set[str]()
        for node in graph.node:
            if node.name:
                node.name = free_name(node.name, taken)


def rename(model: Any, names: dict[str, str]) -> None:
    """Rename values (old -> new) in place, everywhere.
    A value that has a new name already moves out of the way."""
    names = {old: new for old, new in names.items() if old != new}
    taken = value_names(model)
    for new in list(names.values()):
        if new in taken and new not in names:
            names[new] = free_name(new, taken)
    for graph in subgraphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


class GraphView:
    """Makers and readers of each value.
    model: an onnx.ModelProto, kept and not copied.
    infer: whether to infer types and shapes that it does not state."""

    def __init__(self, model: Any, *, infer: bool = True) -> None:
        self.model = model
        self.graph = model.graph
        self.nodes = list(model.graph.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.inputs = tuple(value.name for value in model.graph.input if value.name not in self.initializers)
        self.outputs = tuple(value.name for value in model.graph.output)
        self._infer = infer
        self._makers = {name: node for node in self.nodes for name in node.output if name}
        self._users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(reads(node)):
                if name:
                    self._users.setdefault(name, []).append(node)

    @cached_property
    def values(self) -> dict[str, Value]:
        """Types and shapes, as far as they are known."""
        if not self._infer:
            return values(self.graph)
        import onnx

        try:
            return values(onnx.shape_inference.infer_shapes(self.model).graph)
        except Exception:  # noqa: BLE001 - shapes that contradict each other, or a model too large for one message
            return values(self.graph)

    def maker(self, name: str) -> Any:
        """Return the node that makes a value; None for inputs and constants."""
        return self._makers.get(name)

    def made_by(self, name: str, op: str) -> bool:
        maker = self.maker(name)
        return maker is not None and bool(maker.op_type == op)

    def users(self, name: str) -> list[Any]:
        """Return the nodes that read a value, in the graph's order."""
        return self._users.get(name, [])

    def only_user(self, name: str) -> Any:
        """Return the only reader of a value that is not a graph output, or None."""
        users = self.users(name)
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def is_constant(self, name: str) -> bool:
        return name in self.initializers

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return an initializer's value, None for anything else."""
        tensor = self.initializers.get(name)
        return None if tensor is None else array(tensor)

    def number(self, name: str) -> float | None:
        """Return the value of a one-element constant."""
        found = self.constant(name)
        return float(found.reshape(-1)[0]) if found is not None and found.size == 1 else None

    def computed_inputs(self, node: Any) -> list[str]:
        """Return a node's inputs that are not constant."""
        return [name for name in node.input if name and not self.is_constant(name)]

    def kind(self, name: str) -> int:
        """Return the element type, 0 if unknown."""
        tensor = self.initializers.get(name)
        return int(tensor.data_type) if tensor is not None else self.values.get(name, Value(0, None)).kind

    def is_float(self, name: str) -> bool:
        """Whether its type is known to be float32."""
        return self.kind(name) == 1

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape, -1 for an unknown size; None if the rank is unknown."""
        tensor = self.initializers.get(name)
        return tuple(tensor.dims) if tensor is not None else self.values.get(name, Value(0, None)).shape

    def rank(self, name: str) -> int | None:
        shape = self.shape(name)
        return None if shape is None else len(shape)


@dataclass(frozen=True)
class Constant:
    """A constant in the file.
    tensor: the TensorProto that holds it.
    affine: what its integers stand for, None for themselves."""

    tensor: Any
    affine: AffineGrid | None = None

    def array(self) -> NDArray[Any]:
        values = array(self.tensor)
        if self.affine is not None:
            return self.affine.to_float(values)
        return values.astype(np.float32) if self.tensor.data_type in FLOATS else values.copy()

    def overwrite(self, values: NDArray[Any]) -> None:
        """Replace the values in place. Raises ValueError for another shape."""
        from onnx import helper

        name, shape = self.tensor.name, tuple(self.tensor.dims)
        if values.shape != shape:
            raise ValueError(f"'{name}' has shape {shape}, not {values.shape}")
        dtype = helper.tensor_dtype_to_np_dtype(self.tensor.data_type)
        if self.affine is not None and values.dtype.kind == "f":
            values = self.affine.to_integer(values, dtype)
        self.tensor.CopyFrom(new_constant(name, values.astype(dtype)))


class FoldedView(GraphView):
    """A view in which all that is known before a run is constant.
    constants: by the name of each value that one is.
    layers: the nodes that compute, in the file's order."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.constants = {name: Constant(tensor) for name, tensor in self.initializers.items()}
        self.folded = set(self.constants)
        self.layers = [node for node in self.nodes if not self._folds(node)]

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self.constants[name].tensor.dims) if name in self.constants else super().shape(name)

    @cached_property
    def dequantized(self) -> dict[str, str]:
        """Tensor -> what comes back after its QuantizeLinear."""
        found: dict[str, str] = {}
        for node in self.layers:
            if node.op_type == "QuantizeLinear":
                back = [user for user in self.users(node.output[0]) if user.op_type == "DequantizeLinear"]
                if back:
                    found.setdefault(node.input[0], back[0].output[0])
        return found

    def affine(self, node: Any) -> AffineGrid | None:
        """Return the grid of a (De)QuantizeLinear whose scale is constant."""
        if attribute(node, "block_size", 0) or node.input[1] not in self.constants:
            return None
        scale = self.constants[node.input[1]].array()
        given = len(node.input) > 2 and node.input[2] in self.constants
        zero = self.constants[node.input[2]].array() if given else np.zeros(1)
        return AffineGrid(scale.reshape(-1), zero.astype(np.int64).reshape(-1), int(attribute(node, "axis", 1)))

    def _folds(self, node: Any) -> bool:
        """Whether a node's output is known before a run; records its constants."""
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant":
            for tensor in (item.t for item in node.attribute if item.name == "value"):
                self.constants[node.output[0]] = Constant(tensor)
        elif not inputs or any(name not in self.folded for name in inputs):
            return False
        elif node.op_type in _COPIES and inputs[0] in self.constants:
            self.constants[node.output[0]] = self.constants[inputs[0]]
        elif node.op_type == "DequantizeLinear" and inputs[0] in self.constants:
            affine = self.affine(node)
            if affine is not None:
                self.constants[node.output[0]] = Constant(self.constants[inputs[0]].tensor, affine)
                self.constants.setdefault(float_name(node.output[0]), self.constants[node.output[0]])
        self.folded.update(node.output)
        return True


def float_name(name: str) -> str:
    """Return a constant's name before onnxruntime's quantizer."""
    return name.removesuffix("_DequantizeLinear_Output")
