"""TFLite artifacts through LiteRT (`ai-edge-litert`) or, where that has no wheel, `tflite-runtime` 2.14.

The two differ: tflite-runtime dies with a bare SystemError under NumPy 2, and only its reference kernels give the same
bits on x86 and ARM. Both facts are handled here and nowhere else.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.engines.registry import Engine, EngineInfo
from edgekit_runtime.errors import EngineError
from edgekit_runtime.tensors import Quantization, TensorSpec

__all__ = ["TFLiteEngine", "load_litert", "load_tflite_runtime"]

_IDENTIFIER = b"TFL3"


class TFLiteEngine(Engine):
    """One interpreter. Not thread-safe: one thread at a time."""

    def __init__(self, module: ModuleType, info: EngineInfo, data: bytes) -> None:
        if data[4:8] != _IDENTIFIER:
            raise EngineError("these bytes are not a TFLite model", where=info.name)
        self._module, self._data = module, data
        self.info = info
        self._interpreter = self._fresh()
        inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self.inputs = tuple(_spec(detail) for detail in inputs)
        self.outputs = tuple(_spec(detail) for detail in outputs)
        self._input_indexes = [detail["index"] for detail in inputs]
        self._output_indexes = [detail["index"] for detail in outputs]

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        interpreter = self._interpreter
        try:
            for index, array in zip(self._input_indexes, inputs, strict=True):
                interpreter.set_tensor(index, array)
            interpreter.invoke()
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the inference failed: {error}", where=self.info.name) from error
        return [interpreter.get_tensor(index) for index in self._output_indexes]

    def reset(self) -> None:
        """A new interpreter of the same bytes. `reset_all_variables` would not do: it leaves resource variables
        (VAR_HANDLE) as they are, in LiteRT 2.3 and in tflite-runtime 2.14.
        """
        self._interpreter = self._fresh()

    def close(self) -> None:
        self._interpreter = None

    def _fresh(self) -> Any:
        """Raises EngineError where the runtime refuses the bytes."""
        module, info = self._module, self.info
        resolver = module.OpResolverType.BUILTIN_REF if info.reference_kernels else module.OpResolverType.AUTO
        try:
            with _quiet_stderr():
                interpreter = module.Interpreter(
                    model_content=self._data, num_threads=info.threads, experimental_op_resolver_type=resolver
                )
                interpreter.allocate_tensors()
        except (ValueError, RuntimeError, SystemError) as error:
            raise EngineError(
                f"{info.name} {info.version} refuses the artifact: {error}",
                do="Rebuild for a profile with this runtime",
            ) from error
        return interpreter


def load_litert(data: bytes, *, threads: int, reference_kernels: bool = False) -> TFLiteEngine:
    """LiteRT, the current runtime."""
    with _quiet_stderr():
        from ai_edge_litert import interpreter

    version = importlib.metadata.version("ai-edge-litert")
    return TFLiteEngine(interpreter, EngineInfo("litert", version, threads, reference_kernels), data)


def load_tflite_runtime(data: bytes, *, threads: int, reference_kernels: bool = False) -> TFLiteEngine:
    """tflite-runtime 2.14, the last of its line; needs NumPy 1."""
    version = importlib.metadata.version("tflite-runtime")
    if int(np.__version__.split(".")[0]) >= 2:
        raise EngineError(
            f"tflite-runtime {version} cannot make an interpreter with NumPy {np.__version__}",
            do="Run: pip install 'numpy<2'",
        )
    from tflite_runtime import interpreter

    return TFLiteEngine(interpreter, EngineInfo("tflite-runtime", version, threads, reference_kernels), data)


def _spec(detail: dict[str, Any]) -> TensorSpec:
    scales, zero_points = detail["quantization_parameters"]["scales"], detail["quantization_parameters"]["zero_points"]
    signature = detail.get("shape_signature")
    shape = detail["shape"] if signature is None or len(signature) == 0 else signature
    return TensorSpec(
        name=detail["name"],
        tensor=detail["name"],
        dtype=np.dtype(detail["dtype"]).name,
        shape=tuple(int(n) for n in shape),
        quantization=Quantization(float(scales[0]), int(zero_points[0])) if len(scales) == 1 else None,
    )


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The C++ side writes notices ("Created TensorFlow Lite XNNPACK delegate") straight to fd 2; keep them off a terminal.

    EDGEKIT_ENGINE_LOG=1 lets them through.
    """
    if os.environ.get("EDGEKIT_ENGINE_LOG"):
        yield
        return
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all: a daemon
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
