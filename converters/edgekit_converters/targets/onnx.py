"""ONNX artifacts: the float graph as it is, or QDQ INT8 through onnxruntime's static quantizer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import ConversionError
from edgekit_converters.sources import onnx_graph
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.sources.quiet import quiet
from edgekit_converters.targets.artifact import Recipe
from edgekit_converters.targets.converted import Converted, Job, checked_samples, tool_versions
from edgekit_runtime.errors import EdgekitError

__all__ = ["convert"]

_TOOLS = ("onnx", "onnxruntime", "onnxslim", "tf2onnx", "tensorflow-cpu", "tensorflow", "keras")


def convert(source: SourceModel, recipe: Recipe, job: Job) -> Converted:
    """Raises ConversionError when the model cannot be written as ONNX or the quantizer fails on it."""
    import onnx

    job.progress("conversion", 0, None)
    data = source.onnx()
    model = onnx.load_model_from_string(data)
    nchw = onnx_graph.nchw_inputs(model)
    if recipe.precision == "int8":
        data = _quantized(source, model, job, nchw)
    return Converted(
        data,
        tuple(value.name for value in model.graph.input),
        tuple(value.name for value in model.graph.output),
        tool_versions(_TOOLS if source.format.startswith("keras") else _TOOLS[:3]),
        nchw,
    )


def _quantized(source: SourceModel, model: Any, job: Job, nchw: frozenset[str]) -> bytes:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "quantized.onnx"
        try:
            quantize_static(
                model,
                path,
                _reader(source, job, nchw),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )
        except EdgekitError:
            raise
        except Exception as error:
            raise ConversionError(
                f"onnxruntime's quantizer failed: {_first_line(error)}", where=f"{source.path.name}, onnx-int8-qdq",
                do="Choose onnx-f32, or a TFLite recipe where the source is Keras",
            ) from error
        return path.read_bytes()


def _reader(source: SourceModel, job: Job, nchw: frozenset[str]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Streams the samples once; the quantizer's min-max keeps two numbers a tensor, never the activations."""

        def __init__(self) -> None:
            self._feeds = _feeds(source, job, nchw)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(self._feeds, None)

    return Reader()


def _feeds(source: SourceModel, job: Job, nchw: frozenset[str]) -> Iterator[dict[str, NDArray[Any]]]:
    assert job.samples is not None
    for arrays in checked_samples(job.samples, [spec.shape[1:] for spec in source.inputs], job.progress):
        yield {
            spec.name: np.ascontiguousarray(array.transpose(0, 3, 1, 2) if spec.name in nchw else array, spec.dtype)
            for array, spec in zip(arrays, source.inputs, strict=True)
        }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
