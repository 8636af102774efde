"""The end of a graph: what its answers are made of once the last product is done.

    head(graph)         # {"logits", "softmax"}

Why it matters: a range that cuts off the largest values costs little inside of a network, where the next layer sums over
many; at its end it makes the answers alike of which the network is surest. EfficientNet-Lite0 with percentile ranges: 18.2
dB between answers and their error, and 25.6 with its logits' whole range.
"""

from __future__ import annotations

from edgekit_converters.graph.graph import Graph

__all__ = ["head"]

_PRODUCTS = frozenset({"conv", "depthwise", "dense", "recurrent"})


def head(graph: Graph) -> frozenset[str]:
    """Every tensor from which an output follows without a product in between, and the outputs."""
    made = {tensor: layer for layer in graph.layers for tensor in layer.outputs}
    found: set[str] = set()
    left = list(graph.outputs)
    while left:
        tensor = left.pop()
        if tensor in found:
            continue
        found.add(tensor)
        layer = made.get(tensor)
        if layer is not None and layer.kind not in _PRODUCTS:
            left.extend(layer.inputs)
    return frozenset(found)
