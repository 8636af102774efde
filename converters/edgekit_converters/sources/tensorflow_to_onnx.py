"""What TensorFlow traces as float ONNX, through tf2onnx: Keras models and SavedModels.

Rules: the batch stays free, and is fixed at 1 only where the graph does not work otherwise; what tf2onnx wrote is adopted
and proved by `exported`.

    data = to_onnx(source)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit_converters.errors import one_line
from edgekit_converters.sources import exported, onnx_graph
from edgekit_converters.sources.model import TensorFlowSource
from edgekit_converters.sources.names import graph_names
from edgekit_converters.sources.quiet import import_tensorflow, quiet

__all__ = ["to_onnx"]


def to_onnx(source: TensorFlowSource) -> bytes:
    """Bytes. Raises ConversionError when tf2onnx cannot express the model, or what it wrote gives other answers."""
    free = all(spec.free_batch for spec in source.inputs)
    problem = ""
    for batch in (-1, 1) if free else (1,):
        try:
            model = _export(source, batch)
        except Exception as error:  # noqa: BLE001 - tf2onnx raises ValueError, RuntimeError, KeyError, ...
            problem = one_line(error)
            continue
        data, problem = exported.proved(model, source, batch)
        if data is not None:
            return data
    raise exported.failed(source, problem)


def _export(source: TensorFlowSource, batch: int) -> Any:
    tf = import_tensorflow()
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
    names = {old: spec.name for old, spec in zip(_graph_inputs(model, ins), source.inputs, strict=True)}
    names |= {value.name: spec.name for value, spec in zip(model.graph.output, source.outputs, strict=True)}
    exported.adopt(model, source, names, batch)
    return model


def _graph_inputs(model: Any, names: Sequence[str]) -> list[str]:
    """tf2onnx may append ':0', and drops nothing: find each input by its TensorFlow name."""
    present = {value.name.removesuffix(":0"): value.name for value in model.graph.input}
    return [present[name] for name in names]
