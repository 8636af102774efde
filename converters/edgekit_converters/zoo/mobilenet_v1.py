"""MobileNetV1 1.0 at 224x224 with seeded weights: what boards and workstations time, so that other times mean something.

    files = anchor_files(Path("anchors"))              # {"mobilenet_v1-int8.tflite": Path(...), ...}, written once
    data = anchor_model("tflite", "int8")              # the same bytes on every machine

Rules:
- nothing converts it: the files are written tensor by tensor, in a second and without TensorFlow, in operation versions
  that every runtime of `wheels.toml` knows;
- float32, and int8 from end to end with a scale for each output channel, as `tflite-int8` and `onnx-int8-qdq` make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from edgekit_converters.errors import ConversionError
from edgekit_converters.zoo.mobilenet_v1_layers import ANCHOR_SIDE, layers
from edgekit_runtime.whole_file import write_cache

__all__ = ["ANCHOR_SIDE", "anchor_files", "anchor_model", "anchor_name"]

FORMATS = ("tflite", "onnx")
PRECISIONS = ("float32", "int8")


def anchor_name(format: str, precision: str) -> str:  # noqa: A002
    """What the file is called on a board: `mobilenet_v1-int8.tflite`."""
    return f"mobilenet_v1-{precision}.{format}"


@cache
def anchor_model(format: str, precision: str) -> bytes:  # noqa: A002
    """The file. format: `tflite` or `onnx`; precision: `float32` or `int8`.

    Raises MissingExtraError where what writes the format (LiteRT's schema, onnx) is not installed.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"an anchor is float32 or int8, not {precision}")
    if format == "tflite":
        from edgekit_converters.zoo.mobilenet_v1_tflite import write
    elif format == "onnx":
        from edgekit_converters.zoo.mobilenet_v1_onnx import write
    else:
        raise ValueError(f"an anchor is tflite or onnx, not {format}")
    return write(layers(), precision == "int8")


def anchor_files(folder: Path, formats: Sequence[str] = ("tflite",)) -> dict[str, Path]:
    """The files of both precisions in `folder`, by name, written where they are not there yet; 21 MB a format.

    Raises ConversionError where the folder cannot be written, and what `anchor_model` raises.
    """
    found = {}
    for form in formats:
        for precision in PRECISIONS:
            path = folder / anchor_name(form, precision)
            if not path.exists():
                _write(path, anchor_model(form, precision))
            found[path.name] = path
    return found


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    try:
        write_cache(path, [data])
    except OSError as error:
        raise ConversionError(f"cannot be written: {error.strerror or error}", where=str(path)) from error
