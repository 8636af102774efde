"""ONNX artifacts through PyTorch with CUDA graphs, for a GPU that TensorRT does not run on.

Rules:
- `onnx2pytorch` makes PyTorch operators in the file's own precision and refuses those it does not know;
- one CUDA graph for each batch of BATCHES, captured at its first use; a batch in between is padded with its first item,
  a larger one is split;
- a graph replays addresses: inputs are copied into its own tensors and outputs out of them;
- engines capture one after another, while others answer;
- operators that make the CPU wait for the GPU cannot be captured: the artifact is refused with the reason.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, check_inputs, one_line
from edgekit_runtime.system.errors import EngineError, MissingExtraError

BATCHES = (1, 2, 4, 8, 16)
_WARM_UP = 3
"""Runs before a capture, in which libraries choose their algorithms and allocate."""
_CAPTURING = threading.Lock()
"""The flags of cuDNN belong to the process."""


class TorchEngine(Engine):
    """A PyTorch graph on a GPU.

    device: "cuda", or "cpu" for the same graph without capture, to find a difference.
    """

    def __init__(
        self, torch: Any, info: EngineInfo, form: str, data: bytes, setup: EngineSetup, device: str = "cuda"
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineError(f"torch-cuda {info.version} finds no GPU", do="Install a build of PyTorch with CUDA")
        self._torch, self._device, self.info = torch, device, info
        self._label = f"{info.name} {info.version}"
        onnx, converter = _converter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = onnx.load_model_from_string(data)
                self.inputs, self.outputs = _tensors(onnx, model)
                net = converter.ConvertModel(model).eval().to(device)
            self._net: Any = net.to(memory_format=torch.channels_last)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{self._label} refuses the artifact: {_reason(error)}") from error
        self._batched = all(spec.shape[0] == -1 for spec in (*self.inputs, *self.outputs))
        self._graphs: dict[int, _CapturedGraph] = {}
        try:
            self._graph(1)
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        if self._net is None:
            raise EngineError("the engine was closed", do="Open the bundle again")
        check_inputs(self, inputs)
        count = len(inputs[0])
        if not self._batched:
            return self._replayed(1, inputs)
        if not count or {len(array) for array in inputs} != {count}:
            raise EngineError("the inputs hold different numbers of items", where=self.info.name)
        parts = []
        for start in range(0, count, BATCHES[-1]):
            some = [array[start : start + BATCHES[-1]] for array in inputs]
            size = next(batch for batch in BATCHES if batch >= len(some[0]))
            parts.append([output[: len(some[0])] for output in self._replayed(size, some)])
        if len(parts) == 1:
            return [np.ascontiguousarray(output) for output in parts[0]]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _replayed(self, size: int, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Raises EngineError."""
        graph = self._graph(size)
        try:
            return graph.run(inputs)
        except Exception as error:
            raise EngineError(f"the inference failed: {_reason(error)}", where=self.info.name) from error

    def close(self) -> None:
        self._net = None
        self._graphs.clear()

    def _graph(self, size: int) -> _CapturedGraph:
        """Raises EngineError."""
        if size not in self._graphs:
            shapes = [(size, *spec.shape[1:]) if self._batched else spec.shape for spec in self.inputs]
            try:
                self._graphs[size] = _CapturedGraph(self._torch, self._net, self.inputs, shapes, self._device)
            except Exception as error:
                raise EngineError(f"{self._label} cannot capture the artifact: {_reason(error)}") from error
        return self._graphs[size]


class _CapturedGraph:
    """The network for one batch size: traced, so that its shapes are constants, and captured."""

    def __init__(
        self, torch: Any, net: Any, specs: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]], device: str
    ) -> None:
        self._torch, self._captured = torch, None
        self._given = [
            torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=device)
            for spec, shape in zip(specs, shapes, strict=True)
        ]
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Not under optimized_execution(False): there freezing loses the calls of modules inside a module.
            self._call = torch.jit.freeze(torch.jit.trace(net, tuple(self._given), check_trace=False).eval())
        if device == "cpu":
            return
        chosen = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)  # measured in the warm-up
        with _CAPTURING, torch.inference_mode(), torch.jit.optimized_execution(False), chosen:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(_WARM_UP):
                    self._call(*self._given)
            torch.cuda.current_stream().wait_stream(beside)
            captured = torch.cuda.CUDAGraph()
            # By default a capture forbids copies to every thread of the process, and their requests would fail.
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                self._made = _as_list(self._call(*self._given))
            self._captured = captured

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """At most as many items as it was captured for."""
        torch = self._torch
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            for given, array in zip(self._given, inputs, strict=True):
                held = torch.from_numpy(np.array(array, order="C"))
                given[: len(array)].copy_(held)
                given[len(array) :] = given[:1]
            if self._captured is None:
                self._made = _as_list(self._call(*self._given))
            else:
                self._captured.replay()
            return [np.array(one.cpu().numpy()) for one in self._made]


def _as_list(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _converter() -> tuple[Any, Any]:
    """`onnx` and `onnx2pytorch`, by name, so that no board's check takes them for its imports."""
    try:
        return importlib.import_module("onnx"), importlib.import_module("onnx2pytorch")
    except ImportError as error:
        raise MissingExtraError("torch-cuda", "engine 'torch-cuda'") from error


def _tensors(onnx: Any, model: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Raise EngineError for a free axis that is not the batch."""
    constant = {one.name for one in model.graph.initializer}
    given = [one for one in model.graph.input if one.name not in constant]
    found = []
    for value in (*given, *model.graph.output):
        kind = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
        shape = tuple(side.dim_value if side.HasField("dim_value") else -1 for side in kind.shape.dim)
        if -1 in shape[1:]:
            raise EngineError(f"'{value.name}' has free axes: {list(shape)}; a CUDA graph may free the batch alone")
        found.append(TensorSpec(name=value.name, tensor=value.name, dtype=dtype, shape=shape))
    return tuple(found[: len(given)]), tuple(found[len(given) :])


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}"
