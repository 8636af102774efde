"""Operators of TensorFlow and TFLite that tf2onnx leaves as they are, written with ONNX's own.

    expand(model)              # Erfc(x) becomes 1 - Erf(x); the nodes in place, values keep their names

Rules: float32 alone; an operator that has no composition here stays, ONNX Runtime refuses it, and `unknown` finds its name in
what it says; whether the whole answers as the original is proved afterwards, like all that is exported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from edgekit_converters.formats.onnx import new_constant, new_node, replace, subgraphs

__all__ = ["expand", "unknown"]


class _Writer:
    """Nodes in place of one node. Constants are kept once a value."""

    def __init__(self, node: Any, constants: dict[float, str]) -> None:
        self.node, self._constants = node, constants
        self.nodes: list[Any] = []

    def __call__(self, op: str, *inputs: str | float, to: str = "") -> str:
        """Adds a node and returns its output; `to` is "" for a value of its own."""
        output = to or f"{self.node.output[0]}/expanded_{len(self.nodes)}"
        names = [self._constant(value) if isinstance(value, float) else value for value in inputs]
        self.nodes.append(new_node(op, names, [output], f"{self.node.name or output}/{len(self.nodes)}"))
        return output

    def _constant(self, value: float) -> str:
        return self._constants.setdefault(value, f"edgekit/constant_{value!r}")


def expand(model: Any) -> None:
    """In place. Graphs inside nodes are expanded as well."""
    for graph in reversed(list(subgraphs(model.graph))):  # the inner ones first: an edit copies nodes
        _graph(graph)


def unknown(problem: str) -> str:
    """The operator that ONNX Runtime does not know, out of its message; "" where the message is another."""
    found = re.search(r"No Op registered for (?:TFL_)?(\w+)", problem)
    return found.group(1) if found else ""


def _graph(graph: Any) -> None:
    constants: dict[float, str] = {}
    nodes: list[Any] = []
    for node in graph.node:
        write = _WRITERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if write is None:
            nodes.append(node)
            continue
        writer = _Writer(node, constants)
        write(writer, node)
        nodes.extend(writer.nodes)
    if constants:
        have = {tensor.name for tensor in graph.initializer}
        arrays = ((name, np.asarray(value, np.float32)) for value, name in constants.items() if name not in have)
        graph.initializer.extend(new_constant(name, array) for name, array in arrays)
    if len(nodes) != len(graph.node) or constants:
        replace(graph.node, nodes)


def _erfc(write: _Writer, node: Any) -> None:
    write("Sub", 1.0, write("Erf", node.input[0]), to=node.output[0])


def _expm1(write: _Writer, node: Any) -> None:
    write("Sub", write("Exp", node.input[0]), 1.0, to=node.output[0])


def _log1p(write: _Writer, node: Any) -> None:
    write("Log", write("Add", node.input[0], 1.0), to=node.output[0])


def _gelu(write: _Writer, node: Any) -> None:
    """x / 2 (1 + erf(x / sqrt 2)), or by tanh where the node says so."""
    (x,) = node.input
    if any(attribute.name == "approximate" and attribute.i for attribute in node.attribute):
        cube = write("Mul", write("Mul", x, x), x)
        inner = write("Add", x, write("Mul", cube, 0.044715))
        half = write("Tanh", write("Mul", inner, (2.0 / np.pi) ** 0.5))
    else:
        half = write("Erf", write("Mul", x, 0.5**0.5))
    write("Mul", write("Mul", x, 0.5), write("Add", half, 1.0), to=node.output[0])


def _nothing_where(which: int, op: str) -> Callable[[_Writer, Any], None]:
    """The product or quotient, 0 where that input is 0: 0 log 0 and 0 / 0 are 0."""

    def written(write: _Writer, node: Any) -> None:
        x, y = node.input
        other = write("Log", y) if op == "Log" else y
        value = write("Div" if op == "Div" else "Mul", x, other)
        write("Where", write("Equal", node.input[which], 0.0), 0.0, value, to=node.output[0])

    return written


_WRITERS: dict[str, Callable[[_Writer, Any], None]] = {
    "Erfc": _erfc,
    "Expm1": _expm1,
    "Log1p": _log1p,
    "TFL_GELU": _gelu,
    "Xlogy": _nothing_where(0, "Log"),
    "Xdivy": _nothing_where(0, "Div"),
    "MulNoNan": _nothing_where(1, "Mul"),
}
