"""Keras 3 `.keras` files and the HDF5 files of Keras 1 to 3 that Keras 3 still reads.

Rules: safe mode stays on and the optimizer is not restored; a Lambda layer is refused before the file is opened, because
it holds Python code; the model must have fixed inputs (functional, sequential with an Input, or built).

    source = load(Path("net.keras"))
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.errors import SourceError
from edgekit_converters.sources.quiet import import_keras, import_tensorflow, quiet
from edgekit_converters.sources.shapes import check_shape, file_sha256, image_layout, unique_names
from edgekit_runtime.tensors import TensorSpec

__all__ = ["KerasSource", "load", "load_h5"]

_MAX_CONFIG_BYTES = 64 << 20


class KerasSource:
    """A Keras model, called in inference mode. `network` takes and returns flat lists in the contract's order."""

    def __init__(self, path: Path, format: str, model: Any) -> None:  # noqa: A002
        self._path, self._format = path, format
        self._sha256 = file_sha256(path)
        self._inputs, self._outputs = _describe(model, str(path))
        self.network = _flattened(model)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def format(self) -> str:
        return self._format

    @property
    def sha256(self) -> str:
        return self._sha256

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    @property
    def variables(self) -> list[Any]:
        """The weights as TensorFlow variables."""
        return [variable.value for variable in self.network.variables]

    @property
    def tools(self) -> tuple[str, ...]:
        return ("keras",)

    def call(self, *inputs: Any) -> list[Any]:
        """The network on TensorFlow tensors, in inference mode: what a `tf.function` of it traces."""
        outputs = self.network(list(inputs), training=False)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The original, in float, on a batch of any size."""
        arrays = [np.asarray(array, spec.dtype) for array, spec in zip(inputs, self._inputs, strict=True)]
        if len(arrays[0]) == 0:
            return [np.zeros((0, *spec.shape[1:]), spec.dtype) for spec in self._outputs]
        if any(spec.shape[0] == 1 for spec in self._inputs):
            items = [self._run([array[i : i + 1] for array in arrays]) for i in range(len(arrays[0]))]
            return [np.concatenate(parts) for parts in zip(*items, strict=True)]
        return self._run(arrays)

    def _run(self, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        return [np.array(output) for output in self._function(*arrays)]

    @cached_property
    def _function(self) -> Any:
        tf = import_tensorflow()
        signature = [
            tf.TensorSpec([None, *spec.shape[1:]] if spec.free_batch else spec.shape, spec.dtype)
            for spec in self._inputs
        ]
        return tf.function(self.call, input_signature=signature)

    def onnx(self) -> bytes:
        """Float ONNX, opset 17, IR 10; image inputs are NCHW there (see `sources.keras_to_onnx`)."""
        return self._onnx

    @cached_property
    def _onnx(self) -> bytes:
        from edgekit_converters.sources.keras_to_onnx import to_onnx

        return to_onnx(self)


def load(path: Path) -> KerasSource:
    """A `.keras` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("config.json")
            if info.file_size > _MAX_CONFIG_BYTES:
                _refuse(path, "its config.json is larger than 64 MiB")
            config = json.loads(archive.read(info))
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        _refuse(path, "this is not a .keras file, or it is damaged", error)
    return _load(path, "keras", config)


def load_h5(path: Path) -> KerasSource:
    """A legacy HDF5 file with the network in it, not only its weights."""
    import_keras()
    import h5py  # type: ignore[import-untyped]

    try:
        with h5py.File(path, "r") as file:
            text = file.attrs.get("model_config")
    except OSError as error:
        _refuse(path, "this is not an HDF5 file, or it is damaged", error)
    if text is None:
        _refuse(path, "the file holds weights only, not the network")
    try:
        config = json.loads(text)
    except ValueError as error:
        _refuse(path, "its model_config is damaged", error)
    return _load(path, "keras-h5", config)


def _load(path: Path, format: str, config: Any) -> KerasSource:  # noqa: A002
    for layer in _lambda_layers(config):
        raise SourceError(
            f"the layer '{layer}' is a Lambda: it holds Python code, which edgekit does not run",
            where=str(path),
            do="Replace it by a built-in layer, or export the model to ONNX",
        )
    keras = import_keras()
    try:
        with quiet():
            model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises a dozen unrelated types on a damaged or foreign file
        raise SourceError(
            f"Keras {keras.__version__} cannot read it: {_reason(error)}",
            where=str(path),
            do="Save it again with Keras 3 and built-in layers only, or export it to ONNX",
        ) from error
    with quiet():
        return KerasSource(path, format, model)


def _lambda_layers(config: Any) -> Iterator[str]:
    """Names of Lambda layers at any depth of a model's config."""
    if isinstance(config, dict):
        if config.get("class_name") in ("Lambda", "__lambda__"):
            inner = config.get("config")
            yield str(inner.get("name", "lambda")) if isinstance(inner, dict) else "lambda"
        for value in config.values():
            yield from _lambda_layers(value)
    elif isinstance(config, list):
        for value in config:
            yield from _lambda_layers(value)


def _describe(model: Any, where: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    try:
        inputs, outputs = model.inputs, model.outputs
    except (AttributeError, ValueError):
        inputs = outputs = None
    if not inputs or not outputs:
        raise SourceError(
            "the model has no fixed inputs", where=where, do="Give it a keras.Input, call it once, and save it again"
        )
    keras = import_keras()
    prefer = "NCHW" if keras.config.image_data_format() == "channels_first" else "NHWC"
    input_names = unique_names([tensor.name for tensor in inputs], where=where, kind="input")
    output_names = unique_names(_output_names(model), where=where, kind="output")
    described = []
    for kind, names, tensors in (("input", input_names, inputs), ("output", output_names, outputs)):
        specs = []
        for name, tensor in zip(names, tensors, strict=True):
            shape = tuple(-1 if n is None else int(n) for n in tensor.shape)
            layout = image_layout(shape, prefer=prefer) if kind == "input" else None  # type: ignore[arg-type]
            spec = TensorSpec(name, name, _dtype(tensor, name, where), shape, layout)
            check_shape(spec, where=where, kind=kind)
            specs.append(spec)
        described.append(tuple(specs))
    return described[0], described[1]


def _output_names(model: Any) -> list[str]:
    """A dict's keys where the author returned a dict, else the name of the layer that makes each output."""
    keras = import_keras()
    structure = getattr(model, "output", None)  # a sequential model that was never called has none
    if isinstance(structure, dict):
        return [str(path[-1]) for path, _ in keras.tree.flatten_with_path(structure)]
    names = [str(tensor._keras_history.operation.name) for tensor in model.outputs]
    # One layer may have several outputs.
    return [name if names.count(name) == 1 else f"{name}_{names[:i].count(name)}" for i, name in enumerate(names)]


def _flattened(model: Any) -> Any:
    """The same layers behind flat lists, whatever structure the author chose."""
    keras = import_keras()
    return keras.Model(list(model.inputs), list(model.outputs), name=model.name)


def _dtype(tensor: Any, name: str, where: str) -> str:
    try:
        return np.dtype(str(tensor.dtype)).name
    except TypeError as error:
        raise SourceError(
            f"'{name}' has the dtype {tensor.dtype}, which no board's engine takes",
            where=where,
            do="Use float32 or integer inputs and outputs",
        ) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text[:300] + "...") if len(text) > 300 else text or type(error).__name__


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do="Save the whole model again with model.save()") from cause
