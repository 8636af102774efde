"""The end of a graph, whose ranges are never cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgekit_converters.graph import Layer, head


def layer(kind: str, inputs: str, output: str) -> Layer:
    return Layer(output, kind.upper(), kind, tuple(inputs.split()), (output,))


STEM = [layer("conv", "x", "a"), layer("activation", "a", "b")]
GRAPHS = {
    "a classifier": ([*STEM, layer("dense", "b", "logits"), layer("activation", "logits", "y")], "y", "logits y"),
    "an embedding": ([*STEM, layer("dense", "b", "y")], "y", "y"),
    "two outputs": ([*STEM, layer("dense", "b", "y"), layer("conv", "b", "z")], "y z", "y z"),
    "joined": (
        [*STEM, layer("conv", "b", "c"), layer("conv", "b", "d"), layer("concat", "c d", "e"), layer("move", "e", "y")],
        "y",
        "c d e y",
    ),
    "a residual": ([*STEM, layer("conv", "b", "c"), layer("elementwise", "b c", "y")], "y", "a b c y"),
    "no product": ([layer("activation", "x", "y")], "y", "x y"),
    "an input that is an output": ([], "x", "x"),
}


@pytest.mark.parametrize(("layers", "outputs", "expected"), GRAPHS.values(), ids=GRAPHS)
def test_what_follows_the_last_products_is_the_head(layers, outputs, expected):
    graph = SimpleNamespace(layers=tuple(layers), outputs=tuple(outputs.split()))
    assert head(graph) == set(expected.split())
