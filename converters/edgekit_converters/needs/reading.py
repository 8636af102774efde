"""What an artifact asks of a runtime, by its format."""

from __future__ import annotations

import importlib

from edgekit_converters.errors import ConversionError
from edgekit_converters.needs.rules import Needs
from edgekit_runtime.errors import MissingExtraError

READERS = {
    "tflite": "edgekit_converters.needs.rules:read",
    "onnx": "edgekit_converters.needs.onnx:read",
}


def read_needs(format: str, data: bytes) -> Needs:  # noqa: A002
    """format: `tflite` or `onnx`.

    Raises ConversionError when the bytes are not such a model, MissingExtraError when the tools that read them are not
    installed.
    """
    target = READERS.get(format)
    if target is None:
        raise ConversionError(f"nothing reads what the format '{format}' asks for", do=f"Known: {', '.join(READERS)}")
    module, function = target.split(":")
    try:
        needs: Needs = getattr(importlib.import_module(module), function)(data)
    except ImportError as error:
        raise MissingExtraError("convert", f"reading what {format} artifacts ask for") from error
    return needs
