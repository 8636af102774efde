"""What tf2onnx wrote becomes ours: the contract's names and order, boards' versions, and the proof that it answers the same.

Rules: inputs and outputs keep the contract's names and order; picture inputs are NCHW, so that ONNX Runtime's convolutions
need no transposes (the metadata says which); the result must agree with the original.

    adopt(model, source, {"image:0": "image"}, batch=-1)
    data, problem = proved(model, source, batch=-1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.formats.onnx import rename
from edgekit_converters.sources import canonical, onnx_expand, onnx_graph
from edgekit_converters.sources.model import SourceModel
from edgekit_runtime.errors import EngineError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["adopt", "failed", "proved"]


def adopt(model: Any, source: SourceModel, names: Mapping[str, str], batch: int) -> None:
    """In place. names: the file's -> the contract's. batch: 1, or -1 for a free one."""
    import onnx

    onnx_expand.expand(model)
    model.ir_version = min(model.ir_version, onnx_graph.MAX_IR)
    model.producer_name, model.producer_version, model.doc_string, model.graph.doc_string = "edgekit", "", "", ""
    model.graph.name = "network"  # a layer's or a file's name would change the bytes of one and the same model
    rename(model, dict(names))
    as_nchw = [spec.name for spec in source.inputs if spec.layout == "NHWC"]
    if as_nchw:
        onnx.helper.set_model_props(model, {onnx_graph.NCHW_KEY: ",".join(as_nchw)})
    onnx_graph.set_batch(
        model, [_onnx_spec(s, batch) for s in source.inputs], [_batched(s, batch) for s in source.outputs]
    )


def proved(model: Any, source: SourceModel, batch: int) -> tuple[bytes | None, str]:
    """The graph's bytes, folded where that is right; or None and what is wrong with it."""
    problem = ""
    for candidate in (onnx_graph.slim(model), model):
        canonical.order(candidate)
        canonical.renumber(candidate)
        data: bytes = candidate.SerializeToString(deterministic=True)
        problem = _differs(source, data, batch)
        if not problem:
            return data, ""
    return None, problem


def failed(source: SourceModel, problem: str) -> ConversionError:
    """problem: of the export or of ONNX Runtime; an operator that neither knows is named instead of either's words."""
    operator = onnx_expand.unknown(problem)
    return ConversionError(
        f"{operator} has no form in ONNX that edgekit knows" if operator else f"the ONNX export failed: {problem}",
        where=str(source.path),
        do="Choose a TFLite recipe: tflite-int8, tflite-dynamic, tflite-f32",
    )


def _batched(spec: TensorSpec, batch: int) -> TensorSpec:
    return replace(spec, shape=(batch, *spec.shape[1:]))


def _onnx_spec(spec: TensorSpec, batch: int) -> TensorSpec:
    if spec.layout != "NHWC":
        return _batched(spec, batch)
    _, height, width, channels = spec.shape
    return replace(spec, shape=(batch, channels, height, width))


def _differs(source: SourceModel, data: bytes, batch: int) -> str:
    """What is wrong with the graph, in words; empty when it agrees with the original."""
    inputs = onnx_graph.random_inputs(source.inputs, 3 if batch == -1 else 1)
    expected = source.predict(inputs)
    fed: list[NDArray[Any]] = [
        np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if spec.layout == "NHWC" else array
        for array, spec in zip(inputs, source.inputs, strict=True)
    ]
    try:
        difference = onnx_graph.disagreement(data, fed, expected, [spec.name for spec in source.outputs])
    except EngineError as error:
        return str(error)
    if difference is None:
        return ""
    return f"the output '{difference.output}' is {difference.worst:.3g} off the original's"
