"""TFLite from an ONNX source: not there yet, and said plainly."""

from __future__ import annotations

from edgekit_converters.errors import ConversionError
from edgekit_converters.sources.model import SourceModel
from edgekit_converters.targets.artifact import Recipe

__all__ = ["refuse"]


def refuse(source: SourceModel, recipe: Recipe) -> ConversionError:
    """The error for a recipe that would need ONNX turned into TensorFlow."""
    return ConversionError(
        f"TFLite from an {source.format.upper()} model is not supported yet",
        where=f"{source.path.name}, {recipe.name}",
        do="Choose onnx-int8-qdq or onnx-f32, or pass the Keras model it was made from",
    )
