"""ncnn recipes: the float network as it is, or its kernels in 16-bit floats."""

from __future__ import annotations

import numpy as np

from edgekit_converters.data.statistics import Statistics
from edgekit_converters.recipe.artifact import FloatModel, QuantizationPlan, Recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_runtime.modelfile.ncnn_structure import HALF_TAG, pack_network, read_network


def make(model: FloatModel, recipe: Recipe, plan: QuantizationPlan, statistics: Statistics | None) -> bytes:
    """Carry out a recipe. Raises ConversionError for a weight that 16 bits cannot hold."""
    if recipe.precision == "float32":
        return model.data
    network, parts, at = read_network(model.data), list[bytes](), 0
    for layer in network.layers:
        if layer.kernel:
            kernel = np.frombuffer(network.weights, "<f4", layer.kernel, at + 4)
            with np.errstate(over="ignore"):
                half = kernel.astype("<f2")
            if np.isinf(half).any():
                what = f"16-bit floats cannot hold a weight of '{layer.name}': {np.abs(kernel).max():.3g}"
                raise ConversionError(what, where=recipe.name, do="Choose ncnn-f32")
            data = half.tobytes()
            parts += [HALF_TAG.to_bytes(4, "little"), data, bytes(-len(data) % 4)]
            at += 4 + 4 * layer.kernel
        rest = 4 * (layer.constants - layer.kernel)
        parts.append(network.weights[at : at + rest])
        at += rest
    return pack_network(network.param().encode(), b"".join(parts), network.inputs, network.outputs)
