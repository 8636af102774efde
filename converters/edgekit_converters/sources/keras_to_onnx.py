"""A Keras model as float ONNX, through tf2onnx.

Rules: inputs and outputs keep the contract's names and order; picture inputs become NCHW, so that ONNX Runtime's
convolutions need no transposes (the metadata says which); the batch stays free, and is fixed at 1 only where the graph
does not work otherwise; the result must agree with the original.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.sources import canonical, onnx_graph
from edgekit_converters.sources.keras import KerasSource
from edgekit_converters.sources.quiet import import_tensorflow, quiet
from edgekit_runtime.errors import EngineError
from edgekit_runtime.tensors import TensorSpec

__all__ = ["graph_names", "to_onnx"]


def to_onnx(source: KerasSource) -> bytes:
    """Bytes. Raises ConversionError when tf2onnx cannot express the model, or what it wrote gives other answers."""
    free = all(spec.free_batch for spec in source.inputs)
    problem = ""
    for batch in (-1, 1) if free else (1,):
        data, problem = _attempt(source, batch)
        if data is not None:
            return data
    raise ConversionError(
        f"the ONNX export failed: {problem}",
        where=str(source.path),
        do="Choose a TFLite recipe: tflite-int8, tflite-dynamic, tflite-f32",
    )


def _attempt(source: KerasSource, batch: int) -> tuple[bytes | None, str]:
    try:
        model = _export(source, batch)
    except Exception as error:  # noqa: BLE001 - tf2onnx raises ValueError, RuntimeError, KeyError, ...
        return None, _one_line(error)
    for candidate in (onnx_graph.slim(model), model):
        canonical.order(candidate)
        canonical.renumber(candidate)
        data: bytes = candidate.SerializeToString(deterministic=True)
        problem = _differs(source, data, batch)
        if not problem:
            return data, ""
    return None, problem


def _export(source: KerasSource, batch: int) -> Any:
    tf = import_tensorflow()
    import onnx
    import tf2onnx

    ins, outs = graph_names(source.inputs), graph_names(source.outputs)
    signature = [
        tf.TensorSpec([None if batch == -1 else batch, *spec.shape[1:]], spec.dtype, name=name)
        for spec, name in zip(source.inputs, ins, strict=True)
    ]
    pictures = [name for spec, name in zip(source.inputs, ins, strict=True) if spec.layout == "NHWC"]
    with quiet():
        function = tf.function(lambda *x: [tf.identity(y, name=n) for y, n in zip(source.call(*x), outs, strict=True)])
        model, _ = tf2onnx.convert.from_function(
            function, input_signature=signature, opset=onnx_graph.OPSET, inputs_as_nchw=pictures or None
        )
    model.ir_version = min(model.ir_version, onnx_graph.MAX_IR)
    model.producer_name, model.producer_version, model.doc_string, model.graph.doc_string = "edgekit", "", "", ""
    model.graph.name = source.network.name
    names = {old: spec.name for old, spec in zip(_graph_inputs(model, ins), source.inputs, strict=True)}
    names |= {value.name: spec.name for value, spec in zip(model.graph.output, source.outputs, strict=True)}
    onnx_graph.rename(model, names)
    as_nchw = [spec for spec in source.inputs if spec.layout == "NHWC"]
    if as_nchw:
        onnx.helper.set_model_props(model, {onnx_graph.NCHW_KEY: ",".join(spec.name for spec in as_nchw)})
    onnx_graph.set_batch(
        model, [_onnx_spec(s, batch) for s in source.inputs], [_batched(s, batch) for s in source.outputs]
    )
    return model


def _graph_inputs(model: Any, names: Sequence[str]) -> list[str]:
    """tf2onnx may append ':0', and drops nothing: find each input by its TensorFlow name."""
    present = {value.name.removesuffix(":0"): value.name for value in model.graph.input}
    return [present[name] for name in names]


def graph_names(specs: Sequence[TensorSpec]) -> list[str]:
    """The contract's names where TensorFlow allows them (letters, digits, underscores), made so and unique elsewhere."""
    names: list[str] = []
    for index, spec in enumerate(specs):
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII)
        name = name if re.match(r"[A-Za-z]", name) else f"t_{name}"
        names.append(name if name not in names else f"{name}_{index}")
    return names


def _batched(spec: TensorSpec, batch: int) -> TensorSpec:
    return replace(spec, shape=(batch, *spec.shape[1:]))


def _onnx_spec(spec: TensorSpec, batch: int) -> TensorSpec:
    if spec.layout != "NHWC":
        return _batched(spec, batch)
    _, height, width, channels = spec.shape
    return replace(spec, shape=(batch, channels, height, width))


def _differs(source: KerasSource, data: bytes, batch: int) -> str:
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


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
