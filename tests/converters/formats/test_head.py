"""The end of a graph, whose ranges are never cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgekit_converters.formats.graph import Layer, head, joins


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


YOLO = [
    *STEM,
    layer("conv", "b", "box"),
    layer("conv", "b", "score"),
    layer("move", "box", "boxes"),
    layer("concat", "boxes score", "rows"),
    layer("move", "rows", "y"),
]
RANGES = {"b": (0, 9.0), "box": (0, 322.0), "score": (-0.2, 0.6)}
JOINS = {
    "boxes and scores": (YOLO, "y", {}, ("boxes rows y", "score", 0.6, 322.0)),
    "like ranges": (YOLO, "y", {"score": (0.0, 100.0)}, None),
    "a part without a range": (YOLO, "y", {"score": None}, None),
    "a part that is always 0": (YOLO, "y", {"score": (0.0, 0.0)}, None),
    "levels joined later": (
        [*YOLO[:-1], layer("conv", "b", "other"), layer("concat", "rows other", "y")],
        "y",
        {"other": (0.0, 300.0)},
        ("boxes rows y", "score", 0.6, 322.0),
    ),
    "no join": ([*STEM, layer("move", "b", "y")], "y", {}, None),
    "a join before a product": ([*YOLO[:-1], layer("conv", "rows", "y")], "y", {}, None),
}


@pytest.mark.parametrize(("layers", "outputs", "ranges", "expected"), JOINS.values(), ids=JOINS)
def test_parts_of_unlike_ranges_that_become_one_output(layers, outputs, ranges, expected):
    graph = SimpleNamespace(layers=tuple(layers), outputs=tuple(outputs.split()))
    known = {name: reach for name, reach in (RANGES | ranges).items() if reach is not None}
    found = joins(graph, known)
    if expected is None:
        assert found == ()
        return
    (join,) = found
    copied, part, least, most = expected
    assert join.layers == set(copied.split())
    assert (join.part, join.least, join.most) == (part, least, most)
    assert join.levels == pytest.approx(256 * 0.6 / 322)
