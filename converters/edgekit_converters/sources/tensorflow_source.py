"""Keras models and SavedModels as sources that TensorFlow traces, and what their graphs run.

    source = describe_traced(network, inputs, outputs, path=path, format="keras", sha256=sha256)
    nodes = reachable_nodes(graph_def, ["StatefulPartitionedCall:0"])
    foreign = beyond_arithmetic(nodes)                  # ["WriteFile"]

Rules:
- inference mode; free axes other than the batch were pinned before; a run on zeros describes the outputs;
- a network that writes to a variable while it answers keeps a state inside, and is refused;
- only what the named values reach counts: their inputs, and every function that those operators call, at any depth;
- an operator must be in the list, else it is foreign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.artifact import TensorFlowNetwork
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.foreign_code import import_tensorflow
from edgekit_converters.sources.shapes import measured_outputs
from edgekit_converters.sources.source_model import SourceModel, allowed, refusing
from edgekit_runtime.contract.spec import TensorSpec

ARITHMETIC, _WRITES = allowed("tensorflow")["arithmetic"], allowed("tensorflow")["writes"]


def reachable_nodes(graph_def: Any, values: Iterable[str]) -> list[Any]:
    """Return the nodes that these values need, with control inputs and called functions."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    top = {node.name: node for node in graph_def.node}
    nodes = _behind(top, values)
    called, waiting = set[str](), list(_called(nodes))
    while waiting:
        name = waiting.pop()
        if name in called or name not in functions:
            continue
        called.add(name)
        inside = list(
            functions[name].node_def
        )  # a function runs its stateful operators, whether it returns them or not
        nodes += inside
        waiting += _called(inside)
    return nodes


def prune(graph_def: Any, values: Iterable[str]) -> Any:
    """Return the graph reduced to what these values need."""
    pruned = type(graph_def)()
    pruned.versions.CopyFrom(graph_def.versions)
    top = _behind({node.name: node for node in graph_def.node}, values)
    pruned.node.extend(top)
    nodes = reachable_nodes(graph_def, [node.name for node in top])
    wanted = set(_called(nodes))
    pruned.library.function.extend(f for f in graph_def.library.function if f.signature.name in wanted)
    return pruned


def beyond_arithmetic(nodes: Iterable[Any]) -> list[str]:
    """Return the operators that are not in the list."""
    return sorted({node.op for node in nodes} - ARITHMETIC)


def writes_state(nodes: Iterable[Any]) -> bool:
    """Whether one of them writes to a variable."""
    return any(node.op in _WRITES for node in nodes)


def _behind(by_name: dict[str, Any], values: Iterable[str]) -> list[Any]:
    found: dict[str, Any] = {}
    waiting = [_node(value) for value in values]
    while waiting:
        name = waiting.pop()
        if name in found or name not in by_name:
            continue
        found[name] = by_name[name]
        waiting += [_node(value) for value in by_name[name].input]
    return [node for name, node in by_name.items() if name in found]  # in the file's order


def _node(value: str) -> str:
    return value.removeprefix("^").partition(":")[0]


def _called(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        for attribute in node.attr.values():
            kind = attribute.WhichOneof("value")
            if kind == "func":
                yield attribute.func.name
            elif kind == "list":
                yield from (function.name for function in attribute.list.func)


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedSource(SourceModel):
    """A source that TensorFlow can trace: Keras 3, tf_keras, a SavedModel."""

    network: TensorFlowNetwork = field(repr=False)

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the original in float on any batch size; a fixed batch runs item by item."""

        def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
            return [np.array(output) for output in self._concrete(*map(_tensor, arrays))]

        return self.answered(inputs, run, at_once=self.free_batch)

    @cached_property
    def _concrete(self) -> Any:
        return _traced(self.network, self.inputs)

    @cached_property
    def _onnx(self) -> bytes:
        from edgekit_converters.sources.tensorflow_to_onnx import to_onnx

        return to_onnx(self, self.network.call)


def describe_traced(
    network: TensorFlowNetwork, inputs: Sequence[TensorSpec], outputs: Sequence[str], *, path: Path, **described: Any
) -> TracedSource:
    """Trace it, run it once, and describe it. Raises SourceError if it cannot run.
    outputs: names.
    described: format, sha256 and notes."""
    where = str(path)
    with refusing(path, "TensorFlow cannot run it with these shapes:", "Check --shape, or save the model again"):
        concrete = _traced(network, inputs)
    graph = concrete.graph.as_graph_def()
    if writes_state(reachable_nodes(graph, [node.name for node in graph.node])):
        raise state_error([variable.name.removesuffix(":0") for variable in concrete.graph.variables], where)

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        with refusing(path, "the model does not run:", "Save it again"):
            return [np.array(output) for output in concrete(*map(_tensor, arrays))]

    specs = measured_outputs([(name, name) for name in outputs], run, inputs, where=where)
    source = TracedSource(path=path, inputs=tuple(inputs), outputs=specs, network=network, **described)
    source.__dict__["_concrete"] = concrete  # traced once; the class is frozen, its cache is not
    return source


def _traced(network: TensorFlowNetwork, inputs: Sequence[TensorSpec]) -> Any:
    tf = import_tensorflow()
    signature = [
        tf.TensorSpec([None, *spec.shape[1:]] if spec.free_batch else spec.shape, spec.dtype) for spec in inputs
    ]
    return tf.function(network.call, input_signature=signature).get_concrete_function()


def state_error(variables: Sequence[str], where: str) -> SourceError:
    """Return the error for a network that writes to a variable during inference.
    variables: the names that it reads or writes."""
    names = f"a variable (of {', '.join(variables[:3])}{', ...' if len(variables) > 3 else ''})" if variables else "one"
    do = "Give it its state as an input and return the new one as an output (for a recurrent layer: stateful=False)"
    return SourceError(f"the model keeps a state inside: answering writes to {names}", where=where, do=do)


def _tensor(array: NDArray[Any]) -> Any:
    return import_tensorflow().constant(array)
