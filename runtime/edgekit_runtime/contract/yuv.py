"""Camera frames -> the canonical pixels: sized before they are coloured, where that is less work.

    pixels, placement = render_frame(Frame(buffer, "nv12", width=1280, height=720), image)

Y'CbCr to R'G'B', from ITU-R BT.601-7 (2.5.1, 2.5.3) and BT.709-6 (3.2 to 3.4), with Kr, Kb = 0.299, 0.114 and 0.2126, 0.0722,
Kg = 1 - Kr - Kb, and each of Y, U, V as the frame has it:

    y = (Y - 16) * 255 / 219       u, v = (U - 128) * 255 / 224, (V - 128) * 255 / 224       (full range: Y, U - 128, V - 128)
    R = y + 2 (1 - Kr) v           B = y + 2 (1 - Kb) u
    G = y - 2 (1 - Kb) Kb / Kg u - 2 (1 - Kr) Kr / Kg v

Rules:
- a frame that shrinks is resized plane by plane and coloured at the network's size: a fiftieth of the pixels of a 1080p
  frame. One that keeps its size needs no Pillow, and takes each colour for its 2 x 2 pixels;
- each of y and the three colour terms is rounded to a whole step: at most one and a half off the formula in all;
- the result never shares memory with the frame: a camera fills its buffers again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.frame import Frame, Matrix, Pixels
from edgekit_runtime.contract.geometry import Placement, place
from edgekit_runtime.contract.picture import on_canvas, pillow, render, resampling
from edgekit_runtime.contract.spec import ImageSpec

__all__ = ["render_frame", "to_rgb"]

_K = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}


def render_frame(frame: Frame, image: ImageSpec) -> tuple[NDArray[np.uint8], Placement]:
    """The canonical tensor of a frame, in memory of its own, and how it was placed."""
    placement = place(*frame.size, image)
    if frame.packed:
        return _packed(frame, image, placement), placement
    luma, u, v = frame.parts
    gray = image.color == "gray"
    if placement.crop != (0, 0, *frame.size) or placement.inner != frame.size:
        if placement.shrinks < 1 and not gray:  # it grows: fewer pixels are coloured before than after
            return render(pillow().fromarray(to_rgb(luma, u, v, frame.matrix, frame.full_range)), image)
        shares = luma.shape[1] // u.shape[1], luma.shape[0] // u.shape[0]
        luma = _scaled(luma, placement, image, (1, 1))
        if not gray:
            u, v = (_scaled(plane, placement, image, shares) for plane in (u, v))
    if gray:
        pixels = luma.copy() if frame.full_range else np.clip(_luma(luma), 0, 255).astype(np.uint8)
        return on_canvas(pixels, placement, image), placement
    return on_canvas(to_rgb(luma, u, v, frame.matrix, frame.full_range), placement, image), placement


def to_rgb(luma: Pixels, u: Pixels, v: Pixels, matrix: Matrix, full_range: bool) -> Pixels:
    """[H, W, 3] RGB of luma [H, W] and colours of the same shape, or of half of it along one axis or both."""
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


_BITS = 16
_HALF = 1 << (_BITS - 1)


@dataclass(frozen=True)
class _Coefficients:
    """What stands before u and v, in 65536ths."""

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
        round(one * (1 - kr)),
        round(one * (1 - kb)),
        round(-one * (1 - kb) * kb / kg),
        round(-one * (1 - kr) * kr / kg),
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


def _scaled(plane: Pixels, placement: Placement, image: ImageSpec, shares: tuple[int, int]) -> Pixels:
    """The part of a plane that is used, at the placement's inner size. shares: pixels of luma for one of its own, x and y."""
    (left, top, right, bottom), (x, y) = placement.crop, shares
    whole = (left // x, top // y, -(-right // x), -(-bottom // y))
    part = np.ascontiguousarray(plane[whole[1] : whole[3], whole[0] : whole[2]])
    box = (left / x - whole[0], top / y - whole[1], right / x - whole[0], bottom / y - whole[1])
    return np.asarray(pillow().fromarray(part).resize(placement.inner, resampling(image), box))


def _packed(frame: Frame, image: ImageSpec, placement: Placement) -> NDArray[np.uint8]:
    """Resized in the camera's own order of colours; what is left of it is put into the contract's."""
    pixels = frame.parts[0]
    order: ImageSpec = image
    if frame.format in ("bgr", "bgra"):
        if image.color == "gray":  # grey weighs red and blue apart
            pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
        else:
            order = replace(image, color="rgb" if image.color == "bgr" else "bgr")
    if pixels.shape == (image.height, image.width, image.channels):
        turned = order.color == "bgr"
        return np.ascontiguousarray(pixels[:, :, ::-1]) if turned else pixels.copy()
    array = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return render(pillow().fromarray(np.ascontiguousarray(array)), order)[0]
