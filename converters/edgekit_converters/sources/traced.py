"""Sources that TensorFlow traces: one class for Keras and SavedModel alike.

Rules: inference mode; what the file leaves free beside the batch was pinned before; a network that writes to a variable
while it answers keeps a state to itself, and is refused; outputs are described by running the network on zeros.

    source = described(network, Origin(path, "keras", sha256), inputs, outputs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import SourceError, one_line
from edgekit_converters.sources import tensorflow_graph
from edgekit_converters.sources.model import Description, Note
from edgekit_converters.sources.quiet import import_tensorflow, quiet
from edgekit_converters.sources.shapes import measured_outputs
from edgekit_runtime.tensors import TensorSpec

__all__ = ["Network", "Origin", "TracedSource", "described", "keeps_state"]


@dataclass(frozen=True)
class Network:
    """function: flat tensors in the order of the inputs -> a flat list in that of the outputs. variables: TensorFlow's, and
    whatever else the function reads (tables). tools: distributions that read the file, besides TensorFlow.
    """

    function: Callable[..., list[Any]]
    variables: Sequence[Any] = ()
    tools: tuple[str, ...] = ()
    holds: Any = None  # TensorFlow frees what nobody holds


@dataclass(frozen=True)
class Origin:
    """Where a network came from."""

    path: Path
    format: str
    sha256: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedSource(Description):
    """See `model.TensorFlowSource`."""

    network: Network = field(repr=False)

    @property
    def variables(self) -> Sequence[Any]:
        return self.network.variables

    @property
    def tools(self) -> tuple[str, ...]:
        return self.network.tools

    def call(self, *inputs: Any) -> list[Any]:
        """The network on TensorFlow tensors, in inference mode: what a `tf.function` of it traces."""
        return self.network.function(*inputs)

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The original, in float, on a batch of any size; a batch that is fixed is run once an item."""
        return self.answered(inputs, self._run, at_once=self.free_batch)

    def _run(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        return [np.array(output) for output in self._concrete(*(_tensor(array) for array in arrays))]

    @cached_property
    def _concrete(self) -> Any:
        return _traced(self.network, self.inputs)

    def onnx(self) -> bytes:
        """Float ONNX, opset 17, IR 10; image inputs are NCHW there (see `sources.exported`)."""
        return self._onnx

    @cached_property
    def _onnx(self) -> bytes:
        from edgekit_converters.sources.exported import to_onnx

        return to_onnx(self)


def described(network: Network, origin: Origin, inputs: Sequence[TensorSpec], outputs: Sequence[str]) -> TracedSource:
    """Trace it, run it once, and say what it is. outputs: names. Raises SourceError where it cannot be run."""
    where = str(origin.path)
    with quiet():
        concrete = _traced_for(network, inputs, where)
    graph = concrete.graph.as_graph_def()
    if tensorflow_graph.writes_state(tensorflow_graph.reached(graph, [node.name for node in graph.node])):
        raise keeps_state([variable.name.removesuffix(":0") for variable in concrete.graph.variables], where)

    def run(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        try:
            with quiet():
                return [np.array(output) for output in concrete(*(_tensor(array) for array in arrays))]
        except Exception as error:
            raise SourceError(f"the model does not run: {one_line(error)}", where=where, do="Save it again") from error

    specs = measured_outputs([(name, name) for name in outputs], run, inputs, where=where)
    source = TracedSource(
        path=origin.path,
        format=origin.format,
        sha256=origin.sha256,
        inputs=tuple(inputs),
        outputs=specs,
        notes=origin.notes,
        network=network,
    )
    source.__dict__["_concrete"] = concrete  # traced once; the class is frozen, its cache is not
    return source


def _traced_for(network: Network, inputs: Sequence[TensorSpec], where: str) -> Any:
    try:
        return _traced(network, inputs)
    except Exception as error:
        raise SourceError(
            f"TensorFlow cannot run it with these shapes: {one_line(error)}",
            where=where,
            do="Check --shape, or save the model again",
        ) from error


def _traced(network: Network, inputs: Sequence[TensorSpec]) -> Any:
    tf = import_tensorflow()
    signature = [
        tf.TensorSpec([None, *spec.shape[1:]] if spec.free_batch else spec.shape, spec.dtype) for spec in inputs
    ]
    return tf.function(network.function, input_signature=signature).get_concrete_function()


def keeps_state(variables: Sequence[str], where: str) -> SourceError:
    """The error for a network that writes to a variable while it answers. variables: what it reads or writes, by name."""
    names = f"a variable (of {', '.join(variables[:3])}{', ...' if len(variables) > 3 else ''})" if variables else "one"
    return SourceError(
        f"the model keeps a state inside: answering writes to {names}",
        where=where,
        do="Give it its state as an input and return the new one as an output (for a recurrent layer: stateful=False)",
    )


def _tensor(array: NDArray[Any]) -> Any:
    return import_tensorflow().constant(array)
