"""Who makes, who reads and who is constant in an ONNX graph that is about to be edited.

Rules: only the main graph is seen (what stands inside If, Loop or Scan is never edited, and what it reads counts as
read); constants are initializers; an edit that changes who makes or reads a value asks for a new view.

    view = GraphView(model)
    view.maker("y").op_type, [node.op_type for node in view.users("y")], view.shape("y")
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.sources.onnx_graph import reads

__all__ = ["GraphView", "attribute", "constant"]


class GraphView:
    """model: an onnx.ModelProto, kept and not copied."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.graph = model.graph
        self.nodes = list(model.graph.node)
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._makers = {name: node for node in self.nodes for name in node.output if name}
        self._users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(reads(node)):
                if name:
                    self._users.setdefault(name, []).append(node)
        self.outputs = frozenset(value.name for value in model.graph.output)
        self.inputs = frozenset(value.name for value in model.graph.input) - set(self._initializers)
        self._values = _inferred(model)

    def maker(self, name: str) -> Any:
        """The node that makes a value; None for inputs and constants."""
        return self._makers.get(name)

    def users(self, name: str) -> list[Any]:
        """Nodes that read it, each once, in the graph's order."""
        return self._users.get(name, [])

    def is_constant(self, name: str) -> bool:
        return name in self._initializers

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of an initializer, None for anything else."""
        from onnx import numpy_helper

        tensor = self._initializers.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        array = self.constant(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def computed(self, node: Any) -> list[str]:
        """The inputs of a node that are not constant."""
        return [name for name in node.input if name and not self.is_constant(name)]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """-1 for an axis of unknown size; None where not even the rank is known."""
        array = self._initializers.get(name)
        return tuple(array.dims) if array is not None else self._values.get(name, (None, 0))[0]

    def rank(self, name: str) -> int | None:
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def is_float(self, name: str) -> bool:
        """float32; a value whose type is not known is not."""
        tensor = self._initializers.get(name)
        return (tensor.data_type if tensor is not None else self._values.get(name, (None, 0))[1]) == 1

    def only_user(self, name: str) -> Any:
        """The one node that reads a value which is no output of the graph, or None."""
        users = self.users(name)
        return users[0] if len(users) == 1 and name not in self.outputs else None


def attribute(node: Any, name: str, default: Any) -> Any:
    """The value of a node's attribute."""
    from onnx import helper

    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def constant(name: str, array: NDArray[Any]) -> Any:
    """An initializer."""
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _inferred(model: Any) -> dict[str, tuple[tuple[int, ...] | None, int]]:
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # noqa: BLE001 - what cannot be inferred is unknown, and nothing is done there
        graph = model.graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        known = tensor.HasField("shape")
        sizes = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim) if known else None
        found[value.name] = (sizes, tensor.elem_type)
    return found
