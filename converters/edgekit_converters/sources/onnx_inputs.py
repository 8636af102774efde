"""What --shape and --constant do to an ONNX graph before it is run.

Rules: an axis with a name is one size wherever the inputs name it; shapes inside the graph are forgotten, because they
followed from the old ones; a pinned batch must give the answers of the original's; a constant input is gone.

    pin_shapes("net.onnx", model, options)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgekit_converters.errors import SourceError
from edgekit_converters.formats.onnx import new_constant
from edgekit_converters.sources.options import LoadOptions
from edgekit_converters.sources.shapes import check_named, pin

__all__ = ["fixed_batches", "forget_shapes", "make_constants", "pin_shapes"]


def make_constants(where: str, model: Any, options: LoadOptions) -> None:
    """In place. Raises SourceError where a constant does not fit the model."""
    inputs = _inputs(model)
    check_named(options.constants, list(inputs), where=where, option="--constant")
    for name, number in options.constants.items():
        _make_constant(where, model.graph, inputs[name], number)


def pin_shapes(where: str, model: Any, options: LoadOptions) -> None:
    """In place. Raises SourceError where a shape does not fit the model."""
    inputs = _inputs(model)
    check_named(options.shapes, list(inputs), where=where)
    symbols: dict[str, int] = {}
    for name, sizes in options.shapes.items():
        dims = inputs[name].type.tensor_type.shape.dim
        shape = pin(name, _sizes(dims), sizes, where=where)
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if axis and dim.dim_param not in ("", "?"):
                symbols[dim.dim_param] = size
            if size != -1:
                dim.Clear()
                dim.dim_value = size
    for value in inputs.values():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis and dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    if options.shapes:
        forget_shapes(model)


def _inputs(model: Any) -> dict[str, Any]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return {_plain(value.name): value for value in model.graph.input if value.name not in weights}


def fixed_batches(model: Any, options: LoadOptions) -> dict[str, int]:
    """Inputs whose batch is fixed above 1 in the file and that --shape pins to 1: name -> the file's batch."""
    found = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if _plain(value.name) in options.shapes and len(dims) > 0 and dims[0].dim_value > 1:
            found[_plain(value.name)] = int(dims[0].dim_value)
    return found


def forget_shapes(model: Any) -> None:
    """Of everything but the inputs, in place. How many axes an output has is kept."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _make_constant(where: str, graph: Any, value: Any, number: float) -> None:
    from onnx import helper

    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    shape = _sizes(value.type.tensor_type.shape.dim)
    if any(size < 0 for size in shape[1:]):
        raise SourceError(
            f"the input '{_plain(value.name)}' has free axes, so it cannot be one number",
            where=where,
            do="Pin it with --shape",
        )
    array = np.full([abs(size) for size in shape], number, dtype)
    if not np.all(array == number):
        raise SourceError(
            f"--constant gives the input '{_plain(value.name)}' {number}, which is no {dtype.name}",
            where=where,
            do="Give it a number of that kind",
        )
    graph.initializer.append(new_constant(value.name, array))
    del graph.input[[entry.name for entry in graph.input].index(value.name)]


def _sizes(dims: Sequence[Any]) -> tuple[int, ...]:
    """Sizes with -1 where the file names none: by a symbol, by nothing, or by a number below 1."""
    return tuple(int(dim.dim_value) if dim.dim_value > 0 else -1 for dim in dims)


def _plain(name: str) -> str:
    return name.removesuffix(":0")
