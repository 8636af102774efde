"""A source as float ONNX, which every ONNX recipe starts from (see `onnx_quantize`).

    float_model(source, silent).data

Rules: opset 17 to 21 and IR 10 at most, for boards' runtimes; pictures are NCHW; the graph is rewritten into forms
with 8-bit kernels only if the result loads and answers as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit_converters.formats.onnx_file import (
    GraphView,
    attribute,
    constants,
    copy_model,
    drop_unread,
    free_name,
    name_nodes,
    new_constant,
    new_node,
    parse,
    replace_values,
    value_names,
)
from edgekit_converters.recipe.artifact import FloatModel, tool_versions, transposed_pixels
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.system.errors import EngineError

_TOOLS = ("onnx", "onnxruntime", "onnxslim", "tf2onnx", "tensorflow-cpu", "tensorflow", "keras")


def float_model(source: SourceModel, progress: Progress) -> FloatModel:
    """Convert the source to float ONNX. Raises ConversionError."""
    progress("conversion", 0, None)
    data = source.onnx()
    model = parse(data)
    # A file that edgekit itself once wrote says so too, but there the channels already come first.
    nchw = float_onnx.nchw_inputs(model)
    transposed = frozenset(spec.name for spec in source.inputs if spec.name in nchw and spec.layout != "NCHW")
    ends = tuple(value.name for value in model.graph.input), tuple(value.name for value in model.graph.output)
    better: bytes = apply_edits(model).SerializeToString(deterministic=True)
    inputs = [
        transposed_pixels(array, spec) if array.ndim == 4 and spec.name in nchw else array
        for spec, array in zip(source.inputs, float_onnx.proof_inputs(source), strict=True)
    ]
    try:  # the rewritten graph is taken where it loads and answers as before
        expected = float_onnx.answers(data, inputs)
        if not float_onnx.disagreement(better, inputs, expected, ends[1]):
            data = better
    except EngineError:
        pass
    tools = tool_versions(_TOOLS if source.format.startswith(("keras", "saved")) else _TOOLS[:3])
    transposes = sum(node.op_type == "Transpose" for node in model.graph.node)
    return FloatModel("onnx", data, *ends, tools, transposed, transposes)


_SIXTH = 1.0 / 6.0


def apply_edits(model: Any) -> Any:
    """Return a copy rewritten into forms that have 8-bit kernels.

    Rules:
    - weights in Constant nodes become initializers; division by a constant becomes a product, subtraction a sum;
    - `x * clip(x + 3, 0, 6) / 6`, however it is spelt, and HardSwish become HardSigmoid and a product;
    - the mean over a picture's axes becomes GlobalAveragePool; a matrix product of rank 2 and its bias become Gemm;
    - the values that stay keep their names; graphs inside nodes stay as they are.
    """
    copy = copy_model(model)
    graph = copy.graph
    lifted = dict(list(constants(graph))[len(graph.initializer) :])
    for name, tensor in lifted.items():
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = name
    kept = [node for node in graph.node if node.op_type != "Constant" or node.output[0] not in lifted]
    replace_values(graph.node, kept)
    for step in (_no_division, _fuse_hard_swish, _hard_swish, _pool, _gemm):
        edit = _Edit(GraphView(copy))
        for node in edit.view.nodes:
            if node.domain in ("", "ai.onnx") and edit.free(node):
                step(node, edit)
        edit.carry_out(graph)
    drop_unread(graph)
    name_nodes(copy)
    del graph.value_info[:]
    return copy


class _Edit:
    """Collects new nodes and constants before the graph is changed."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.taken = value_names(view.model)
        self.replaced: dict[int, list[Any]] = {}
        self.constants: list[Any] = []

    def replace(self, node: Any, nodes: list[Any]) -> None:
        self.replaced[id(node)] = nodes

    def add(self, name: str, array: Any) -> str:
        """Add a constant; its name is numbered if taken."""
        self.constants.append(new_constant(self.new(name), np.asarray(array)))
        return str(self.constants[-1].name)

    def new(self, name: str) -> str:
        return free_name(name, self.taken)

    def free(self, node: Any) -> bool:
        return id(node) not in self.replaced

    def carry_out(self, graph: Any) -> None:
        if not self.replaced:
            return
        replace_values(graph.node, [new for node in self.view.nodes for new in self.replaced.get(id(node), [node])])
        graph.initializer.extend(self.constants)


def _no_division(node: Any, edit: _Edit) -> None:
    if node.op_type not in ("Div", "Sub") or edit.view.is_constant(node.input[0]):
        return
    value = edit.view.constant(node.input[1])
    if value is None or value.dtype != np.float32 or not value.size:
        return
    if node.op_type == "Sub":
        op, other = "Add", -value
    elif np.abs(value).min() > 1e-30:
        op, other = "Mul", (1.0 / value.astype(np.float64)).astype(np.float32)
    else:
        return
    name = edit.add(f"{node.output[0]}/{'opposite' if op == 'Add' else 'inverse'}", other)
    edit.replace(node, [new_node(op, [node.input[0], name], [node.output[0]], node.name)])


def _fuse_hard_swish(node: Any, edit: _Edit) -> None:
    """Replace Add 3, Clip 0..6, Mul by x and by 1/6, in either order, by HardSigmoid, Mul by x.

    Without x, by HardSigmoid.
    """
    view = edit.view
    if node.op_type != "Clip":
        return
    if [view.number(name) if name else None for name in (*node.input[1:], "", "")][:2] != [0.0, 6.0]:
        return
    add, first = view.maker(node.input[0]), view.only_user(node.output[0])
    if add is None or add.op_type != "Add" or view.only_user(add.output[0]) is not node:
        return
    x, three = _with_number(add, view)
    if x is None or three is None or abs(three - 3.0) > 1e-4 or first is None or first.op_type != "Mul":
        return
    sigmoid = new_node("HardSigmoid", [x], [edit.new(f"{node.output[0]}/gate")], node.name, alpha=_SIXTH, beta=0.5)
    if _is_sixth(first, view):  # clip(x + 3) / 6: a hard sigmoid, whatever reads it
        sigmoid.output[0] = first.output[0]
        edit.replace(first, [sigmoid])
    else:
        last = view.only_user(first.output[0])
        if set(first.input) != {x, node.output[0]} or last is None or not _is_sixth(last, view):
            return
        edit.replace(first, [])
        edit.replace(last, [sigmoid, new_node("Mul", [x, sigmoid.output[0]], [last.output[0]], last.name)])
    edit.replace(add, [])
    edit.replace(node, [])


def _is_sixth(node: Any, view: GraphView) -> bool:
    """Whether it is a product with 1/6."""
    number = _with_number(node, view)[1] if node.op_type == "Mul" else None
    return number is not None and abs(number - _SIXTH) < 1e-5


def _hard_swish(node: Any, edit: _Edit) -> None:
    if node.op_type != "HardSwish":
        return
    gate = edit.new(f"{node.output[0]}/gate")
    name = f"{node.name or node.output[0]}/gate"
    sigmoid = new_node("HardSigmoid", [node.input[0]], [gate], name, alpha=_SIXTH, beta=0.5)
    edit.replace(node, [sigmoid, new_node("Mul", [node.input[0], gate], [node.output[0]], node.name)])


def _pool(node: Any, edit: _Edit) -> None:
    if node.op_type != "ReduceMean":
        return
    axes = attribute(node, "axes", None)
    if axes is None and len(node.input) > 1:
        given = edit.view.constant(node.input[1])
        axes = None if given is None else given.reshape(-1).tolist()
    rank = edit.view.rank(node.input[0])
    if axes is None or rank not in (3, 4, 5) or {axis % rank for axis in axes} != set(range(2, rank)):
        return
    out = node.output[0]
    if attribute(node, "keepdims", 1):
        edit.replace(node, [new_node("GlobalAveragePool", [node.input[0]], [out], node.name)])
        return
    value = edit.new(f"{out}/pooled")
    pooled = new_node("GlobalAveragePool", [node.input[0]], [value], node.name)
    edit.replace(node, [pooled, new_node("Flatten", [value], [out], f"{node.name or out}/flat", axis=1)])


def _gemm(node: Any, edit: _Edit) -> None:
    view = edit.view
    if node.op_type != "MatMul" or view.rank(node.input[0]) != 2 or view.is_constant(node.input[0]):
        return
    weight, add = view.constant(node.input[1]), view.only_user(node.output[0])
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32 or add is None or add.op_type != "Add":
        return
    other = next((name for name in add.input if name != node.output[0]), "")
    bias = view.constant(other)
    if bias is None or bias.size != weight.shape[1] or bias.shape not in ((bias.size,), (1, bias.size)):
        return
    name = other if bias.ndim == 1 else edit.add(f"{add.output[0]}/bias", bias.reshape(-1))
    edit.replace(node, [])
    edit.replace(add, [new_node("Gemm", [node.input[0], node.input[1], name], [add.output[0]], node.name, alpha=1.0)])


def _with_number(node: Any, view: GraphView) -> tuple[str | None, float | None]:
    """Return (x, number) of an operation on a value and a number, else (None, None)."""
    for x, other in ((node.input[0], node.input[1]), (node.input[1], node.input[0])):
        number = view.number(other)
        if number is not None and not view.is_constant(x):
            return x, number
    return None, None
