"""ONNX and TFLite artifacts through OpenVINO on the CPU.

Rules:
- OpenVINO's telemetry never starts: `import_engine` hides `openvino_telemetry`, which would write an identity into
  ~/intel and send it to Google Analytics;
- only the reader of the artifact's own format gets its bytes: OpenVINO would try each of its seven;
- no decrypted model touches a disk: a TFLite file is read through a link to memory;
- floats are computed in 32 bits: on ARM and AMX OpenVINO would take 16;
- sums of 8-bit products are exact. On an x86 without VNNI, where OpenVINO's saturate, the model runs in floats, unless
  tuning asks for `EngineSetup(kernels="fast")` after comparing golden answers.
"""

from __future__ import annotations

import functools
import io
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import Quantization, TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup
from edgekit_runtime.modelfile.flatbuffer import VectorSpan, read
from edgekit_runtime.system.board import cpu
from edgekit_runtime.system.errors import EngineError

# Of a .tflite file the slots that lead to the scales of its inputs and outputs.
_SCHEMA = {
    "Model": "Version OperatorCodes Subgraphs:[SubGraph]",
    "SubGraph": "Tensors:[Tensor] Inputs:[i32] Outputs:[i32]",
    "Tensor": "Shape Type Buffer Name Quantization:QuantizationParameters",
    "QuantizationParameters": "Min Max Scale:[f32] ZeroPoint:[i64]",
}
_DTYPES = {"float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"}


class OpenVinoEngine(Engine):
    """One request of one compiled model. A free batch axis takes any batch."""

    def __init__(self, module: Any, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        try:
            model = _read(module, form, data)
            compiled = _core(module).compile_model(model, "CPU", _properties(info))
            self._request: Any = compiled.create_infer_request()
            taken, given = _quantizations(data) if form == "tflite" else ((), ())
            self.inputs = _specs(compiled.inputs, taken)
            self.outputs = _specs(compiled.outputs, given)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"openvino {info.version} refuses the artifact: {_reason(error)}") from error
        if not self.outputs:
            raise EngineError(f"openvino {info.version} refuses the artifact: it has no outputs")
        self.info = info
        self._tensor = module.Tensor

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        request = self._request
        if request is None:
            raise EngineError("the engine was closed", do="Open the bundle again")
        if len(inputs) != len(self.inputs):
            raise EngineError(f"{len(inputs)} inputs were given, it has {len(self.inputs)}", where="openvino")
        try:
            for index, array in enumerate(inputs):
                request.set_input_tensor(index, self._tensor(array))
            return list(request.infer().values())
        except Exception as error:
            raise EngineError(f"the inference failed: {_reason(error)}", where="openvino") from error

    def reset(self) -> None:
        if self._request is not None:
            self._request.reset_state()

    def close(self) -> None:
        self._request = None


@functools.cache
def _core(module: Any) -> Any:
    """The plugin and its thread pool, one for all engines of this process."""
    return module.Core()


def _properties(info: EngineInfo) -> dict[str, Any]:
    """Cores are not pinned: two models of one board would be pinned to the same ones."""
    found = {
        "INFERENCE_NUM_THREADS": info.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    if cpu().lacks_vnni and info.arithmetic == "exact":
        found["LP_TRANSFORMS_MODE"] = False
    return found


def _read(module: Any, form: str, data: bytes) -> Any:
    frontend = module.frontend.FrontEndManager().load_by_framework(form)
    if form == "onnx":
        return frontend.convert(frontend.load(io.BytesIO(data)))
    # This reader takes nothing but the name of a file that ends with .tflite.
    memory = os.memfd_create("model")
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(data)
        with TemporaryDirectory(prefix="edgekit-") as folder:
            link = Path(folder) / "model.tflite"
            link.symlink_to(f"/proc/self/fd/{memory}")
            return frontend.convert(frontend.load(str(link)))
    finally:
        os.close(memory)


def _quantizations(data: bytes) -> list[list[Quantization | None]]:
    """Quantizations of a .tflite file's inputs and outputs, which OpenVINO drops."""
    tensors, *edges = read(data, b"TFL3", "Model", _SCHEMA, {})[2][0]
    return [[_quantization(data, tensors[index][4]) for index in _values(data, edge, "i")] for edge in edges]


def _quantization(data: bytes, table: list[Any] | None) -> Quantization | None:
    if table is None:
        return None
    scales, zeros = _values(data, table[2], "f"), _values(data, table[3], "q")
    return Quantization(scales[0], zeros[0] if zeros else 0) if len(scales) == 1 else None


def _values(data: bytes, span: VectorSpan | None, kind: str) -> tuple[Any, ...]:
    return () if span is None else struct.unpack_from(f"<{span.length}{kind}", data, span.start)


def _specs(ports: Iterable[Any], scales: Sequence[Quantization | None]) -> tuple[TensorSpec, ...]:
    found = []
    for place, port in enumerate(ports):
        name, dtype = port.get_any_name(), np.dtype(port.get_element_type().to_dtype()).name
        if dtype not in _DTYPES:
            raise EngineError(f"tensor '{name}' has the type {dtype}, which contracts cannot describe")
        shape = tuple(side.get_length() if side.is_static else -1 for side in port.get_partial_shape())
        scale = scales[place] if place < len(scales) else None
        found.append(TensorSpec(name=name, tensor=name, dtype=dtype, shape=shape, quantization=scale))
    return tuple(found)


def _reason(error: Exception) -> str:
    """The last line: OpenVINO names the place in its source first, and the reason last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
