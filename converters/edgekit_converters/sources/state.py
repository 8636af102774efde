"""Models that remember: which outputs are the next call's inputs.

Rules: a pair has one dtype and shape, names that differ only in words such as `in`, `out`, `new`, and a word for memory
in them; a state whose first axis is not the batch (layers come first in recurrent nets) gets a first axis of 1, because
every tensor of a contract has its batch in front.

    pairs(inputs, outputs)      # (("state", "stateN"),)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgekit_converters.formats.onnx import new_constant, new_node, nodes, replace
from edgekit_runtime.tensors import TensorSpec

__all__ = ["give_batch", "pairs", "without_batch"]

_MEMORY = frozenset(
    [
        "state",
        "states",
        "hidden",
        "h",
        "c",
        "cell",
        "cache",
        "memory",
        "mem",
        "carry",
        "context",
        "ctx",
        "past",
        "present",
    ]
)
_DIRECTION = frozenset(
    [
        "in",
        "out",
        "input",
        "output",
        "prev",
        "previous",
        "next",
        "new",
        "old",
        "n",
        "i",
        "o",
        "0",
        "1",
        "initial",
        "init",
        "final",
        "updated",
        "current",
    ]
)


def pairs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[tuple[str, str], ...]:
    """(input, output) for every state that goes in and comes out."""
    if len(inputs) < 2 or len(outputs) < 2:
        return ()  # nothing besides the state: an image in and an image out
    found, taken = [], set[str]()
    for spec in inputs:
        for output in outputs:
            same = output.dtype == spec.dtype and output.shape[1:] == spec.shape[1:]
            if same and output.name not in taken and _same_memory(spec.name, output.name):
                found.append((spec.name, output.name))
                taken.add(output.name)
                break
    return tuple(found)


def without_batch(model: Any) -> tuple[tuple[str, str], ...]:
    """(input, output) of an ONNX graph's states whose first axis is not the batch.
    Where there are any, the batch of every input becomes 1, in place. A free axis of such a state is taken for its
    batch."""
    weights = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in weights]
    if len(values) < 2 or len(model.graph.output) < 2:
        return ()
    found = {}
    for value in values:
        sizes = [int(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        output = next((out.name for out in model.graph.output if _same_memory(value.name, out.name)), None)
        if output is not None and len(sizes) > 1 and sizes[0] > 1 and sum(size < 1 for size in sizes) < 2:
            found[value.name] = output
    for value in values if found else ():
        dims = value.type.tensor_type.shape.dim
        for dim in dims if value.name in found else dims[:1]:
            if dim.dim_value < 1:
                dim.Clear()
                dim.dim_value = 1
    return tuple(found.items())


def give_batch(model: Any, states: Sequence[tuple[str, str]]) -> None:
    """A first axis of 1 for these inputs and outputs, whose sizes are fixed. In place."""
    graph = model.graph
    for name, output in states:
        value = next(value for value in graph.input if value.name == name)
        made = next(value for value in graph.output if value.name == output)
        sizes = [int(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        for owner, shape in ((name, sizes), (output, [1, *sizes])):
            graph.initializer.append(new_constant(f"{owner}/shape", np.array(shape, np.int64)))
        # The input becomes [1, *sizes]; what read it reads it reshaped
        inner = f"{value.name}/without_batch"
        _rename_readings(graph, value.name, inner)
        reshape = new_node("Reshape", [value.name, f"{value.name}/shape"], [inner], inner)
        replace(graph.node, [reshape, *graph.node])
        _set_shape(value, (1, *sizes))
        inner = f"{made.name}/without_batch"
        for node in graph.node:
            node.output[:] = [inner if old == made.name else old for old in node.output]
        _rename_readings(graph, made.name, inner)
        graph.node.append(new_node("Reshape", [inner, f"{made.name}/shape"], [made.name], f"{made.name}/batch"))
        _set_shape(made, (1, *sizes))
    if states:
        del graph.value_info[:]


def _set_shape(value: Any, sizes: Sequence[int]) -> None:
    shape = value.type.tensor_type.shape
    del shape.dim[:]
    for size in sizes:
        shape.dim.add().dim_value = size


def _rename_readings(graph: Any, old: str, new: str) -> None:
    """In the graphs inside its nodes as well, whose outputs may be a value of the outer one."""
    for node in nodes(graph):
        node.input[:] = [new if name == old else name for name in node.input]


def _same_memory(first: str, second: str) -> bool:
    a, b = _words(first), _words(second)
    memory = [word for word in a if word in _MEMORY]
    return bool(memory) and [w for w in a if w not in _DIRECTION] == [w for w in b if w not in _DIRECTION] != []


def _words(name: str) -> list[str]:
    """`stateN`, `state_n` -> state, n; `hn`, `h0` -> h, n or 0."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)
    words: list[str] = []
    for part in map(str.lower, parts):
        words += [part[0], part[1]] if part in ("hn", "cn") else [part]
    return words
