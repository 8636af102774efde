"""ONNX artifacts: the float graph as it is, or QDQ INT8 through onnxruntime's static quantizer.

Rules:
- `onnx-int8-qdq`: weights symmetric int8 per channel, activations asymmetric uint8, ranges from the minimum and maximum
  of every tensor over all samples. Inputs and outputs stay float: the quantize nodes stand inside the graph;
- calibration is streamed: min-max keeps two numbers a tensor and sample (percentile and entropy keep every activation,
  and `CalibMaxIntermediateOutputs` loses ranges);
- softmax stays float: its output is what callers read, and in 8 bits it is no faster.

Why these types: EfficientNet-Lite0, 200 calibration photos, 20 labelled ImageNet photos, agreement with float on those
and 135 more, ONNX Runtime 1.31, one thread of an x86 with VNNI (float: 18 of 20, 9.4 ms):

    activations            quantized                 top-1    agreement   p50
    uint8 asymmetric       all but softmax           17 / 20     94.8 %   4.4 ms     <- chosen
    int8 asymmetric        all but softmax           18 / 20     95.5 %   7.4 ms
    int8 symmetric         all                       18 / 20     94.2 %   9.7 ms
    uint8 asymmetric       Conv and MatMul only      16 / 20     79.4 %   5.8 ms
    uint8, 7-bit weights   all but softmax           18 / 20     87.1 %   4.2 ms
    uint8, per tensor      all but softmax           18 / 20     77.4 %   4.2 ms

155 photos resolve about 4 points: uint8 and int8 are equal in accuracy and uint8 is much faster here. It was not timed
on a board. On an x86 without VNNI the pairwise 16-bit sums of uint8 x int8 may saturate.

    convert(source, RECIPES["onnx-int8-qdq"], Job(samples, silent)).data
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.progress import Progress
from edgekit_converters.sources import onnx_graph
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.targets.artifact import Recipe
from edgekit_converters.targets.converted import Converted, Job, checked_samples, tool_versions, turn
from edgekit_converters.targets.float_model import FloatModel
from edgekit_runtime.errors import EdgekitError, EngineError

__all__ = ["convert", "float_model"]

_TOOLS = ("onnx", "onnxruntime", "onnxslim", "tf2onnx", "tensorflow-cpu", "tensorflow", "keras")

_FLOAT = {"Softmax"}


def float_model(source: SourceModel, progress: Progress) -> FloatModel:
    """The source as float ONNX in the forms that have 8-bit kernels: opset 17 to 21, IR 10 at most, pictures NCHW.

    Raises ConversionError when the model cannot be written as ONNX.
    """
    import onnx

    progress("conversion", 0, None)
    data = source.onnx()
    model = onnx.load_model_from_string(data)
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


def convert(source: SourceModel, recipe: Recipe, job: Job) -> Converted:
    """Raises ConversionError when the model cannot be written as ONNX or the quantizer fails on it."""
    import onnx

    job.progress("conversion", 0, None)
    data = source.onnx()
    model = onnx.load_model_from_string(data)
    # A file that edgekit itself once wrote says so too, but there the channels already come first.
    nchw = onnx_graph.nchw_inputs(model)
    turned = frozenset(spec.name for spec in source.inputs if spec.name in nchw and spec.layout != "NCHW")
    if recipe.precision == "int8":
        data = _quantized(source, model, job, turned)
    return Converted(
        data,
        tuple(value.name for value in model.graph.input),
        tuple(value.name for value in model.graph.output),
        tool_versions(_TOOLS if source.format.startswith("keras") else _TOOLS[:3]),
        turned,
    )


def _quantized(source: SourceModel, model: Any, job: Job, turned: frozenset[str]) -> bytes:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "quantized.onnx"
        try:
            quantize_static(
                model,
                path,
                _reader(source, job, turned),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=sorted({*QDQRegistry, *QLinearOpsRegistry} - _FLOAT),
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )
        except EdgekitError:
            raise
        except Exception as error:
            raise ConversionError(
                f"onnxruntime's quantizer failed: {_first_line(error)}",
                where=f"{source.path.name}, onnx-int8-qdq",
                do="Choose onnx-f32, or a TFLite recipe where the source is Keras",
            ) from error
        return path.read_bytes()


def _reader(source: SourceModel, job: Job, turned: frozenset[str]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Streams the samples once; the quantizer's min-max keeps two numbers a tensor, never the activations."""

        def __init__(self) -> None:
            self._feeds = _feeds(source, job, turned)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(self._feeds, None)

    return Reader()


def _feeds(source: SourceModel, job: Job, turned: frozenset[str]) -> Iterator[dict[str, NDArray[Any]]]:
    assert job.samples is not None
    for arrays in checked_samples(job.samples, [spec.shape[1:] for spec in source.inputs], job.progress):
        yield {
            spec.name: np.ascontiguousarray(turn(array, spec) if spec.name in turned else array, spec.dtype)
            for array, spec in zip(arrays, source.inputs, strict=True)
        }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
