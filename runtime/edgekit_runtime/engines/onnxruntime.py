"""ONNX artifacts through ONNX Runtime, on the CPU, with CUDA, or with the WebGPU plugin.

Rules:
- sums of 8-bit products are exact. On an x86 without VNNI ONNX Runtime adds uint8 x int8 products in 16 bits, which
  saturate, unless `session.x64quantprecision` is 1. With VNNI that option only makes INT8 half as fast;
- only `EngineSetup(kernels="fast")` leaves it out there, and only tuning sets that, after comparing golden answers;
- every session of edgekit starts from `session_options`, those of the converters too;
- threads wait asleep: spinning ones take nine times the processor time at ten requests a second;
- with CUDA the session's first provider must be CUDA: ONNX Runtime silently falls back to the CPU;
- `kernels="vulkan"` is WebGPU. A GPU must be there, and compute a node at least; the others run on the CPU.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, quiet_stderr
from edgekit_runtime.system.board import cpu
from edgekit_runtime.system.errors import EngineError, MissingExtraError

_REGISTERING, _REGISTERED = threading.Lock(), set[str]()
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


class OnnxEngine(Engine):
    """One session. A free batch axis takes any batch."""

    def __init__(self, module: Any, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        providers = ["CPUExecutionProvider"]
        if info.name == "onnxruntime-cuda":  # operators that CUDA lacks run on the processor
            providers.insert(0, "CUDAExecutionProvider")
            if hasattr(module, "preload_dlls"):  # the CUDA libraries that pip installed
                module.preload_dlls()
        options = session_options(module, info.threads, exact=info.arithmetic == "exact")
        if info.kernels == "vulkan":
            providers = _add_webgpu(module, options)
        named = None if info.kernels == "vulkan" else providers  # the options have them
        try:
            with quiet_stderr() if named is None else contextlib.nullcontext():
                self._session = module.InferenceSession(data, options, providers=named, enable_fallback=0)
        except Exception as error:
            raise EngineError(f"{info.name} {info.version} refuses the artifact: {_first_line(error)}") from error
        if (runs := self._session.get_providers()[0]) != providers[0]:
            raise EngineError(
                f"{info.name} {info.version} runs the artifact with {runs}, not with {providers[0]}",
                do="Install the CUDA and cuDNN libraries that this version of onnxruntime-gpu asks for",
            )
        if info.kernels == "vulkan":
            parts = self._session.get_provider_graph_assignment_info()
            if not any(part.ep_name == providers[0] for part in parts):
                raise EngineError("the GPU computes no node of the artifact", where=f"{info.name} {info.version}")
        self.info = info
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self._input_names = [node.name for node in self._session.get_inputs()]
        self._output_names = [node.name for node in self._session.get_outputs()]

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        session = self._session
        if session is None:
            raise EngineError("the engine was closed", do="Open the bundle again")
        if len(inputs) != len(self._input_names):
            raise EngineError(f"{len(inputs)} inputs were given, it has {len(self._input_names)}", where="onnxruntime")
        try:
            outputs = session.run(self._output_names, dict(zip(self._input_names, inputs, strict=True)))
        except Exception as error:
            raise EngineError(f"the inference failed: {_first_line(error)}", where="onnxruntime") from error
        return [np.asarray(output) for output in outputs]

    def close(self) -> None:
        self._session = None


def session_options(module: Any, threads: int, *, exact: bool = True) -> Any:
    """What every session starts from. module: onnxruntime. exact: see this module's rules."""
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # an error is raised; its second copy on stderr is not our message
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.x64quantprecision", "1" if exact and cpu().lacks_vnni else "0")
    return options


def _add_webgpu(module: Any, options: Any) -> list[str]:
    """Have the session use WebGPU. Returns the providers. Raises EngineError, MissingExtraError."""
    try:
        import onnxruntime_ep_webgpu as plugin
    except ImportError as error:
        raise MissingExtraError("onnx-webgpu", "running an ONNX artifact on a GPU by WebGPU") from error
    name, library = plugin.get_ep_name(), plugin.get_library_path()
    with _REGISTERING, quiet_stderr():
        try:
            if library not in _REGISTERED:
                module.register_execution_provider_library(name, library)
                _REGISTERED.add(library)
            devices = [device for device in module.get_ep_devices() if device.ep_name == name]
        except Exception as error:
            raise EngineError(f"the WebGPU plugin does not load: {_first_line(error)}", where=library) from error
    if not devices:
        raise EngineError(
            "WebGPU finds no GPU here", where=library, do="Install the GPU's Vulkan driver and libvulkan1"
        )
    options.add_provider_for_devices(devices[:1], {})
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return [name, "CPUExecutionProvider"]


def _spec(node: Any) -> TensorSpec:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise EngineError(f"tensor '{node.name}' has the type {node.type}, which contracts cannot describe")
    shape = tuple(n if isinstance(n, int) else -1 for n in node.shape)
    return TensorSpec(name=node.name, tensor=node.name, dtype=dtype, shape=shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
