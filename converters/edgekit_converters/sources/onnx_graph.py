"""What is done to every float ONNX graph before anything is made of it: names, batch axis, versions, folding, proof.

Rules: opset 17 unless the source's is newer (then at most 21), IR at most 10, which is what the ONNX Runtimes of boards
take; constants folded; the result is run against the original on random data, and what differs is an error.

    model = slim(tie_down(model))
    set_batch(model, inputs, outputs)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError, first_line
from edgekit_converters.formats.onnx import copied, opset_of, reads, replace
from edgekit_converters.sources.quiet import quiet
from edgekit_runtime.tensors import TensorSpec

__all__ = [
    "MAX_IR",
    "MAX_OPSET",
    "NCHW_KEY",
    "OPSET",
    "disagreement",
    "nchw_inputs",
    "random_inputs",
    "set_batch",
    "slim",
    "tie_down",
    "unused_inputs",
]

OPSET, MAX_OPSET, MAX_IR = 17, 21, 10
NCHW_KEY = "edgekit.nchw"
"""Metadata key: the inputs (comma separated) that are NCHW in this file though the source's are NHWC."""

_TOLERANCE = 1e-3


def nchw_inputs(model: Any) -> frozenset[str]:
    """Inputs that the export turned from NHWC to NCHW."""
    for entry in model.metadata_props:
        if entry.key == NCHW_KEY:
            return frozenset(entry.value.split(","))
    return frozenset()


def unused_inputs(graph: Any) -> list[str]:
    """Inputs that no output depends on: what optimizes a graph drops them, and a contract would ask for nothing."""
    weights = {tensor.name for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output if name}
    pending, needed = [value.name for value in graph.output], set[str]()
    while pending:
        name = pending.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in makers:
            pending += reads(makers[name])
    return [value.name for value in graph.input if value.name not in needed | weights]


def set_batch(model: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Order inputs and outputs as the source's, with its shapes; a free batch axis is named `batch`. In place."""
    for values, specs in ((model.graph.input, inputs), (model.graph.output, outputs)):
        by_name = {value.name: value for value in values}
        ordered = [by_name[spec.name] for spec in specs]
        for value, spec in zip(ordered, specs, strict=True):
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for size in spec.shape:
                dim = shape.dim.add()
                if size == -1:
                    dim.dim_param = "batch"
                else:
                    dim.dim_value = size
        replace(values, ordered)
    del model.graph.value_info[:]  # they name the batch axis otherwise; onnxruntime infers them again


def tie_down(model: Any) -> Any:
    """The model at an opset and IR version that boards take. Raises ConversionError where ONNX has no way to go there."""
    from onnx import version_converter

    opset = opset_of(model)
    target = OPSET if opset < OPSET else min(opset, MAX_OPSET)
    if opset != target:
        try:
            with quiet():
                model = version_converter.convert_version(model, target)
        except Exception as error:  # the C++ side raises RuntimeError, ConvertError and others
            raise ConversionError(
                f"the model is at opset {opset} and cannot be taken to {target}: {first_line(error)}",
                do=f"Export it again at opset {OPSET}",
            ) from error
    model.ir_version = min(max(model.ir_version, 8), MAX_IR)
    weights = {tensor.name for tensor in model.graph.initializer}  # IR 3 listed them as inputs
    replace(model.graph.input, [value for value in model.graph.input if value.name not in weights])
    return model


def slim(model: Any) -> Any:
    """Constants folded and dead ends removed, by onnxslim; the model itself when onnxslim cannot, or drops an end."""
    import onnxslim

    try:
        with quiet():
            slimmed = onnxslim.slim(copied(model))
    except Exception:  # noqa: BLE001 - an optimization: the graph is right without it
        return model
    return slimmed if slimmed is not None and _ends(slimmed) == _ends(model) else model


def _ends(model: Any) -> tuple[set[str], set[str]]:
    return {value.name for value in model.graph.input}, {value.name for value in model.graph.output}


@dataclass(frozen=True)
class Difference:
    """Where and by how much an ONNX graph differs from the original."""

    output: str
    worst: float


def disagreement(
    data: bytes, inputs: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], names: Sequence[str]
) -> Difference | None:
    """Run the graph; None where every output is within 1e-3 (of its largest magnitude, at least 1) of `expected`.

    Raises EngineError when ONNX Runtime refuses the graph.
    """
    from edgekit_runtime.engines import load_engine

    with load_engine("onnx", data, engine="onnxruntime") as engine:
        results = engine.run(inputs)
    for name, got, want in zip(names, results, expected, strict=True):
        if got.shape != want.shape:
            return Difference(name, float("inf"))
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
        limit = _TOLERANCE * max(1.0, float(np.abs(want).max(initial=0.0)))
        if error.size and not float(error.max()) <= limit:  # NaN is a difference too
            return Difference(name, float(error.max()))
    return None


def random_inputs(specs: Sequence[TensorSpec], items: int, seed: int = 0) -> list[NDArray[Any]]:
    """Standard normal numbers for float inputs; 0 and 1 for integers, which are valid indexes of any table."""
    rng = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for spec in specs:
        shape, dtype = (items, *spec.shape[1:]), np.dtype(spec.dtype)
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays.append(values.astype(dtype))
    return arrays
