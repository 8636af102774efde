"""onnxruntime.quantization: static with nothing set, static over a small grid, dynamic.

The grid: minmax, percentile (99.999) and entropy, over all operations it knows or over Conv, MatMul and Gemm alone;
weights per channel, the graph pre-processed first, as its documentation advises.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from peers.feeding import samples

_PRODUCTS = ["Conv", "MatMul", "Gemm"]


def defaults(folder: Path, out: Path) -> None:
    from onnxruntime.quantization import quantize_static

    quantize_static(folder / "float.onnx", out, _reader(folder))


def dynamic(folder: Path, out: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(folder / "float.onnx", out)


def minmax_all(folder: Path, out: Path) -> str | None:
    return _static(folder, out, "MinMax", None)


def minmax_products(folder: Path, out: Path) -> str | None:
    return _static(folder, out, "MinMax", _PRODUCTS)


def percentile_all(folder: Path, out: Path) -> str | None:
    return _static(folder, out, "Percentile", None)


def percentile_products(folder: Path, out: Path) -> str | None:
    return _static(folder, out, "Percentile", _PRODUCTS)


def entropy_all(folder: Path, out: Path) -> str | None:
    return _static(folder, out, "Entropy", None)


def entropy_products(folder: Path, out: Path) -> str | None:
    return _static(folder, out, "Entropy", _PRODUCTS)


def _static(folder: Path, out: Path, method: str, kinds: list[str] | None) -> str | None:
    from onnxruntime.quantization import CalibrationMethod, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    def quantize(**more: Any) -> None:
        quantize_static(
            ready, out, _reader(folder), op_types_to_quantize=kinds, per_channel=True,
            calibrate_method=getattr(CalibrationMethod, method), **more,
        )  # fmt: skip

    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / "ready.onnx"
        quant_pre_process(folder / "float.onnx", ready)
        try:
            quantize()
        except ValueError:
            # It stops at a Gemm whose bias has two axes, in a step that can be switched off.
            quantize(extra_options={"QDQDisableWeightAdjustForInt32Bias": True})
            return "only with QDQDisableWeightAdjustForInt32Bias"
    return None


def _reader(folder: Path) -> Any:
    import onnx
    from onnxruntime.quantization import CalibrationDataReader

    value = onnx.load(folder / "float.onnx").graph.input[0]
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._samples = samples(folder, shape)

        def get_next(self) -> Any:
            sample = next(self._samples, None)
            return None if sample is None else {value.name: sample}

    return Reader()
