"""ONNX artifacts through TensorRT or TensorRT for RTX: one API, two packages.

Rules:
- networks are strongly typed: float16 comes from `onnx-f16`, 8 bits from `onnx-int8-qdq-symmetric`. A file that the
  parser refuses is an error with the node and the reason;
- an engine has two sets of shapes, exactly 1 item and 2 to 32. Other free axes are refused;
- built engines stay in the state folder (`gpu_engine_cache`), and for RTX the kernels compiled at its first runs, too;
- a plan that was built need not run on this GPU; one that does not load is an error with the library's last message.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines import cuda
from edgekit_runtime.engines.gpu_engine_cache import key_of, load_cached, load_or_build, store
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, check_inputs, one_line
from edgekit_runtime.system.board import state_dir
from edgekit_runtime.system.errors import EngineError
from edgekit_runtime.system.strict_json import load_json

SHAPES = ((1, 1, 1), (2, 8, 32))
"""Smallest, best and largest batch of each set of shapes."""
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


class TensorRtEngine(Engine):
    """An execution context for each set of shapes, a stream, and memory for the largest batch."""

    def __init__(self, module: Any, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        self.info, self._label = info, f"{info.name} {info.version}"
        self._said = _logger(module)
        self._said.forget()
        self._contexts: list[Any] = []
        self._lane: cuda.CudaLane | None = cuda.CudaLane()
        self._kernels: Any = None
        folder = state_dir() / "engines" if setup.keep else None
        key = key_of(data, self._label, shapes=str(SHAPES), gpu=cuda.identity())
        self._file = folder / f"{key}.kernels" if folder is not None else None
        try:
            with self._lane.current():
                head, _, plan = load_or_build(folder, key, lambda: build(module, self._label, data)).partition(b"\n")
                names = load_json(head)
                self._runtime: Any = module.Runtime(self._said)
                self._engine: Any = self._runtime.deserialize_cuda_engine(plan)
                if self._engine is None:
                    raise EngineError(f"{self._label} does not run on {cuda.gpu().label}: {self._said.last()}")
                self.inputs = tuple(_spec(self._engine, name) for name in names["inputs"])
                self.outputs = tuple(_spec(self._engine, name) for name in names["outputs"])
                self._batched = self.inputs[0].shape[0] == -1
                largest = SHAPES[-1][2] if self._batched else 1
                every = (*self.inputs, *self.outputs)
                self._buffers = {
                    one.tensor: self._lane.buffer(math.prod((largest, *one.shape[1:])) * np.dtype(one.dtype).itemsize)
                    for one in every
                }
                self._contexts = [self._context(index) for index in range(len(SHAPES) if self._batched else 1)]
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        lane = self._lane
        if lane is None:
            raise EngineError("the engine was closed", do="Open the bundle again")
        check_inputs(self, inputs)
        count = len(inputs[0])
        if self._batched and (count > SHAPES[-1][2] or {len(array) for array in inputs} != {count}):
            raise EngineError(f"1 to {SHAPES[-1][2]} items can run, as many of each input", where=self.info.name)
        context = self._contexts[1 if self._batched and count > 1 else 0]
        self._said.forget()
        with lane.current():
            for spec, array in zip(self.inputs, inputs, strict=True):
                lane.upload(self._buffers[spec.tensor], array)
                context.set_input_shape(spec.tensor, array.shape)
            if not context.execute_async_v3(lane.stream):
                raise EngineError(f"the inference failed: {self._said.last()}", where=self.info.name)
            found = []
            for spec in self.outputs:
                shape = (count, *spec.shape[1:]) if self._batched else spec.shape
                found.append(self._buffers[spec.tensor].view(np.dtype(spec.dtype), shape))
                lane.download(self._buffers[spec.tensor], found[-1].nbytes)
            lane.wait()
        return [view.copy() for view in found]

    def close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is None:
            return
        with contextlib.suppress(EngineError), lane.current():
            if self._kernels is not None and self._file is not None and self._contexts:
                store(self._file, bytes(memoryview(self._kernels.serialize())))
            self._contexts = []
            self._kernels = self._engine = self._runtime = None
        lane.close()

    def _context(self, index: int) -> Any:
        """Of one set of shapes, with kernels that earlier processes compiled. Raises EngineError."""
        assert self._lane is not None
        context = self._engine.create_execution_context(*self._settings())
        if context is None or not context.set_optimization_profile_async(index, self._lane.stream):
            raise EngineError(f"{self._label} does not run on {cuda.gpu().label}: {self._said.last()}")
        self._lane.wait()
        for name, buffer in self._buffers.items():
            context.set_tensor_address(name, buffer.address)
        return context

    def _settings(self) -> tuple[Any, ...]:
        """The configuration of a context: for RTX the kernels kept from earlier first runs."""
        if self.info.name != "tensorrt-rtx":
            return ()
        config = self._engine.create_runtime_config()
        if self._kernels is None:
            self._kernels = config.create_runtime_cache()
            if self._file is not None and (known := load_cached(self._file)) is not None:
                self._kernels.deserialize(known)
        config.set_runtime_cache(self._kernels)
        return (config,)


def build(module: Any, label: str, data: bytes) -> bytes:
    """The plan of an ONNX file, after a line that names its inputs and outputs.

    TensorRT for RTX needs no GPU for it. Raises EngineError.
    """
    said = _logger(module)
    said.forget()
    builder = module.Builder(said)
    if not hasattr(module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"):
        raise EngineError(f"{label} has no strongly typed networks", do="Install TensorRT 10 or later")
    network = builder.create_network(1 << int(module.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = module.OnnxParser(network, said)
    if not parser.parse(data):
        raise EngineError(f"{label} refuses the artifact: {_parse_error(parser) or said.last()}")
    if not network.num_inputs or not network.num_outputs:  # what is not a model may parse, too
        raise EngineError(f"{label} refuses the artifact: it has no inputs or no outputs")
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    config = builder.create_builder_config()
    _check_axes(label, inputs, outputs)
    if inputs[0].shape[0] == -1:
        for sizes in SHAPES:
            profile = builder.create_optimization_profile()
            for one in inputs:
                profile.set_shape(one.name, *[(size, *tuple(one.shape)[1:]) for size in sizes])
            config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineError(f"{label} cannot build the artifact: {said.last()}")
    names = {"inputs": [one.name for one in inputs], "outputs": [one.name for one in outputs]}
    return json.dumps(names).encode() + b"\n" + bytes(memoryview(plan))


def _check_axes(label: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise EngineError for a free axis other than the batch of every tensor."""
    shapes = {one.name: tuple(one.shape) for one in (*inputs, *outputs)}
    odd = [name for name, shape in shapes.items() if -1 in shape[1:]]
    if odd or len({shape[:1] == (-1,) for shape in shapes.values()}) > 1:
        name = odd[0] if odd else next(iter(shapes))
        raise EngineError(
            f"{label} accepts a free batch axis only; '{name}' is {list(shapes[name])}",
            do="Fix the other axes when the model is exported",
        )


def _parse_error(parser: Any) -> str:
    """Node, operator and reason of the first error; empty without one."""
    if not parser.num_errors:
        return ""
    error = parser.get_error(0)
    return f"{error.node_operator() or 'the graph'} '{error.node_name()}': {one_line(error.desc())}"


def _spec(engine: Any, name: str) -> TensorSpec:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DTYPES:
        raise EngineError(f"tensor '{name}' has the type {kind}, which contracts cannot describe")
    shape = tuple(int(side) for side in engine.get_tensor_shape(name))
    return TensorSpec(name=name, tensor=name, dtype=_DTYPES[kind], shape=shape)


@functools.cache
def _logger(module: Any) -> Any:
    """Keeps errors, prints nothing; one per process, because the library keeps using the first."""

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._errors: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if severity <= module.ILogger.ERROR:
                self._errors = [*self._errors[-4:], text]

        def forget(self) -> None:
            self._errors = []

        def last(self) -> str:
            return one_line(self._errors[-1]) if self._errors else "it gave no reason"

    return Logger()
