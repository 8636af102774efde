"""A source as float ONNX, once: what every ONNX recipe starts from (see `onnx_quantize`).

Rules: opset 17 to 21 and IR 10 at most, which boards' runtimes take; pictures NCHW; rewritten into the forms that have 8-bit
kernels only where the rewritten graph loads and answers as before.

    float_model(source, silent).data
"""

from __future__ import annotations

from typing import Any

from edgekit_converters.formats.onnx import parse
from edgekit_converters.progress import Progress
from edgekit_converters.sources import onnx_graph
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.targets.float_model import FloatModel
from edgekit_converters.targets.samples import tool_versions, turn
from edgekit_runtime.errors import EngineError

__all__ = ["float_model"]

_TOOLS = ("onnx", "onnxruntime", "onnxslim", "tf2onnx", "tensorflow-cpu", "tensorflow", "keras")


def float_model(source: SourceModel, progress: Progress) -> FloatModel:
    """The source as float ONNX in the forms that have 8-bit kernels: opset 17 to 21, IR 10 at most, pictures NCHW.

    Raises ConversionError when the model cannot be written as ONNX.
    """
    progress("conversion", 0, None)
    data = source.onnx()
    model = parse(data)
    # A file that edgekit itself once wrote says so too, but there the channels already come first.
    nchw = onnx_graph.nchw_inputs(model)
    turned = frozenset(spec.name for spec in source.inputs if spec.name in nchw and spec.layout != "NCHW")
    data = _in_better_forms(source, data, model)
    return FloatModel(
        "onnx",
        data,
        tuple(value.name for value in model.graph.input),
        tuple(value.name for value in model.graph.output),
        tool_versions(_TOOLS if source.format.startswith(("keras", "saved")) else _TOOLS[:3]),
        turned,
        sum(node.op_type == "Transpose" for node in model.graph.node),
    )


def _in_better_forms(source: SourceModel, data: bytes, model: Any) -> bytes:
    """Rewritten, where that loads and answers as before on random inputs; the bytes themselves where it does not."""
    from edgekit_converters.targets.onnx_rewrite import rewritten
    from edgekit_runtime.engines import load_engine

    better: bytes = rewritten(model).SerializeToString(deterministic=True)
    inputs = [
        turn(array, spec) if array.ndim == 4 and spec.name in onnx_graph.nchw_inputs(model) else array
        for spec, array in zip(source.inputs, onnx_graph.random_inputs(source.inputs, 1), strict=True)
    ]
    try:
        with load_engine("onnx", data, engine="onnxruntime") as engine:
            expected = engine.run(inputs)
        names = [value.name for value in model.graph.output]
        return better if onnx_graph.disagreement(better, inputs, expected, names) is None else data
    except EngineError:
        return data
