"""TFLite artifacts through LiteRT (`ai-edge-litert`) or tflite-runtime 2.14, and delegates.

    delegate = load_delegate(interpreter_module, "libedgetpu.so.1,device=usb:0")

Rules:
- an inference copies its inputs into the interpreter and its outputs out of it, once each, and does nothing else;
- a delegate is a shared library that runs parts of a graph (Edge TPU, an NPU). One that cannot be loaded is a typed
  error with the reason: no such file, not a delegate, or the library's own message;
- its symbols are checked first: the interpreter would print a traceback for a missing one;
- `kernels="vulkan"` is `CompiledModel` on a GPU: all of the graph, in 32 bits unless the file has 16-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import Quantization, TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, check_inputs, one_line, quiet_stderr
from edgekit_runtime.system.errors import EngineError
from edgekit_runtime.system.records import replace

_IDENTIFIER = b"TFL3"
_RESOLVERS = {"default": "AUTO", "plain": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}
_SYMBOLS = ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate")
_DO = "Check the path, and that the library is a TFLite external delegate for this processor"


class TFLiteEngine(Engine):
    """One interpreter, one thread at a time.
    tflite-runtime 2.14, the last of its line, needs NumPy 1."""

    def __init__(self, module: ModuleType, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        if data[4:8] != _IDENTIFIER:
            raise EngineError("these bytes are not a TFLite model", where=info.name)
        self._module, self._data = module, data
        self.info = info
        interpreter = _interpreter(module, info, data)
        self._take(interpreter)
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        self.inputs = tuple(_spec(detail) for detail in inputs)
        self.outputs = tuple(_spec(detail) for detail in outputs)
        self._input_indexes = [detail["index"] for detail in inputs]
        self._output_indexes = [detail["index"] for detail in outputs]
        sides = {tensor.shape[:1] for tensor in self.inputs}
        self._any_batch = sides == {(-1,)} or (sides == {(1,)} and info.delegate is None)
        self._batch = 1
        if self._any_batch and setup.batch != 1:
            self._resize(setup.batch)

    def _take(self, interpreter: Any) -> None:
        """Look its methods up once: on the tiniest nets that saves half the time of a call."""
        self._interpreter: Any = interpreter
        self._set: Callable[[int, NDArray[Any]], None] = interpreter.set_tensor
        self._invoke: Callable[[], None] = interpreter.invoke
        self._get: Callable[[int], NDArray[Any]] = interpreter.get_tensor

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        indexes = self._input_indexes
        if len(inputs) != len(indexes):
            raise EngineError(f"{len(inputs)} inputs were given, it has {len(indexes)}", where=self.info.name)
        if self._any_batch and len(inputs[0]) != self._batch:
            self._resize(len(inputs[0]))
        try:
            if len(indexes) == 1:
                self._set(indexes[0], inputs[0])
            else:
                for index, array in zip(indexes, inputs, strict=True):
                    self._set(index, array)
            self._invoke()
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the inference failed: {error}", where=self.info.name) from error
        outputs = self._output_indexes
        return [self._get(outputs[0])] if len(outputs) == 1 else [self._get(index) for index in outputs]

    def reset(self) -> None:
        """Make a new interpreter of the same bytes.

        `reset_all_variables` leaves resource variables (VAR_HANDLE) as they are, in LiteRT 2.3 and tflite-runtime 2.14.
        """
        self._take(_interpreter(self._module, self.info, self._data))
        self._batch = 1

    def close(self) -> None:
        self._interpreter = None
        self._data = b""
        self._set = self._invoke = self._get = _refuse_closed
        self._any_batch = False

    def _resize(self, batch: int) -> None:
        """Make room for `batch` items; it takes microseconds unless packed weights depend on it."""
        try:
            for index, tensor in zip(self._input_indexes, self.inputs, strict=True):
                shape = [1 if n == -1 else n for n in tensor.shape[1:]]
                self._interpreter.resize_tensor_input(index, [batch, *shape])
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            self._batch = -1  # the next input is sized again
            raise EngineError(f"a batch of {batch} does not fit: {error}", where=self.info.name) from error
        self._batch = batch


class CompiledEngine(Engine):
    """One artifact on a GPU, for exactly the batch in the file; a free one is 1."""

    _model: Any
    _buffers: Any

    def __init__(self, module: ModuleType, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        from ai_edge_litert import compiled_model

        plain = _interpreter(module, replace(info, kernels="plain"), data)  # it knows names and quantization
        sides = plain.get_input_details(), plain.get_output_details()
        self.inputs, self.outputs = (
            tuple(replace(_spec(detail), shape=tuple(map(int, detail["shape"]))) for detail in side) for side in sides
        )
        if any(spec.shape[0] != setup.batch for spec in self.inputs):
            raise EngineError(f"the artifact has no batch of {setup.batch} on a GPU", where=info.name)
        self.info, half = info, np.float16 in {detail["dtype"] for detail in plain.get_tensor_details()}
        options = compiled_model.Options(
            compiled_model.HardwareAccelerator.GPU, gpu_options=compiled_model.GpuOptions(enforce_f32=not half)
        )
        try:
            with quiet_stderr():
                self._model = compiled_model.CompiledModel.from_buffer(data, options=options)
                self._order(*sides)
        except (ValueError, RuntimeError, KeyError) as error:
            what = f"{info.name} {info.version} refuses the artifact on a GPU, or finds no GPU here"
            raise EngineError(what, do="Set EDGEKIT_ENGINE_LOG=1 to read LiteRT's reason") from error

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        if self._model is None:
            _refuse_closed()
        check_inputs(self, inputs)
        try:
            for place, array in zip(self._places[0], inputs, strict=True):
                self._buffers[0][place].write(array)
            self._model.run_by_index(0, *self._buffers)
            return [
                self._buffers[1][place].read(math.prod(spec.shape), np.dtype(spec.dtype)).reshape(spec.shape)
                for place, spec in zip(self._places[1], self.outputs, strict=True)
            ]
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the inference failed: {one_line(str(error))}", where=self.info.name) from error

    def close(self) -> None:
        with quiet_stderr():
            self._model = self._buffers = None

    def _order(self, *sides: list[dict[str, Any]]) -> None:
        """Make buffers, in the order of the signature, and find ours. Raises KeyError."""
        model, signature = self._model, self._model.get_signature_by_index(0)
        self._buffers = (model.create_input_buffers(0), model.create_output_buffers(0))
        details = model.get_input_tensor_details(signature["key"]), model.get_output_tensor_details(signature["key"])
        self._places = []
        for side, names, found in zip(sides, (signature["inputs"], signature["outputs"]), details, strict=True):
            places = {found[name]["index"]: place for place, name in enumerate(names)}
            self._places.append([places[detail["index"]] for detail in side])


def _interpreter(module: ModuleType, info: EngineInfo, data: bytes) -> Any:
    """Raises EngineError if the runtime refuses the bytes or the delegate."""
    delegates = None
    if info.delegate is not None:
        delegates = [load_delegate(module, info.delegate)]
    try:
        with quiet_stderr():
            interpreter = module.Interpreter(
                model_content=data,
                num_threads=info.threads,
                experimental_op_resolver_type=getattr(module.OpResolverType, _RESOLVERS[info.kernels]),
                experimental_delegates=delegates,
            )
            interpreter.allocate_tensors()
    except (ValueError, RuntimeError, SystemError) as error:
        raise EngineError(
            f"{info.name} {info.version} refuses the artifact: {error}",
            where=info.delegate or "",
            do="Rebuild for a profile with this runtime",
        ) from error
    return interpreter


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


def _refuse_closed(*_: Any) -> Any:
    raise EngineError("the engine was closed", do="Open the bundle again")


def split(delegate: str) -> tuple[str, dict[str, str]]:
    """Split "PATH,key=value,..." into the path and the library's options. Raises EngineError."""
    path, *pairs = (part.strip() for part in delegate.split(","))
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise EngineError(f"'{pair}' is not an option", where=delegate, do='Write "LIBRARY,key=value,..."')
        options[key.strip()] = value.strip()
    return path, options


def load_delegate(module: ModuleType, delegate: str) -> Any:
    """A delegate for `Interpreter(experimental_delegates=[...])`. Raises EngineError.

    module: the interpreter's.
    """
    import ctypes

    path, options = split(delegate)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise EngineError(f"the delegate cannot be loaded: {error}", where=path, do=_DO) from error
    missing = [symbol for symbol in _SYMBOLS if not hasattr(library, symbol)]
    if missing:
        raise EngineError(f"this library is not a TFLite delegate: it lacks {missing[0]}", where=path, do=_DO)
    try:
        return module.load_delegate(path, options)
    except (ValueError, RuntimeError, OSError) as error:
        own_words = str(error).removeprefix(f"Failed to load delegate from {path}").split()
        why = " ".join(own_words) or "it gave no reason; check that the accelerator is connected"
        raise EngineError(f"the delegate refuses to start: {why}", where=path, do=_DO) from error
