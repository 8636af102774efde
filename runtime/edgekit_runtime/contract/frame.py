"""What a camera hands out: BGR or RGB, YUV 4:2:0 in planes or 4:2:2 in one, with the padding that drivers leave.

    model.predict(Frame(array, "bgr"))                                      # OpenCV, picamera2: uint8 [H, W, 3]
    model.predict(Frame(buffer, "nv12", width=1280, height=720, stride=1280))

Rules:
- the caller says what it is: the bytes of BGR and of RGB look alike, and guessing swaps colours silently;
- nothing is copied when a frame is made; rows may be padded (`stride`), planes too (`rows`);
- no more pixels than of a picture, and no larger buffer than a picture's file may have;
- the sizes of 4:2:0 and the width of 4:2:2 are even, and a buffer that is too short for what it is said to hold is refused at once.

YUV 4:2:0, after luma Y [rows, stride]: `nv12` one plane of U, V pairs; `nv21` of V, U pairs; `i420` a plane of U and one of V,
each with half the stride and half the rows; `yv12` the same with V first. YUV 4:2:2, of two pixels in a row: `yuyv` (YUY2, what
most USB cameras give) Y, U, Y, V; `uyvy` U, Y, V, Y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.picture import MAX_PIXELS, bounded, refuse_large
from edgekit_runtime.errors import InputError

__all__ = ["Frame", "FrameFormat", "Matrix"]

FrameFormat = Literal["bgr", "rgb", "bgra", "rgba", "gray", "nv12", "nv21", "i420", "yv12", "yuyv", "uyvy"]
Matrix = Literal["bt601", "bt709"]
Pixels = NDArray[np.uint8]

_CHANNELS = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4, "gray": 1}
_PAIRS = {"yuyv": (0, 1, 3), "uyvy": (1, 0, 2)}  # where Y, U and V begin in the four bytes of two pixels
_FOURCC = {"yuy2": "yuyv", "yuyv422": "yuyv", "uyvy422": "uyvy", "yu12": "i420", "iyuv": "i420", "grey": "gray"}
"""What others call a layout. Not "RGB888": of libcamera that is B, G, R in memory, of others R, G, B."""
_WHERE = "a camera frame"


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a camera, upright.

    data: a uint8 array, or bytes, a bytearray, a memoryview or an mmap. Packed formats take an array [H, W, C] (gray: [H, W])
    of any strides, 4:2:2 one of [H, W, 2]; all take a flat buffer, then with width and height. A 2-D array of 4:2:0 is [rows * 3 / 2, stride], as
    OpenCV and picamera2 give it; its width and height are those of the array unless they are given.
    stride: bytes from one row (of luma) to the next; rows: rows of luma in the buffer, padding included. By default there is
    no padding. matrix, full_range: what the camera made YUV with: BT.601 and 16..235 by default, as most do;
    high-definition video is often BT.709, JPEG-like sensors have the full range.
    format, matrix: in any case. Raises InputError where sizes and buffer do not fit or are too large, ValueError for a format
    or matrix that does not exist.
    """

    data: Any
    format: FrameFormat
    width: int | None = None
    height: int | None = None
    stride: int | None = None
    rows: int | None = None
    matrix: Matrix = "bt601"
    full_range: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("format", FrameFormat), ("matrix", Matrix)):
            object.__setattr__(self, name, _named(name, getattr(self, name), get_args(kind)))
        refuse_large(*self.size, MAX_PIXELS, _WHERE)
        bounded(int(getattr(self.data, "nbytes", 0)), _WHERE)
        _ = self.parts  # whatever is wrong is told where the frame is made

    @cached_property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        shape = self._shape
        width, height = self.width, self.height
        if (self.packed and len(shape) >= 2) or len(shape) == 3:
            width, height = width or shape[1], height or shape[0]
        elif len(shape) == 2 and self.format not in _PAIRS:
            width, height = width or shape[1], height or (self.rows or shape[0] * 2 // 3)
        if width is None or height is None:
            raise _refused("a flat buffer does not say how large its picture is", "Pass width= and height=")
        if width < 1 or height < 1:
            raise _refused(f"{width} x {height} is no picture", "Check what the camera was set to")
        if self.format in _PAIRS and width % 2:
            raise _refused(f"4:2:2 has one colour for 2 pixels of a row, and {width} is odd", "Pass the camera's width")
        if not self.packed and self.format not in _PAIRS and (width % 2 or height % 2):
            raise _refused(
                f"4:2:0 has one colour for 2 x 2 pixels, and {width} x {height} is odd",
                "Pass the size that the camera was set to, and its padding as stride= and rows=",
            )
        return int(width), int(height)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.data, "shape", ()))

    @property
    def packed(self) -> bool:
        """Whether a pixel has its own three colours, or a grey."""
        return self.format in _CHANNELS

    @cached_property
    def parts(self) -> tuple[Pixels, ...]:
        """Views, without any padding: (pixels [H, W, C],), or (Y [H, W], U, V), both [H/2, W/2], or [H, W/2] of 4:2:2."""
        if self.packed:
            return (self._pixels(),)
        return self._pairs() if self.format in _PAIRS else self._planes()

    def _pairs(self) -> tuple[Pixels, ...]:
        width, height = self.size
        stride, flat = self.stride or 2 * width, self._flat()
        if stride < 2 * width:
            raise _refused(f"{stride} bytes a row do not hold {width} pixels of 4:2:2", "Pass the stride in bytes")
        v, u, y = reversed(_PAIRS[self.format])
        second, first = (self._plane(flat, at, (height, width // 2), (stride, 4)) for at in (v, u))
        return self._plane(flat, y, (height, width), (stride, 2)), first, second

    def _planes(self) -> tuple[Pixels, ...]:
        width, height = self.size
        flat = self._flat()
        stride, rows = self.stride or self._natural_stride(), self.rows or height
        half = stride if self.format in ("nv12", "nv21") else stride // 2
        if stride < width or rows < height or stride % 2 or rows % 2:
            raise _refused(
                f"{stride} bytes a row and {rows} rows do not hold {width} x {height} pixels of 4:2:0",
                "Both are even, and at least the picture's",
            )
        start, shape = stride * rows, (height // 2, width // 2)
        at, strides = (start + 1, (stride, 2)) if half == stride else (start + half * (rows // 2), (half, 1))
        second = self._plane(flat, at, shape, strides)  # the last one first: it is what a short buffer lacks
        first = self._plane(flat, start, shape, strides)
        luma = self._plane(flat, 0, (height, width), (stride, 1))
        return (luma, first, second) if self.format in ("nv12", "i420") else (luma, second, first)

    def _natural_stride(self) -> int:
        shape = self._shape
        return int(shape[1]) if len(shape) == 2 and not self.packed else self.size[0] * _CHANNELS.get(self.format, 1)

    def _pixels(self) -> Pixels:
        width, height = self.size
        channels = _CHANNELS[self.format]
        if isinstance(self.data, np.ndarray) and self.data.ndim >= 2:
            array = self.data[:, :, None] if self.data.ndim == 2 else self.data
            if array.dtype != np.uint8 or array.shape != (height, width, channels):
                raise _refused(
                    f"{array.dtype} {list(self.data.shape)} is not {self.format} of {width} x {height}",
                    f"Pass uint8 [{height}, {width}, {channels}]",
                )
            return array
        stride = self.stride or self._natural_stride()
        if stride < width * channels:
            raise _refused(f"{stride} bytes a row do not hold {width} pixels", "Pass the stride in bytes")
        return self._plane(self._flat(), 0, (height, width, channels), (stride, channels, 1))

    def _flat(self) -> Pixels:
        if isinstance(self.data, np.ndarray):
            if self.data.dtype != np.uint8:
                raise _refused(f"an array of {self.data.dtype} is no buffer of bytes", "Pass uint8")
            return np.ascontiguousarray(self.data).reshape(-1)
        try:
            return np.frombuffer(self.data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise _refused(f"a {type(self.data).__name__} is no buffer", "Pass a uint8 array or bytes") from error

    def _plane(self, flat: Pixels, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Pixels:
        """Raises InputError where the last value of the plane lies beyond the buffer."""
        end = start + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
        if end > flat.size:
            width, height = self.size
            raise _refused(
                f"{flat.size} bytes are too few for {self.format} of {width} x {height}: it takes {end} or more",
                "Check width, height, stride and rows",
            )
        if max(strides) > flat.size:
            raise _refused(
                f"{max(strides)} bytes a row are more than the buffer's {flat.size}", "Pass the stride in bytes"
            )
        return np.lib.stride_tricks.as_strided(flat[start:], shape, strides, writeable=False)


def _named(name: str, value: object, allowed: Sequence[str]) -> str:
    """Written in any case, as drivers and OpenCV write NV12. Raises ValueError, with what may have been meant."""
    low = value.lower() if isinstance(value, str) else ""
    if low in allowed:
        return low
    from difflib import get_close_matches

    meant = _FOURCC.get(low) or next(iter(get_close_matches(low, allowed, 1)), None)
    hint = f"; did you mean '{meant}'?" if meant in allowed else ""
    raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r:.40}{hint}")


def _refused(what: str, do: str) -> InputError:
    return InputError(what, where=_WHERE, do=do)
