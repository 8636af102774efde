"""A finished file as an artifact: its own bytes, described.

packed(source, recipe("tflite-as-is")).data == source.finished()
packed(source, recipe("tflite-as-is-per-tensor"))       # but for the scales of dense layers
"""

from __future__ import annotations

from dataclasses import replace

from edgekit_converters.errors import ConversionError
from edgekit_converters.sources.model import FinishedSource, SourceModel
from edgekit_converters.targets.artifact import Artifact, Precision, Recipe

__all__ = ["packed"]


def packed(source: SourceModel, recipe: Recipe) -> Artifact:
    """The artifact's recipe says in which precision the file really computes. Raises ConversionError for other sources."""
    from edgekit_converters.workload import quantized_fraction

    if not isinstance(source, FinishedSource):
        raise ConversionError(
            "only a .tflite file can be packed as it is", where=f"{source.path.name}, {recipe.name}", do="Leave it out"
        )
    data = source.finished()
    if recipe.per_tensor:
        from edgekit_converters.targets.tflite_per_tensor import per_tensor_dense

        data = per_tensor_dense(data)
    macs, weights = quantized_fraction(recipe.format, data)
    precision: Precision = "int8" if macs > 0 else "dynamic" if weights > 0 else "float32"
    inputs, outputs = source.tensors
    return Artifact(replace(recipe, precision=precision), data, inputs, outputs, float(macs), float(weights), {})
