"""Islands are layers that a quantizer takes together, ordered by what they bring for what they cost."""

from __future__ import annotations

import pytest

from edgekit_converters.fidelity.sensitivity import Unit, by_benefit, float_share, island_units, merge_units, stretches
from edgekit_converters.formats.graph import Layer

LAYERS = (
    Layer("conv", "Conv", "conv", ("x",), ("conv",), "w", "b", 0, macs=60),
    Layer("relu", "Relu", "activation", ("conv",), ("relu",)),
    Layer("flat", "Reshape", "move", ("relu",), ("flat",)),
    Layer("dense", "Gemm", "dense", ("flat",), ("dense",), "v", "c", 0, macs=40),
    Layer("softmax", "Softmax", "activation", ("dense",), ("softmax",)),
)


def unit(name: str, macs: float, weights: float = 0.0) -> Unit:
    return Unit(name, frozenset({name}), macs, weights)


def test_relu_and_moves_go_with_what_made_them_and_a_softmax_stands_alone():
    units = island_units(LAYERS, {"w": 100, "v": 300})
    assert [sorted(unit.layers) for unit in units] == [["conv", "flat", "relu"], ["dense"], ["softmax"]]
    assert [unit.macs for unit in units] == [0.6, 0.4, 0]
    assert [unit.weights for unit in units] == [0.25, 0.75, 0]


def test_an_activation_that_is_not_alone_on_its_tensor_stands_alone():
    other = Layer("sum", "Add", "elementwise", ("conv", "x"), ("sum",))
    units = island_units((LAYERS[0], LAYERS[1], other))
    assert [unit.name for unit in units] == ["conv", "relu", "sum"]


def test_what_only_moves_the_input_is_no_unit():
    pad = Layer("pad", "Pad", "move", ("x",), ("pad",))
    assert island_units((pad,)) == ()


def test_more_noise_comes_first_and_of_equals_the_cheaper():
    units = [unit("dear", 0.5), unit("quiet", 0.0), unit("cheap", 0.01), unit("heavy", 0.01, weights=0.5)]
    noise = {"dear": 1.0, "cheap": 1.0, "heavy": 1.0, "quiet": 0.1}
    assert [one.name for one in by_benefit(units, noise)] == ["cheap", "heavy", "dear", "quiet"]


def test_units_that_were_not_measured_are_left_out():
    assert [one.name for one in by_benefit([unit("a", 0.1), unit("b", 0.1)], {"b": 1.0})] == ["b"]
    assert by_benefit([unit("a", 0.1)], {}) == ()


def test_stretches_keep_the_order_and_every_unit():
    units = [unit(name, 0.1) for name in "abcdefghij"]
    found = stretches(units, 4)
    assert [one.name for part in found for one in part] == [*"abcdefghij"]
    assert [len(part) for part in found] == [2, 3, 2, 3]
    assert [len(part) for part in stretches(units[:3], 8)] == [1, 1, 1]
    assert stretches([], 8) == ()


def test_a_stretch_costs_what_its_units_cost():
    both = merge_units([unit("a", 0.3), unit("b", 0.1)])
    assert (both.name, both.layers, both.macs) == ("a", {"a", "b"}, pytest.approx(0.4))
    assert merge_units([unit("a", 0.3)]) == unit("a", 0.3)


def test_share_counts_whole_units():
    units = island_units(LAYERS)
    assert float_share(units, frozenset({"conv", "relu", "flat"})) == 0.6
    assert float_share(units, frozenset({"relu"})) == 0
