"""ncnn recipes: the float network, its kernels in 16-bit floats, or products in 8 bits.

ncnn multiplies integers where a layer's parameter 8 is 1. Scales follow the bias: 127 by the largest weight of each
output channel, and 127 by the largest value of the input. All grids are symmetric, and what lies between products is
in float.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.statistics import Statistics
from edgekit_converters.formats.grid import symmetric
from edgekit_converters.formats.ncnn_file import network_of, pieces
from edgekit_converters.recipe.artifact import FloatModel, QuantizationPlan, Recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_runtime.modelfile.ncnn_structure import HALF_TAG, INT8_TAG, NcnnLayer, NcnnNetwork, pack_network


def check_possible(model: FloatModel, recipe: Recipe) -> None:
    """Raise ConversionError if no layer can be in 8 bits."""
    layers = network_of(model.data).layers
    if not any(map(_takes_8_bits, layers)):
        kinds = ", ".join(sorted({layer.kind for layer in layers})[:12])
        raise ConversionError(
            f"none of the model's layers has an 8-bit kernel: {kinds}", where=recipe.name, do="Choose ncnn-f32"
        )


def make(model: FloatModel, recipe: Recipe, plan: QuantizationPlan, statistics: Statistics | None) -> bytes:
    """Carry out a recipe. Raises ConversionError for a weight that 16 bits cannot hold."""
    if recipe.precision == "float32":
        return model.data
    network, parts, layers = network_of(model.data), list[bytes](), []
    reach = {} if statistics is None else {
        name: max(-low, high) for name, (low, high) in statistics.ranges(plan.ranges).items()
    }  # fmt: skip
    reach |= {name: max(-low, high) for name, low, high in plan.fixed_ranges}
    for layer, kernel, rest in pieces(network):
        params, values = layer.params, np.frombuffer(network.weights[kernel], "<f4")
        if recipe.precision == "float16" and layer.kernel:
            parts += _tagged(HALF_TAG, _half(values, layer.name, recipe.name))
        elif _takes_8_bits(layer) and layer.bottoms[0] in reach and layer.tops[0] not in plan.float_layers:
            integers, scales = symmetric(values.reshape(int(layer.params[0]), -1), 0)
            params = params | {8: "1"}
            parts += _tagged(INT8_TAG, integers)
        else:
            parts.append(network.weights[kernel.start - 4 * bool(layer.kernel) : kernel.stop])
        parts.append(network.weights[rest])
        if params != layer.params:
            parts.append(np.append(1 / scales, 127 / max(reach[layer.bottoms[0]], 1e-30)).astype("<f4").tobytes())
        layers.append(NcnnLayer(layer.kind, layer.name, layer.bottoms, layer.tops, params, (), (), 0, 0))
    text = NcnnNetwork(network.inputs, network.outputs, tuple(layers), b"", False).param()
    return pack_network(text.encode(), b"".join(parts), network.inputs, network.outputs)


def _takes_8_bits(layer: NcnnLayer) -> bool:
    if layer.kind == "InnerProduct":  # of a vector, or of what it flattens
        return len(layer.outputs[0]) == 1
    if layer.kind == "ConvolutionDepthWise":  # not one of fewer groups
        return layer.params.get(7) == layer.params[0] == str(layer.inputs[0][0])
    return layer.kind == "Convolution" and len(layer.inputs[0]) == 3


def _half(values: NDArray[np.float32], layer: str, recipe: str) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    if np.isinf(half).any():
        what = f"16-bit floats cannot hold a weight of '{layer}': {np.abs(values).max():.3g}"
        raise ConversionError(what, where=recipe, do="Choose ncnn-f32")
    return half


def _tagged(tag: int, values: NDArray[np.generic]) -> list[bytes]:
    data = values.tobytes()
    return [tag.to_bytes(4, "little"), data, bytes(-len(data) % 4)]
