"""What the shape of an input or output may be, and when a tensor is a picture.

Rules: the first axis is the batch, free or 1; every other axis is fixed, or the error names it; a 4-D input with 1, 3
or 4 channels is a picture.

    image_layout((-1, 224, 224, 3), prefer="NHWC")      # "NHWC"
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from edgekit_converters.errors import SourceError
from edgekit_runtime.tensors import Layout, TensorSpec

__all__ = ["CHANNELS", "check_shape", "file_sha256", "image_layout", "unique_names"]

CHANNELS = (1, 3, 4)


def image_layout(shape: Sequence[int], *, prefer: Layout) -> Layout | None:
    """Where the channels stand, for a 4-D input; None when neither end has 1, 3 or 4. `prefer` settles [N, 3, 5, 3]."""
    if len(shape) != 4:
        return None
    fits: dict[Layout, bool] = {"NHWC": shape[3] in CHANNELS, "NCHW": shape[1] in CHANNELS}
    if fits[prefer]:
        return prefer
    other: Layout = "NCHW" if prefer == "NHWC" else "NHWC"
    return other if fits[other] else None


def check_shape(spec: TensorSpec, *, where: str, kind: str, axis_names: Sequence[str | None] = ()) -> None:
    """Raises SourceError unless axis 0 is a batch of -1 or 1 and every other axis is fixed and positive."""
    label, shape = f"{kind} '{spec.name}'", spec.shape
    written = "[" + ", ".join("?" if n == -1 else str(n) for n in shape) + "]"
    if not shape:
        raise SourceError(
            f"{label} is a scalar: it has no batch axis", where=where, do="Give it a first axis for the batch"
        )
    for axis, size in enumerate(shape):
        if axis == 0 and size in (-1, 1):
            continue
        name = axis_names[axis] if axis < len(axis_names) else None
        called = f"axis {axis} ('{name}')" if name and name != "?" else f"axis {axis}"
        if axis == 0:
            raise SourceError(
                f"{label} has a fixed batch of {size}",
                where=where,
                do="Export the model with a free batch axis or a batch of 1",
            )
        if size < 1:
            state = "is free" if size == -1 else f"has the size {size}"
            raise SourceError(
                f"{label} has the shape {written}: {called} {state}, and only the batch axis may be free",
                where=where,
                do=f"Export the model with a fixed size for axis {axis}",
            )


def unique_names(names: Sequence[str], *, where: str, kind: str) -> tuple[str, ...]:
    """Names without TensorFlow's ':0'. Raises SourceError when two are the same: a contract could not tell them apart."""
    clean = tuple(name.removesuffix(":0") for name in names)
    for name in clean:
        if not name or clean.count(name) > 1:
            raise SourceError(
                f"two {kind}s are called '{name}'" if name else f"an {kind} has no name",
                where=where,
                do="Give each its own name and save the model again",
            )
    return clean


def file_sha256(path: Path) -> str:
    """Of the whole file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
