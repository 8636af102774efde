"""Canonical tensor -> the tensor one destination takes: mean/std, layout, scale and zero-point of *that* artifact.

The way is chosen once, from the specs, and is as short as the numbers allow:

- the tensor already has the artifact's dtype and shape: nothing is computed;
- uint8 pixels into int8 where the steps line up (quantized = pixel - 128): one xor;
- uint8 pixels into int8 or uint8 otherwise: one 256-entry table a channel;
- uint8 pixels into float: one multiply and one add;
- a float tensor (what the original model took) into int8: scale, round half to even, clip.

    adapter = Adapter(contract.inputs[0], artifact.inputs[0])
    tensor = adapter(canonical)            # batch axis added: shape (1, ...)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import InputContract
from edgekit_runtime.errors import InputError
from edgekit_runtime.tensors import Quantization, TensorSpec

__all__ = ["Adapter", "quantize"]

Step = Callable[[NDArray[Any]], NDArray[Any]]


class Adapter:
    """Callable: one canonical item (no batch axis) in, one tensor with a batch axis of 1 out.

    Items it takes, for an image input of canonical shape [H, W, C]:
    uint8 [H, W, C]: pixels. Floating [H, W, C]: what the original model took. For any input: the artifact's own dtype
    and item shape, passed through (an array ready for the engine).
    """

    def __init__(self, contract: InputContract, tensor: TensorSpec) -> None:
        self._contract = contract
        self._tensor = tensor
        self._dtype = np.dtype(tensor.dtype)
        self._item_shape = tuple(tensor.shape[1:])
        self._axes = self._turned(contract, tensor)
        self._from_pixels = _pixel_step(contract, tensor) if contract.image is not None else None

    @property
    def way(self) -> str:
        """How pixels travel, for `describe()` and the benchmarks: xor, table, float, or cast."""
        return self._from_pixels.__name__.removeprefix("_") if self._from_pixels is not None else "cast"

    def __call__(self, item: NDArray[Any]) -> NDArray[Any]:
        if self._from_pixels is not None and item.dtype == np.uint8 and item.shape == self._contract.shape:
            return self._layout(self._from_pixels(item))[None]
        if (
            item.dtype == self._dtype
            and self._fits(item.shape)
            and (self._tensor.quantization is not None or self._axes is None)
        ):
            return item[None]
        if item.shape != self._contract.shape:
            raise InputError(
                f"shape {_shape(item.shape)} does not fit",
                where=f"input '{self._contract.name}'",
                do=f"Pass shape {_shape(self._contract.shape)}",
            )
        return self._layout(self._from_original(item))[None]

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self._item_shape) and all(
            w in (-1, h) for w, h in zip(self._item_shape, shape, strict=True)
        )

    def _turned(self, contract: InputContract, tensor: TensorSpec) -> tuple[int, int, int] | None:
        """The order of axes that this artifact takes, where it is another. An image is [H, W, C]; a tensor input keeps
        the original's own axes, so only a shape that does not fit is turned."""
        if contract.image is not None:
            return (2, 0, 1) if tensor.layout == "NCHW" else None
        if tensor.layout is None or len(contract.shape) != 3 or self._fits(contract.shape):
            return None
        return (2, 0, 1) if tensor.layout == "NCHW" else (1, 2, 0)

    def _layout(self, item: NDArray[Any]) -> NDArray[Any]:
        return item if self._axes is None else np.ascontiguousarray(item.transpose(self._axes))

    def _from_original(self, item: NDArray[Any]) -> NDArray[Any]:
        if self._tensor.quantization is not None:
            return quantize(item, self._tensor.quantization, self._dtype)
        if np.issubdtype(self._dtype, np.integer) and not np.issubdtype(item.dtype, np.integer):
            raise InputError(
                f"dtype {item.dtype} cannot become {self._dtype} without losing values",
                where=f"input '{self._contract.name}'",
                do=f"Pass {self._dtype}",
            )
        return np.ascontiguousarray(item, self._dtype)


def quantize(real: NDArray[Any], quantization: Quantization, dtype: np.dtype[Any]) -> NDArray[Any]:
    """q = clip(round(real / scale) + zero_point), round half to even, clipped to dtype's range."""
    limits = np.iinfo(dtype)
    steps = np.rint(np.asarray(real, np.float32) / np.float32(quantization.scale)) + quantization.zero_point
    quantized: NDArray[Any] = np.clip(steps, limits.min, limits.max).astype(dtype)
    return quantized


def _pixel_step(contract: InputContract, tensor: TensorSpec) -> Step:
    image = contract.image
    assert image is not None
    mean, std = np.asarray(image.mean, np.float32), np.asarray(image.std, np.float32)
    if tensor.quantization is None:
        return _float_step(mean, std, np.dtype(tensor.dtype))
    dtype = np.dtype(tensor.dtype)
    pixels = np.arange(256, dtype=np.float32)[:, None]
    tables = quantize((pixels - mean) / std, tensor.quantization, dtype)  # [256, channels]
    if dtype == np.int8 and (tables == (np.arange(256) - 128).astype(np.int8)[:, None]).all():

        def _xor(item: NDArray[Any]) -> NDArray[Any]:
            return (item ^ np.uint8(0x80)).view(np.int8)

        return _xor
    if dtype == np.uint8 and (tables == np.arange(256, dtype=np.uint8)[:, None]).all():

        def _same(item: NDArray[Any]) -> NDArray[Any]:
            return item

        return _same
    if (tables == tables[:, :1]).all():
        one = np.ascontiguousarray(tables[:, 0])

        def _table(item: NDArray[Any]) -> NDArray[Any]:
            looked_up: NDArray[Any] = one[item]
            return looked_up

        return _table

    def _tables(item: NDArray[Any]) -> NDArray[Any]:
        return np.stack([tables[:, c][item[..., c]] for c in range(tables.shape[1])], axis=-1)

    return _tables


def _float_step(mean: NDArray[Any], std: NDArray[Any], dtype: np.dtype[Any]) -> Step:
    scale, shift = (1.0 / std).astype(np.float32), (-mean / std).astype(np.float32)
    if (scale == 1).all() and (shift == 0).all():

        def _cast(item: NDArray[Any]) -> NDArray[Any]:
            return item.astype(dtype)

        return _cast

    def _float(item: NDArray[Any]) -> NDArray[Any]:
        real = item.astype(np.float32)
        real *= scale
        real += shift
        return real.astype(dtype, copy=False)

    return _float


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"
