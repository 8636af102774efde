"""uint8 pixels -> one artifact's numbers.
`(pixel - mean) / std` and the quantization are one step.

    way, step = pixel_step(image, tensor)
    tensor = step(pixels)[None].view(tensor.dtype)

The way is chosen once, from the specs, and gives exactly what the definition gives:
- `same`, `xor`: quantized = pixel, or pixel - 128;
- `affine`: quantized = (pixel * m + c) >> s in int32, if such m, c and s are exact for all 256 values of every channel;
- `table`: else one look-up a channel;
- `cast`, `float`: an artifact that takes floats: one multiply and one add.

Constants that differ by channel are repeated for several rows, because NumPy is slow over inner loops of three values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import ImageSpec, Quantization, TensorSpec

Step = Callable[[NDArray[Any]], NDArray[Any]]

_BLOCK = 16_384
"""Values of one inner loop of NumPy; constants of this length stay in the first-level cache."""


def quantize(
    real: NDArray[Any], quantization: Quantization, dtype: np.dtype[Any], *, fits: bool = False
) -> NDArray[Any]:
    """q = clip(round(real / scale) + zero_point), round half to even, clipped to dtype's range.
    fits: no value needs to be clipped."""
    real = np.asarray(real, np.float32)
    steps = np.divide(real, np.float32(quantization.scale), out=np.empty(real.shape, np.float32))
    np.rint(steps, out=steps)
    steps += quantization.zero_point
    if not fits:
        limits = np.iinfo(dtype)
        np.clip(steps, limits.min, limits.max, out=steps)
    quantized: NDArray[Any] = steps.astype(dtype)
    return quantized


def pixel_step(image: ImageSpec, tensor: TensorSpec) -> tuple[str, Step]:
    """(name of the conversion, function uint8 [H, W, C] -> the artifact's numbers).
    The result is [C, H, W] if that is the artifact's layout. 8-bit numbers may be uint8: view them as its dtype."""
    mean, std = np.asarray(image.mean, np.float32), np.asarray(image.std, np.float32)
    dtype, planar = np.dtype(tensor.dtype), tensor.layout == "NCHW"
    if tensor.quantization is None:
        return _float_step(mean, std, dtype, planar, (image.height, image.width))
    pixels = np.arange(256, dtype=np.float32)[:, None]
    table = quantize((pixels - mean) / std, tensor.quantization, dtype)  # [256, channels]
    slopes = 1 / (std.astype(np.float64) * tensor.quantization.scale)
    way, step = _quantized_step(table, slopes, (image.height, image.width))
    return (way, (lambda item: np.ascontiguousarray(step(item).transpose(2, 0, 1)))) if planar else (way, step)


def _quantized_step(table: NDArray[Any], slopes: NDArray[np.float64], size: tuple[int, int]) -> tuple[str, Step]:
    if table.dtype == np.int8 and (table == (np.arange(256) - 128).astype(np.int8)[:, None]).all():
        sign = np.uint8(0x80)
        return "xor", partial(np.bitwise_xor, sign)
    if table.dtype == np.uint8 and (table == np.arange(256, dtype=np.uint8)[:, None]).all():
        return "same", np.asarray
    affine = _affine_step(table, slopes, size)
    if affine is not None:
        return "affine", affine
    columns = [np.ascontiguousarray(table[:, channel]) for channel in range(table.shape[1])]

    def look_up(item: NDArray[Any]) -> NDArray[Any]:
        return np.stack([column.take(item[..., channel]) for channel, column in enumerate(columns)], axis=-1)

    return "table", look_up


def _affine_step(table: NDArray[Any], slopes: NDArray[np.float64], size: tuple[int, int]) -> Step | None:
    """The multiply-add that equals the table for every pixel, or None."""
    largest = 256 * float(np.abs(slopes).max()) + float(np.abs(table.astype(np.int64)).max()) + 2
    shift = math.floor(math.log2(2**30 / largest))
    if not 0 <= shift <= 30:
        return None
    found = [
        _exact_affine(table[:, c].astype(np.int64), round(float(slopes[c]) * 2**shift), shift, table.dtype)
        for c in range(len(slopes))
    ]
    if any(channel is None for channel in found):
        return None
    factors, terms = (np.array(column, np.int64) for column in zip(*(f for f in found if f), strict=True))
    block, dtype = _block(size, len(slopes)), table.dtype
    m, c = _tile_channels(factors.astype(np.int32), block), _tile_channels(terms.astype(np.int32), block)
    limits = np.iinfo(dtype)
    fits = (((np.arange(256)[:, None] * factors + terms) >> shift) == table).all()

    def affine(item: NDArray[Any]) -> NDArray[Any]:
        steps = np.ascontiguousarray(item).reshape(-1, block).astype(np.int32)
        steps *= m
        steps += c
        steps >>= shift
        if not fits:
            np.clip(steps, limits.min, limits.max, out=steps)
        return steps.astype(dtype).reshape(item.shape)

    return affine


def _exact_affine(values: NDArray[np.int64], factor: int, shift: int, dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """(m, c) with (p * m + c) >> shift == values[p] for every pixel p; None if there is none.
    For a value at a limit of dtype the left side may exceed it. Each p gives an interval of c, open at a limit:
    values[p] << shift <= p * m + c < (values[p] + 1) << shift. c is the middle of their intersection."""
    limits, at = np.iinfo(dtype), np.arange(256) * factor
    inside_below, inside_above = values > limits.min, values < limits.max
    if not (inside_below.any() and inside_above.any()):
        return None
    low = int(((values << shift) - at)[inside_below].max())
    high = int((((values + 1) << shift) - at)[inside_above].min()) - 1
    return None if low > high else (factor, (low + high) // 2)


def _float_step(
    mean: NDArray[Any], std: NDArray[Any], dtype: np.dtype[Any], planar: bool, size: tuple[int, int]
) -> tuple[str, Step]:
    scale, shift = (1.0 / std).astype(np.float32), (-mean / std).astype(np.float32)
    if (scale == 1).all() and (shift == 0).all():
        if planar:
            return "cast", lambda item: np.ascontiguousarray(item.transpose(2, 0, 1)).astype(dtype)
        return "cast", lambda item: item.astype(dtype)
    block = _block(size, len(mean))
    scales, shifts = _tile_channels(scale, block), _tile_channels(shift, block)

    def along_rows(item: NDArray[Any]) -> NDArray[Any]:
        real = np.ascontiguousarray(item).reshape(-1, block).astype(np.float32)
        real *= scales
        real += shifts
        return real.reshape(item.shape).astype(dtype, copy=False)

    def by_planes(item: NDArray[Any]) -> NDArray[Any]:
        real = np.ascontiguousarray(item.transpose(2, 0, 1)).astype(np.float32)
        for channel in range(len(scale)):
            real[channel] *= scale[channel]
            real[channel] += shift[channel]
        return real.astype(dtype, copy=False)

    return "float", by_planes if planar else along_rows


def _block(size: tuple[int, int], channels: int) -> int:
    """Values of as many whole rows as divide the picture's height and fit into a block."""
    height, row = size[0], size[1] * channels
    return row * max(n for n in range(1, height + 1) if height % n == 0 and (n == 1 or n * row <= _BLOCK))


def _tile_channels(values: NDArray[Any], block: int) -> NDArray[Any]:
    """One value a channel -> the constants of a block.
    A single value if all channels have the same."""
    return values[:1] if (values == values[0]).all() else np.tile(values, block // len(values))
