"""Format and bytes -> Graph."""

from __future__ import annotations

import importlib
from typing import cast

from edgekit_converters.graph.graph import Graph

__all__ = ["GRAPHS", "open_graph"]

GRAPHS: dict[str, str] = {
    "tflite": "edgekit_converters.graph.tflite:TfliteGraph",
    "onnx": "edgekit_converters.graph.onnx:OnnxGraph",
}
"""Format -> `module:class`, called with the file's bytes."""


def open_graph(format: str, data: bytes) -> Graph:  # noqa: A002
    """Raises ConversionError for bytes that are no model of that format."""
    module, name = GRAPHS[format].split(":")
    return cast(Graph, getattr(importlib.import_module(module), name)(data))
