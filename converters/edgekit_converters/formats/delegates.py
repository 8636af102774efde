"""What a phone's or browser's accelerators leave to its processor. Pure functions.

    network = read_network("tflite", data)
    for delegate in delegates_for("android", "tflite"):
        split(delegate, network).left[0].op

Rules:
- `delegates.toml` has each accelerator's table with its source; an operator that it does not name is left behind;
- an operator is taken if its name, version, element types, axes and sizes fit; what else its source asks for is not
  checked, and such operators are listed as `conditional`;
- parts are TFLite's: all that is ready and taken, then all that is ready and not, in turns; a limit keeps the largest;
- an operator of constants alone is none, a loop or a branch is one, and a free batch is one item; engines fuse some
  operators before they divide a graph.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.graph import macs_by_tensor
from edgekit_converters.formats.onnx_file import FoldedView, parse, reads
from edgekit_profiles.schema import parse_toml
from edgekit_runtime.system.errors import MissingExtraError

TARGETS = ("android", "ios", "web")
Why = Literal["operator", "version", "type", "axes", "size", "part"]
"""Not in the table; a later version; an element type; too many or few axes; a size known only at run time; cut off."""


Shape = tuple[int, ...]
"""-1 for a size that is known only at run time."""


@dataclass(frozen=True)
class GraphOperator:
    """One operator.
    inputs, outputs: computed tensors. types: their element types. shapes: in ONNX of the inputs alone.
    first, rank: element type and axes of its first input, which may be a constant."""

    op: str
    version: int
    macs: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: frozenset[str]
    shapes: tuple[Shape, ...]
    first: str
    rank: int

    @property
    def layer(self) -> str:
        return self.outputs[0] if self.outputs else self.op


@dataclass(frozen=True)
class OperatorGraph:
    """A model file's main graph.
    inputs: their shapes. wide: inputs and outputs of 64-bit integers."""

    nodes: tuple[GraphOperator, ...]
    inputs: dict[str, Shape]
    wide: tuple[str, ...]

    @property
    def free(self) -> tuple[str, ...]:
        """Inputs with a size, besides the batch, that is known only at run time."""
        return tuple(name for name, shape in self.inputs.items() if _has_free([shape]))


@dataclass(frozen=True)
class Delegate:
    """An accelerator's table: the keys of `delegates.toml`."""

    name: str
    title: str
    format: str
    targets: tuple[str, ...]
    source: str
    note: str
    types: frozenset[str]
    also: dict[str, str]
    judged: str
    axes: int
    ranks: dict[str, list[int]]
    versions: dict[str, int]
    shapes: str
    parts: int
    least: int
    operators: frozenset[str]
    conditional: frozenset[str]

    def refuses(self, node: GraphOperator) -> Why | None:
        """Say why it does not take an operator, whatever its neighbours are."""
        if node.op not in self.operators:
            return "operator"
        if self.foreign(node):
            return "type"
        if node.version > self.versions.get(node.op, self.versions.get("*", node.version)):
            return "version"
        if max(map(len, node.shapes), default=0) > self.axes or node.rank not in self.ranks.get(node.op, [node.rank]):
            return "axes"
        return "size" if self.shapes in ("operator", "input") and _has_free(node.shapes) else None

    def foreign(self, node: GraphOperator) -> frozenset[str]:
        """Return the element types of an operator that it does not take."""
        judged = node.types if self.judged == "all" else frozenset({node.first})
        return judged - self.types - {*self.also.get(node.op, "").split()}

    def stopped_by(self, network: OperatorGraph) -> bool:
        """Whether a size that is known only at run time keeps it from taking anything."""
        if self.shapes == "graph":
            return any(_has_free(node.shapes) for node in network.nodes)
        return self.shapes == "input" and _has_free(network.inputs.values())


@dataclass(frozen=True)
class LeftBehind:
    """Operators of one name that stay on the processor for one reason.
    layer: the first of them. types: those that it does not take, if they are the reason."""

    op: str
    why: Why
    count: int
    layer: str
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Division:
    """taken, parts: operators on the accelerator, and the parts that they run in.
    share: of the multiply-accumulates, None if they are not known.
    conditional: taken if conditions hold that were not checked."""

    delegate: Delegate
    taken: int
    parts: int
    share: float | None
    left: tuple[LeftBehind, ...]
    conditional: tuple[str, ...]


@functools.cache
def _tables() -> tuple[Delegate, ...]:
    text = (importlib.resources.files("edgekit_converters.formats") / "delegates.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = parse_toml(text)
    found = []
    for name, own in tables.items():
        base = {"also": {}, "ranks": {}, "versions": {}, "conditional": "", **tables.get(own.pop("like", ""), {})}
        row = {**base, **own, "also": {**base["also"], **own.get("also", {})}}
        row |= {key: frozenset(row[key].split()) for key in ("types", "operators", "conditional")}
        found.append(Delegate(name, **{**row, "targets": tuple(row["targets"])}))
    return tuple(found)


def delegates_for(target: str, format: str) -> tuple[Delegate, ...]:  # noqa: A002
    """target: one of TARGETS."""
    return tuple(one for one in _tables() if target in one.targets and one.format == format)


def _has_free(shapes: Iterable[Shape]) -> bool:
    return any(min(shape[1:], default=0) < 0 for shape in shapes)


def split(delegate: Delegate, network: OperatorGraph) -> Division:
    """Divide a network between the accelerator and the processor."""
    nodes, stopped = network.nodes, delegate.stopped_by(network)
    why = [delegate.refuses(node) or ("size" if stopped else None) for node in nodes]
    groups = sorted(_parts(nodes, [one is None for one in why]), key=len, reverse=True)
    kept = [group for group in groups if len(group) >= delegate.least][: delegate.parts or None]
    taken = {place for group in kept for place in group}
    left: dict[tuple[str, Why], list[GraphOperator]] = {}
    for place, (node, one) in enumerate(zip(nodes, why, strict=True)):
        if place not in taken:
            left.setdefault((node.op, one or "part"), []).append(node)
    behind = []
    for (op, one), own in sorted(left.items(), key=lambda item: -len(item[1])):
        types = {kind for node in own for kind in delegate.foreign(node) if one == "type"}
        behind.append(LeftBehind(op, one, len(own), own[0].layer, tuple(sorted(types))))
    macs = sum(node.macs for node in nodes)
    share = sum(nodes[place].macs for place in taken) / macs if macs else None
    conditional = sorted({nodes[place].op for place in taken} & delegate.conditional)
    return Division(delegate, len(taken), len(kept), share, tuple(behind), tuple(conditional))


def _parts(nodes: Sequence[GraphOperator], taken: Sequence[bool]) -> list[list[int]]:
    """Group the operators that are taken, each group as large as the order of the data allows."""
    made = {name for node in nodes for name in node.outputs}
    waits = [{*node.inputs} & made for node in nodes]
    readers: dict[str, list[int]] = {}
    ready: dict[bool, deque[int]] = {True: deque(), False: deque()}
    for place, names in enumerate(waits):
        for name in names:
            readers.setdefault(name, []).append(place)
        if not names:
            ready[taken[place]].append(place)
    found, kind = list[list[int]](), False
    while ready[True] or ready[False]:  # operators that wait for each other, which no engine runs, are never ready
        group = []
        while ready[kind]:
            group.append(ready[kind].popleft())
            for name in nodes[group[-1]].outputs:
                for place in readers.pop(name, ()):
                    waits[place].discard(name)
                    if not waits[place]:
                        ready[taken[place]].append(place)
        if kind and group:
            found.append(group)
        kind = not kind
    return found


def read_network(format: str, data: bytes) -> OperatorGraph:  # noqa: A002
    """Read a model file's main graph. format: `tflite` or `onnx`.
    Raises ConversionError for other bytes, MissingExtraError if the tools that read them are missing."""
    try:
        return (_onnx if format == "onnx" else _tflite)(data, macs_by_tensor(format, data))
    except ImportError as error:
        raise MissingExtraError("convert", f"reading the operators of {format} files") from error


_ORDERED = frozenset({"CALL_ONCE", "IF", "WHILE"})
_SIZES = {
    "BROADCAST_TO": (1,), "EXPAND_DIMS": (1,), "FILL": (0,), "PAD": (1,), "PADV2": (1,), "RANGE": (0, 1, 2),
    "RESHAPE": (1,), "RESIZE_BILINEAR": (1,), "RESIZE_NEAREST_NEIGHBOR": (1,), "SLICE": (2,), "STRIDED_SLICE": (1, 2),
    "TILE": (1,), "TOPK_V2": (1,), "TRANSPOSE_CONV": (0,),
}  # fmt: skip
"""Where a TFLite operator reads how large its result is. If that is computed, the size is known only at run time."""


def _tflite(data: bytes, macs: Mapping[str, int]) -> OperatorGraph:
    graph = tflite.read(data).main
    tensors, nodes, last = graph.tensors, list[GraphOperator](), ""
    for place, operator in enumerate(graph.operators):
        if operator.outputs and all(index in graph.folded for index in operator.outputs):
            continue
        given = [tensors[i] for i in operator.inputs if i >= 0]
        read = [tensors[i] for i in operator.inputs if i >= 0 and i not in graph.folded]
        made = [tensors[i] for i in operator.outputs]
        first = given[2 if operator.op == "TRANSPOSE_CONV" else 0] if given else None
        shapes = [one.signature or one.shape for one in (*read, *made)]
        sizes = [operator.inputs[place] for place in _SIZES.get(operator.op, ()) if place < len(operator.inputs)]
        if any(index >= 0 and index not in graph.folded for index in sizes):
            shapes.append((1, -1))
        types = frozenset(one.dtype for one in (*read, *made))
        before = last
        if "RESOURCE" in types or operator.op in _ORDERED:
            last = f"#{place}"  # what keeps a state stays in its order
        nodes.append(GraphOperator(
            operator.op, operator.version, macs.get(made[0].name, 0) if made else 0,
            (*(one.name for one in read), *([before] if before and last != before else [])),
            (*(one.name for one in made), *([last] if last != before else [])),
            types, tuple(shapes), first.dtype if first else "", len(first.shape) if first else 0,
        ))  # fmt: skip
    sides = {tensors[i].name: tensors[i] for i in (*graph.inputs, *graph.outputs)}
    wide = tuple(name for name, one in sides.items() if one.dtype == "INT64")
    return OperatorGraph(tuple(nodes), {tensors[i].name: tensors[i].signature for i in graph.inputs}, wide)


def _onnx(data: bytes, macs: Mapping[str, int]) -> OperatorGraph:
    from onnx import TensorProto

    view = FoldedView(parse(data))

    def kind(name: str) -> str:
        return str(TensorProto.DataType.Name(view.kind(name))).lower()

    def shape(name: str) -> Shape:
        return (-1, -1) if (known := view.shape(name)) is None else known

    nodes = []
    for node in view.layers:
        given = [name for name in dict.fromkeys(reads(node)) if name]
        read = tuple(name for name in given if name not in view.folded)
        made = tuple(filter(None, node.output))
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        nodes.append(GraphOperator(
            op, 0, macs.get(made[0], 0) if made else 0, read, made, frozenset(map(kind, (*read, *made))),
            tuple(map(shape, read)), kind(given[0]) if given else "", len(shape(given[0])) if given else 0,
        ))  # fmt: skip
    wide = tuple(name for name in dict.fromkeys((*view.inputs, *view.outputs)) if kind(name) == "int64")
    return OperatorGraph(tuple(nodes), {name: shape(name) for name in view.inputs}, wide)
