"""Where a picture is placed for a network, and the network's points in the picture.
Pure arithmetic.

    placement = place(1280, 720, image)             # crop, inner size, offset on the network's canvas
    placement.geometry.to_caller(boxes)             # network pixels -> pixels of the caller's picture

Rules:
- everything is in the *upright* picture, as a viewer shows it;
- coordinates are of edges, not pixel centres: a picture spans 0 to its width at any scale;
- `stretch` scales each axis; `center-crop` keeps the aspect and loses the margins; `letterbox` keeps the aspect and
  pads around the centred picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import ImageSpec
from edgekit_runtime.system.records import record

Box4 = tuple[float, float, float, float]
"""left, top, right, bottom."""


@record(frozen=True)
class Geometry:
    """x of the caller's picture = left + scale_x * x of the network's, and so for y.

    width, height: the caller's picture, upright, in pixels.
    left, top: the network's upper left corner in it; negative if padded.
    scale_x, scale_y: the caller's pixels per pixel of the network."""

    width: int
    height: int
    left: float = 0.0
    top: float = 0.0
    scale_x: float = 1.0
    scale_y: float = 1.0

    def to_caller(self, boxes: NDArray[Any]) -> NDArray[np.float64]:
        """[N, 4] left, top, right, bottom: from network pixels to the caller's, not clipped."""
        scales, corner = self._arrays()
        return np.asarray(boxes, np.float64) * scales + corner

    def to_network(self, boxes: NDArray[Any]) -> NDArray[np.float64]:
        """The inverse of `to_caller`."""
        scales, corner = self._arrays()
        return (np.asarray(boxes, np.float64) - corner) / scales

    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array([self.scale_x, self.scale_y] * 2), np.array([self.left, self.top] * 2)


@record(frozen=True)
class Placement:
    """How a picture was placed in the tensor.

    size: (width, height) of the upright picture.
    crop: (left, top, right, bottom), its part that is used, in whole pixels.
    inner: (width, height) that the crop is scaled to.
    offset: (x, y) of its corner on the network's canvas; (0, 0) except for a letterbox."""

    size: tuple[int, int]
    crop: tuple[int, int, int, int]
    inner: tuple[int, int]
    offset: tuple[int, int]

    @property
    def geometry(self) -> Geometry:
        left, top, right, bottom = self.crop
        scale_x, scale_y = (right - left) / self.inner[0], (bottom - top) / self.inner[1]
        x, y = self.offset
        return Geometry(*self.size, left - x * scale_x, top - y * scale_y, scale_x, scale_y)

    @property
    def shrinks(self) -> float:
        """How many pixels of the picture become one, along the axis where that is least."""
        left, top, right, bottom = self.crop
        return min((right - left) / self.inner[0], (bottom - top) / self.inner[1])


def place(width: int, height: int, image: ImageSpec) -> Placement:
    """Where an upright picture of width x height goes; both at least 1."""
    whole, canvas = (0, 0, width, height), (image.width, image.height)
    if image.resize == "center-crop":
        scale = min(width / image.width, height / image.height) * image.crop
        crop_w, crop_h = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        left, top = (width - crop_w) // 2, (height - crop_h) // 2
        return Placement((width, height), (left, top, left + crop_w, top + crop_h), canvas, (0, 0))
    if image.resize == "letterbox":
        scale = min(image.width / width, image.height / height)
        inner = max(1, round(width * scale)), max(1, round(height * scale))
        offset = (image.width - inner[0]) // 2, (image.height - inner[1]) // 2
        return Placement((width, height), whole, inner, offset)
    return Placement((width, height), whole, canvas, (0, 0))


def stored_box(box: Box4, size: tuple[int, int], orientation: int) -> Box4:
    """A box of the upright picture, in the picture as stored.

    size: (width, height) as stored.
    orientation: 1 to 8, of tag 274 of TIFF 6.0 (EXIF 2.32, 4.6.4 A)."""
    width, height = size
    left, top, right, bottom = box
    if orientation in (5, 6, 7, 8):  # rows and columns are exchanged
        left, top, right, bottom = top, left, bottom, right
    if orientation in (2, 3, 7, 8):
        left, right = width - right, width - left
    if orientation in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return left, top, right, bottom
