"""The bytes of an .onnx file as a model, for all that read one.

    parse(data).graph.node

Rule: what is no model, or one that computes nothing, is one error in one sentence.
"""

from __future__ import annotations

from typing import Any

from edgekit_converters.errors import ConversionError

__all__ = ["parse"]


def parse(data: bytes) -> Any:
    """An onnx.ModelProto. Raises ConversionError when the bytes are not an ONNX model."""
    import onnx

    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's DecodeError derives from Exception alone
        raise ConversionError("these bytes are not an ONNX model") from error
    if not model.graph.node:
        raise ConversionError("these bytes are not an ONNX model")
    return model
