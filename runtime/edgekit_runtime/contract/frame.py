"""A camera's picture: BGR or RGB, YUV 4:2:0 or 4:2:2, with drivers' padding.

    model.predict(Frame(array, "bgr"))                                      # OpenCV, picamera2: uint8 [H, W, 3]
    model.predict(Frame(buffer, "nv12", width=1280, height=720, stride=1280))
    pixels, placement = render_frame(frame, image)                          # the canonical pixels

Rules:
- the caller names the format, because guessing would swap colours silently;
- making a frame copies nothing, and rows and planes may be padded; the canonical pixels never share memory with it;
- a frame has no more pixels than a picture may, and no larger buffer than a picture's file; a short buffer is refused;
- 4:2:0 has even sizes, 4:2:2 an even width;
- a frame that shrinks is resized by plane and coloured at the network's size; one that keeps its size needs no Pillow;
- y and the colour terms are each rounded to a whole step: at most 1.5 off the formula.

YUV 4:2:0, after luma Y [rows, stride]: `nv12` a plane of U, V pairs; `nv21` of V, U pairs; `i420` a plane of U and one
of V, each with half the stride and rows; `yv12` V first. YUV 4:2:2, two pixels of a row: `yuyv` (YUY2, of most USB
cameras) Y, U, Y, V; `uyvy` U, Y, V, Y.

Y'CbCr to R'G'B', from ITU-R BT.601-7 (2.5.1, 2.5.3) and BT.709-6 (3.2 to 3.4), with Kr, Kb = 0.299, 0.114 and 0.2126,
0.0722, Kg = 1 - Kr - Kb:

    y = (Y - 16) * 255 / 219       u, v = (U - 128) * 255 / 224, (V - 128) * 255 / 224
    (full range: Y, U - 128, V - 128)
    R = y + 2 (1 - Kr) v           B = y + 2 (1 - Kb) u
    G = y - 2 (1 - Kb) Kb / Kg u - 2 (1 - Kr) Kr / Kg v
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.geometry import Placement, place
from edgekit_runtime.contract.picture import (
    MAX_PIXELS,
    check_bytes,
    on_canvas,
    pillow,
    refuse_large,
    render,
    resampling,
)
from edgekit_runtime.contract.spec import ImageSpec
from edgekit_runtime.system.errors import InputError
from edgekit_runtime.system.records import record

FrameFormat = Literal["bgr", "rgb", "bgra", "rgba", "gray", "nv12", "nv21", "i420", "yv12", "yuyv", "uyvy"]
Matrix = Literal["bt601", "bt709"]
Pixels = NDArray[np.uint8]
_CHANNELS = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4, "gray": 1}
_PAIRS = {"yuyv": (0, 1, 3), "uyvy": (1, 0, 2)}  # where Y, U and V begin in the four bytes of two pixels
_FOURCC = {"yuy2": "yuyv", "yuyv422": "yuyv", "uyvy422": "uyvy", "yu12": "i420", "iyuv": "i420", "grey": "gray"}
"""Other names of a layout. Not "RGB888": libcamera's is B, G, R in memory, others' R, G, B."""
_WHERE = "a camera frame"
_K = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
_BITS = 16
_HALF = 1 << (_BITS - 1)


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture of a camera, upright.

    data: a uint8 array or a flat buffer. Arrays are [H, W, C] of packed formats (gray: [H, W]), [H, W, 2] of 4:2:2, and
        [rows * 3 / 2, stride] of 4:2:0, as OpenCV and picamera2 give it. A flat buffer needs width and height.
    format, matrix: in upper or lower case.
    stride: bytes per row (of luma); None without padding.
    rows: luma rows in the buffer, including padding.
    matrix, full_range: the camera's YUV encoding; HD video is often BT.709, JPEG-like sensors have the full range.

    Raises InputError if sizes and buffer do not fit or are too large, ValueError for an unknown format or matrix."""

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
            object.__setattr__(self, name, _normalize_name(name, getattr(self, name), get_args(kind)))
        refuse_large(*self.size, MAX_PIXELS, _WHERE)
        check_bytes(int(getattr(self.data, "nbytes", 0)), _WHERE)
        _ = self.parts  # errors are raised where the frame is made

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
            raise _refusal("a flat buffer does not say how large its picture is", "Pass width= and height=")
        if width < 1 or height < 1:
            raise _refusal(f"{width} x {height} is not a picture", "Check what the camera was set to")
        if self.format in _PAIRS and width % 2:
            raise _refusal(f"4:2:2 has one colour for 2 pixels of a row, and {width} is odd", "Pass the camera's width")
        if not self.packed and self.format not in _PAIRS and (width % 2 or height % 2):
            do = "Pass the size that the camera was set to, and its padding as stride= and rows="
            raise _refusal(f"4:2:0 has one colour for 2 x 2 pixels, and {width} x {height} is odd", do)
        return int(width), int(height)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.data, "shape", ()))

    @property
    def packed(self) -> bool:
        """Whether the format is packed (not planar or subsampled)."""
        return self.format in _CHANNELS

    @cached_property
    def parts(self) -> tuple[Pixels, ...]:
        """Views without padding: (pixels [H, W, C],), or (Y [H, W], U, V).
        U and V are [H/2, W/2] of 4:2:0, [H, W/2] of 4:2:2."""
        if self.packed:
            return (self._pixels(),)
        return self._pairs() if self.format in _PAIRS else self._planes()

    def _pairs(self) -> tuple[Pixels, ...]:
        width, height = self.size
        stride, flat = self.stride or 2 * width, self._flat()
        if stride < 2 * width:
            raise _refusal(f"{stride} bytes a row do not hold {width} pixels of 4:2:2", "Pass the stride in bytes")
        v, u, y = reversed(_PAIRS[self.format])
        second, first = (self._plane(flat, at, (height, width // 2), (stride, 4)) for at in (v, u))
        return self._plane(flat, y, (height, width), (stride, 2)), first, second

    def _planes(self) -> tuple[Pixels, ...]:
        width, height = self.size
        flat = self._flat()
        stride, rows = self.stride or self._natural_stride(), self.rows or height
        half = stride if self.format in ("nv12", "nv21") else stride // 2
        if stride < width or rows < height or stride % 2 or rows % 2:
            what = f"{stride} bytes a row and {rows} rows do not hold {width} x {height} pixels of 4:2:0"
            raise _refusal(what, "Both are even, and at least the picture's")
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
                what = f"{array.dtype} {list(self.data.shape)} is not {self.format} of {width} x {height}"
                raise _refusal(what, f"Pass uint8 [{height}, {width}, {channels}]")
            return array
        stride = self.stride or self._natural_stride()
        if stride < width * channels:
            raise _refusal(f"{stride} bytes a row do not hold {width} pixels", "Pass the stride in bytes")
        return self._plane(self._flat(), 0, (height, width, channels), (stride, channels, 1))

    def _flat(self) -> Pixels:
        if isinstance(self.data, np.ndarray):
            if self.data.dtype != np.uint8:
                raise _refusal(f"an array of {self.data.dtype} is not a buffer of bytes", "Pass uint8")
            return np.ascontiguousarray(self.data).reshape(-1)
        try:
            return np.frombuffer(self.data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise _refusal(f"a {type(self.data).__name__} is not a buffer", "Pass a uint8 array or bytes") from error

    def _plane(self, flat: Pixels, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Pixels:
        """Raises InputError if the plane's last value lies beyond the buffer."""
        end = start + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
        if end > flat.size:
            width, height = self.size
            what = f"{flat.size} bytes are too few for {self.format} of {width} x {height}: it takes {end} or more"
            raise _refusal(what, "Check width, height, stride and rows")
        if max(strides) > flat.size:
            what = f"{max(strides)} bytes a row are more than the buffer's {flat.size}"
            raise _refusal(what, "Pass the stride in bytes")
        return np.lib.stride_tricks.as_strided(flat[start:], shape, strides, writeable=False)


def _normalize_name(name: str, value: object, allowed: Sequence[str]) -> str:
    """The allowed value in any case. Raises ValueError with a suggestion."""
    low = value.lower() if isinstance(value, str) else ""
    if low in allowed:
        return low
    from difflib import get_close_matches

    meant = _FOURCC.get(low) or next(iter(get_close_matches(low, allowed, 1)), None)
    hint = f"; did you mean '{meant}'?" if meant in allowed else ""
    raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r:.40}{hint}")


def _refusal(what: str, do: str) -> InputError:
    return InputError(what, where=_WHERE, do=do)


def render_frame(frame: Frame, image: ImageSpec) -> tuple[NDArray[np.uint8], Placement]:
    """The canonical tensor of a frame, in its own memory, and how it was placed."""
    placement = place(*frame.size, image)
    if frame.packed:
        return _render_packed(frame, image, placement), placement
    luma, u, v = frame.parts
    gray = image.color == "gray"
    if placement.crop != (0, 0, *frame.size) or placement.inner != frame.size:
        if placement.shrinks < 1 and not gray:  # it grows: fewer pixels are coloured before than after
            return render(pillow().fromarray(to_rgb(luma, u, v, frame.matrix, frame.full_range)), image)
        shares = luma.shape[1] // u.shape[1], luma.shape[0] // u.shape[0]
        luma = _resize_plane(luma, placement, image, (1, 1))
        if not gray:
            u, v = (_resize_plane(plane, placement, image, shares) for plane in (u, v))
    if gray:
        pixels = luma.copy() if frame.full_range else np.clip(_luma(luma), 0, 255).astype(np.uint8)
        return on_canvas(pixels, placement, image), placement
    return on_canvas(to_rgb(luma, u, v, frame.matrix, frame.full_range), placement, image), placement


def to_rgb(luma: Pixels, u: Pixels, v: Pixels, matrix: Matrix, full_range: bool) -> Pixels:
    """[H, W, 3] RGB of luma [H, W] and colours of its shape, or half of it along an axis."""
    k = _coefficients(matrix, full_range)
    y = luma.astype(np.int16) if full_range else _luma(luma)
    wide_u, wide_v = u.astype(np.int32), v.astype(np.int32)
    red, blue = _term(wide_v, k.red), _term(wide_u, k.blue)
    green = wide_u * k.green_u
    wide_v *= k.green_v
    green += wide_v
    green += _HALF - 128 * (k.green_u + k.green_v)
    green >>= _BITS
    rgb = np.empty((*luma.shape, 3), np.uint8)
    for channel, term in enumerate((red, green, blue)):
        colour = _spread(term.astype(np.int16), luma.shape)
        colour += y
        rgb[:, :, channel] = np.clip(colour, 0, 255, out=colour)
    return rgb


@record(frozen=True)
class _Coefficients:
    """Factors of u and v, in 65536ths."""

    red: int
    blue: int
    green_u: int
    green_v: int


@cache
def _coefficients(matrix: Matrix, full_range: bool) -> _Coefficients:
    kr, kb = _K[matrix]
    kg = 1 - kr - kb
    one = (1 if full_range else 255 / 224) * 2 * (1 << _BITS)
    return _Coefficients(
        round(one * (1 - kr)), round(one * (1 - kb)), round(-one * (1 - kb) * kb / kg), round(-one * (1 - kr) * kr / kg)
    )


def _luma(luma: Pixels) -> NDArray[np.int16]:
    """(Y - 16) * 255 / 219, rounded; below 0 where Y is below 16."""
    y = luma.astype(np.int32)
    y *= round(255 / 219 * (1 << _BITS))
    y += _HALF - 16 * round(255 / 219 * (1 << _BITS))
    y >>= _BITS
    return y.astype(np.int16)


def _term(colour: NDArray[np.int32], factor: int) -> NDArray[np.int32]:
    term = colour * factor
    term += _HALF - 128 * factor
    term >>= _BITS
    return term


def _spread(term: NDArray[np.int16], shape: tuple[int, ...]) -> NDArray[np.int16]:
    """A term for each pixel that shares it. Two of a row are written as one 32-bit number."""
    if term.shape == shape:
        return term
    pairs = np.ascontiguousarray(term).view(np.uint16).astype(np.uint32)
    pairs |= pairs << np.uint32(16)
    spread = np.empty((term.shape[0], shape[0] // term.shape[0], term.shape[1]), np.uint32)
    spread[:] = pairs[:, None]
    return spread.view(np.int16).reshape(shape)


def _resize_plane(plane: Pixels, placement: Placement, image: ImageSpec, shares: tuple[int, int]) -> Pixels:
    """The used part of a plane, at the placement's inner size.
    shares: pixels of luma for one of its own, x and y."""
    (left, top, right, bottom), (x, y) = placement.crop, shares
    whole = (left // x, top // y, -(-right // x), -(-bottom // y))
    part = np.ascontiguousarray(plane[whole[1] : whole[3], whole[0] : whole[2]])
    box = (left / x - whole[0], top / y - whole[1], right / x - whole[0], bottom / y - whole[1])
    return np.asarray(pillow().fromarray(part).resize(placement.inner, resampling(image), box))


def _render_packed(frame: Frame, image: ImageSpec, placement: Placement) -> NDArray[np.uint8]:
    """Resized in the camera's order of colours, then put into the contract's."""
    pixels = frame.parts[0]
    order: ImageSpec = image
    if frame.format in ("bgr", "bgra"):
        if image.color == "gray":  # grey weighs red and blue apart
            pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
        else:
            order = replace(image, color="rgb" if image.color == "bgr" else "bgr")
    if pixels.shape == (image.height, image.width, image.channels):
        reversed_channels = order.color == "bgr"
        return np.ascontiguousarray(pixels[:, :, ::-1]) if reversed_channels else pixels.copy()
    array = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return render(pillow().fromarray(np.ascontiguousarray(array)), order)[0]
