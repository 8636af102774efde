"""An `[input]` table -> ImageSpec. Height, width and channels come from the model's own input, never from the file."""

from __future__ import annotations

from typing import cast, get_args

import numpy as np

from edgekit_profiles.schema import Table
from edgekit_runtime.contract.spec import Color, ImageSpec, Interpolation, Resize
from edgekit_runtime.tensors import TensorSpec

__all__ = ["IMAGE_KEYS", "image_spec"]

IMAGE_KEYS = ("color", "resize", "crop", "interpolation", "mean", "std")

# Pixels are 0 to 255, so these leave room for any scaling that a network was trained with, and none for a slip of the pen.
_LARGEST, _LEAST_STD = 1e6, 1e-6

_NORMALISATIONS = (
    "Say what the model was trained on: mean = 0 and std = 1 for pixels 0..255, mean = 0 and std = 255 for 0..1, "
    "mean = 127.5 and std = 127.5 for -1..1"
)


def image_spec(table: Table, tensor: TensorSpec) -> ImageSpec:
    """Raises ContractFileError where the keys contradict each other or the model's input."""
    height, width, channels = _size(table, tensor)
    mean, std = _normalisation(table, tensor, channels)
    resize = cast(Resize, table.text("resize", "stretch", get_args(Resize)))
    crop = table.real("crop", 1.0)
    if not 0 < crop <= 1:
        table.wrong("crop", f"{crop:g} is not a fraction", "Write a number above 0 and at most 1, e.g. 0.875")
    if table.has("crop") and resize != "center-crop":
        table.wrong("crop", f'has no meaning with resize = "{resize}"', 'Write resize = "center-crop"')
    return ImageSpec(
        height=height,
        width=width,
        mean=mean,
        std=std,
        color=_color(table, channels),
        resize=resize,
        crop=crop,
        interpolation=cast(Interpolation, table.text("interpolation", "bilinear", get_args(Interpolation))),
    )


def _size(table: Table, tensor: TensorSpec) -> tuple[int, int, int]:
    shape = "[" + ", ".join("?" if n == -1 else str(n) for n in tensor.shape) + "]"
    if tensor.layout is None or len(tensor.shape) != 4:
        table.stop(
            "kind",
            f"the model's input '{tensor.name}' has shape {shape}, which is no picture's",
            'Write kind = "tensor"',
        )
    _, *axes = tensor.shape
    height, width, channels = axes if tensor.layout == "NHWC" else (axes[1], axes[2], axes[0])
    if channels not in (1, 3):
        table.stop(
            "kind",
            f"the model's input '{tensor.name}' has {channels} channels; a picture has 1 or 3",
            'Write kind = "tensor"',
        )
    if -1 in (height, width):
        table.stop(
            "kind",
            f"the model's input '{tensor.name}' leaves its size free: {shape}",
            "Save the model with a fixed height and width",
        )
    return height, width, channels


def _color(table: Table, channels: int) -> Color:
    color = cast(Color, table.text("color", "gray" if channels == 1 else "rgb", get_args(Color)))
    if (color == "gray") != (channels == 1):
        fitting = '"gray"' if channels == 1 else '"rgb" or "bgr"'
        table.wrong("color", f'"{color}" does not fit an input with {channels} channels', f"Write {fitting}")
    return color


def _normalisation(table: Table, tensor: TensorSpec, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, std = table.reals("mean", channels), table.reals("std", channels)
    neutral = ((0.0,) * channels, (1.0,) * channels)
    if np.issubdtype(np.dtype(tensor.dtype), np.integer):
        if (mean or neutral[0], std or neutral[1]) != neutral:
            key = "mean" if mean not in (None, neutral[0]) else "std"
            table.wrong(key, f"the model takes {tensor.dtype} pixels as they are", "Remove mean and std")
        return neutral
    if mean is None or std is None:
        for key, given in (("mean", mean), ("std", std)):
            if given is None:
                table.wrong(key, "is missing", _NORMALISATIONS)
        return neutral
    for value in mean:
        if abs(value) > _LARGEST:
            table.wrong("mean", f"{value:g} is beyond any pixel, which is 0 to 255", _NORMALISATIONS)
    for value in std:
        if value == 0:
            table.wrong("std", "0 would divide by zero", _NORMALISATIONS)
        elif not _LEAST_STD <= value <= _LARGEST:
            bounds = f"{_LEAST_STD:g} to {_LARGEST:g}"
            table.wrong("std", f"{value:g} is no spread of pixels: it must be from {bounds}", _NORMALISATIONS)
    return mean, std
