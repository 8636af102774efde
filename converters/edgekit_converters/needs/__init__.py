"""What an artifact asks of a runtime, and which would refuse it or answer wrongly.

    needs = read_needs("tflite", artifact.data)
    barriers(needs, Runtime("tflite-runtime", "2.14.0", "aarch64"))         # () where nothing stands in the way

Rules: what is asked is derived from operators and tensors; what a file says of itself (`min_runtime_version`) only ever
adds to it, because files are seen that claim too little. Nothing is run, and no engine is imported.
"""

from __future__ import annotations

import importlib

from edgekit_converters.errors import ConversionError
from edgekit_converters.needs.rules import Barrier, BarrierCode, Needs, Runtime, Use, barriers
from edgekit_runtime.errors import MissingExtraError

__all__ = ["Barrier", "BarrierCode", "Needs", "Runtime", "Use", "barriers", "read_needs"]

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
