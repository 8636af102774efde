"""A source's ONNX graph as every target takes it: tied to versions, folded, in canonical order, named, and proved.

data = finished(model, source)
"""

from __future__ import annotations

from typing import Any

from edgekit_converters.errors import ConversionError
from edgekit_converters.formats.onnx import copied, opset_of, rename
from edgekit_converters.sources import canonical, onnx_graph
from edgekit_converters.sources.model import SourceModel
from edgekit_runtime.errors import EngineError

__all__ = ["finished"]


def finished(original: Any, source: SourceModel) -> bytes:
    """original: a graph whose values are called as the specs' `tensor`. Raises ConversionError where its answers moved."""
    specs = (*source.inputs, *source.outputs)
    inputs = onnx_graph.random_inputs(source.inputs, 3 if all(spec.free_batch for spec in specs) else 1)
    expected = source.predict(inputs)
    model = onnx_graph.tie_down(copied(original))
    problem = ""
    for candidate in (onnx_graph.slim(model), model):
        canonical.order(candidate)
        # Contract names in place of the file's (they differ where TensorFlow left ':0').
        rename(candidate, {spec.tensor: spec.name for spec in specs})
        onnx_graph.set_batch(candidate, source.inputs, source.outputs)
        data: bytes = candidate.SerializeToString(deterministic=True)
        try:
            difference = onnx_graph.disagreement(data, inputs, expected, [spec.name for spec in source.outputs])
        except EngineError as error:
            problem = str(error)
            continue
        if difference is None:
            return data
        problem = f"the output '{difference.output}' moved by {difference.worst:.3g}"
    before, after = opset_of(original), opset_of(model)
    step = "writing the graph anew" if before == after else f"taking the graph from opset {before} to {after}"
    raise ConversionError(
        f"{step} failed: {problem}", where=str(source.path), do=f"Export it again at opset {onnx_graph.OPSET}"
    )
