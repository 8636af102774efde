"""The same graph, always written the same way: the exporters number nodes from a global counter and order them by hash.

Rules: nodes stand in depth-first order from the outputs; a name loses its counter (`Less__16`) and gets the next free
one in that order; a weight is called after its first reader, because of several equal constants the exporters keep any
one. Inputs' and outputs' names are the contract's and stay.

    order(model)
    renumber(model)
"""

from __future__ import annotations

import re
from typing import Any

from edgekit_converters.formats.onnx import reads, rename, replace

__all__ = ["order", "renumber"]

_COUNTER = re.compile(r"__\d+")


def order(model: Any) -> None:
    """Sort nodes and weights of the main graph, in place."""
    graph = model.graph
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output}
    wanted = [makers[value.name] for value in graph.output if value.name in makers]
    placed, sequence = set[int](), list[int]()
    for start in (*wanted, *range(len(graph.node))):
        stack = [(start, False)]
        while stack:
            index, ready = stack.pop()
            if index in placed:
                continue
            if ready:
                placed.add(index)
                sequence.append(index)
                continue
            stack.append((index, True))
            needs = [makers[name] for name in reads(graph.node[index]) if name in makers]
            stack.extend((need, False) for need in reversed(needs) if need not in placed)
    replace(graph.node, [graph.node[index] for index in sequence])
    weights = {tensor.name: tensor for tensor in graph.initializer}
    used = dict.fromkeys(name for node in graph.node for name in reads(node) if name in weights)
    replace(graph.initializer, [weights[name] for name in (*used, *sorted(set(weights) - set(used)))])


def renumber(model: Any) -> None:
    """Give nodes, weights and values names that depend on the graph alone, in place."""
    graph = model.graph
    keep = {value.name for value in (*graph.input, *graph.output)}
    taken, names = set(keep), dict[str, str]()
    nodes = set[str]()
    for node in graph.node:
        node.name = _free(_COUNTER.sub("", node.name) or node.op_type, nodes)
        for position, name in enumerate(node.output):
            if name and name not in keep:
                names[name] = _free(f"{node.name}:{position}", taken)
    weights = {tensor.name for tensor in graph.initializer} - keep
    for node in graph.node:
        for position, name in enumerate(reads(node)):
            if name in weights and name not in names:
                names[name] = _free(f"{node.name}/weight_{position}", taken)
    # In two steps, so that no new name is an old one that has yet to go.
    rename(model, {old: f"edgekit/{i}" for i, old in enumerate(names)})
    rename(model, {f"edgekit/{i}": new for i, new in enumerate(names.values())})


def _free(name: str, taken: set[str]) -> str:
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate
