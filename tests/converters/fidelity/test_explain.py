"""Each cause on a case that has it, and silence on one that does not. Graphs and measurements are plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from edgekit_converters.fidelity.causes import Case, IsolatedLayer
from edgekit_converters.fidelity.explain import explain
from edgekit_converters.fidelity.layers import LayerError
from edgekit_converters.formats.graph import Layer


@dataclass(frozen=True)
class Drawn:
    """A graph that is only its description."""

    layers: tuple[Layer, ...]
    inputs: tuple[str, ...] = ("x",)
    constants: dict = field(default_factory=dict)
    format: str = "onnx"
    data: bytes = b""

    @property
    def outputs(self):
        return self.layers[-1].outputs

    @property
    def tensors(self):
        return (*self.inputs, *(name for layer in self.layers for name in layer.outputs))

    def constant(self, name):
        return self.constants[name]


def layer(name, op, kind, inputs, **more):
    return Layer(name, op, kind, tuple(inputs), (name,), **more)


def error(of: Layer, *, out=15.0, into=40.0, low=-4.0, high=4.0, **more):
    reach = max(abs(low), abs(high))
    made = LayerError(
        layer=of.name,
        tensor=of.name,
        op=of.op,
        kind=of.kind,
        sqnr_db=out,
        inputs_sqnr_db=into,
        own_sqnr_db=out,
        macs=of.macs,
        quantized=True,
        scale=(high - low) / 255,
        float_low=low,
        float_high=high,
        middle_low=low,
        middle_high=high,
        float_rms=reach / 3,
        quantized_low=low,
        quantized_high=high,
        integers=False,
        values=1000,
    )
    return replace(made, **more)


def case(errors, layers, quantized=None, **more):
    graph = Drawn(tuple(layers), **more)
    return Case(graph, quantized or graph, tuple(errors))


@pytest.fixture(autouse=True)
def _quantized(monkeypatch):
    """The share of 8 bits is read from bytes, which these graphs have not."""
    from edgekit_converters.fidelity import explain as rules

    monkeypatch.setattr(rules, "quantized_fraction", lambda _format, _data: (1.0, 1.0))


CONV = layer("conv", "Conv", "conv", ["x"], weight="w", weight_axis=0)
A, B = layer("a", "Conv", "conv", ["x"], weight="wa"), layer("b", "Conv", "conv", ["x"], weight="wb")
SUB = layer("difference", "Sub", "elementwise", ["a", "b"])
JOIN = layer("join", "Concat", "concat", ["a", "b"])
POWER = layer("inverse", "Reciprocal", "elementwise", ["a"])
SIGMOID = layer("sigmoid", "Sigmoid", "activation", ["b"])
PRODUCT = layer("product", "Mul", "elementwise", ["a", "sigmoid"])
HEAD = layer("head", "Softmax", "activation", ["a"])
FINE = {"out": 45.0}

CASES = {
    "outlier-activation": (
        [CONV],
        [error(CONV, low=-40.0, high=60.0, middle_low=-3.0, middle_high=4.0, float_rms=1.0, out=20.0)],
        r"the 0.01 % largest values stretch the range 14.3x",
    ),
    "cancellation": (
        [A, B, SUB],
        [error(A, **FINE, float_rms=30.0), error(B, **FINE, float_rms=29.0), error(SUB, float_rms=1.0)],
        r"its terms are 30x larger than what is left",
    ),
    "steep-function": (
        [A, POWER],
        [error(A, low=0.001, high=1.0, **FINE), error(POWER, low=1.0, high=1000.0)],
        r"Reciprocal spans from 1 to 1e\+03; its input comes down to 0.001, where one step is 0.00392",
    ),
    "concat-of-unlike-ranges": (
        [A, B, JOIN],
        [
            error(A, low=-0.1, high=0.1, **FINE),
            error(B, low=-40, high=40, **FINE),
            error(JOIN, low=-40, high=40, **FINE),
        ],
        r"it joins ranges of 0.1 and 40 under one scale: the smaller is left 1 of 256 levels",
    ),
    "gate": (
        [A, B, SIGMOID, PRODUCT],
        [error(A, **FINE), error(B, **FINE), error(SIGMOID, low=0.0, high=1.0, values=16, **FINE), error(PRODUCT)],
        r"a squeeze-and-excite gate, one value a channel \(it runs from 0 to 1\)",
    ),
    "softmax-head-scale": (
        [A, HEAD],
        [error(A, **FINE), error(HEAD, low=0.0, high=255 / 256, float_rms=0.01)],
        r"its 1000 probabilities share steps of 1/256",
    ),
    "large-integer-in-float": (
        [A],
        [error(A, low=0, high=2048, integers=True)],
        r"whole numbers from 0 to 2048, and one step of 8 bits is 8.03",
    ),
    "clipped-range": (
        [CONV],
        [error(CONV, low=-30, high=30, grid_low=-2.0, grid_high=2.0, scale=4 / 255, cut_sqnr_db=16.0)],
        r"its values reach from -30 to 30 and the quantized tensor only from -2 to 2: cutting them off, with all "
        r"else in float, leaves 16 dB",
    ),
}


@pytest.mark.parametrize("code", CASES)
def test_a_cause_is_named_with_its_figures(code):
    layers, errors, words = CASES[code]
    causes = explain(case(errors, layers))
    assert [cause.code for cause in causes] == [code]
    (cause,) = causes
    assert re.search(words, cause.what), cause.what
    assert cause.layer == layers[-1].name
    assert cause.layer in cause.float_layers
    assert cause.evidence
    assert cause.remedy


@pytest.mark.parametrize("code", CASES)
def test_a_healthy_graph_of_the_same_shape_has_no_cause(code):
    layers = CASES[code][0]
    healthy = [error(found, out=45.0, into=46.0) for found in layers]
    assert explain(case(healthy, layers)) == ()


def weights(*reaches):
    generator = np.random.default_rng(0)
    return np.stack([reach * generator.uniform(-1, 1, 36) for reach in reaches]).astype(np.float32)


def rounded(values, scale):
    return (np.rint(values / scale) * scale).astype(np.float32)


def test_one_scale_for_channels_of_different_size_is_channel_spread():
    values = weights(1.0, 0.9, 0.01, 0.005)
    found = explain(
        case(
            [error(CONV)],
            [CONV],
            Drawn((CONV,), constants={"w": rounded(values, 1 / 127)}),
            constants={"w": values},
        )
    )
    assert [cause.code for cause in found] == ["channel-spread"]
    assert found[0].evidence["channels"] == 4
    assert found[0].evidence["poor"] == 2
    assert found[0].evidence["spread"] > 100


def test_a_range_that_cuts_nothing_off_is_not_blamed():
    whole = error(CONV, low=-30, high=30, grid_low=-30, grid_high=30, quantized_low=-2.0, quantized_high=2.0)
    assert "clipped-range" not in [cause.code for cause in explain(case([whole], [CONV]))]
    little = replace(whole, grid_low=-29, cut_sqnr_db=40.0)  # something is cut off, and the noise is not of that
    assert "clipped-range" not in [cause.code for cause in explain(case([little], [CONV]))]


def test_a_layer_that_its_own_kernel_damages_is_weight_resolution():
    values = weights(1.0, 1.0)
    quantized = Drawn((CONV,), constants={"w": rounded(values, 1 / 127)})
    made = case([error(CONV, out=15.0)], [CONV], quantized, constants={"w": values})
    alone = error(CONV, out=16.0, shift=0.6)
    (cause,) = explain(replace(made, weights_only=(alone,), kernels={"conv": IsolatedLayer(16.0, 15.0)}))
    assert (cause.code, cause.float_layers) == ("weight-resolution", ("conv",))
    assert (
        "rounding its kernel alone, with all else in float, leaves 16 dB here, where all of 8 bits leave 15"
        in cause.what
    )
    assert "60 % of what all weights do here is one constant a channel" in cause.what
    assert cause.evidence["shift"] == 0.6
    (other,) = explain(replace(made, weights_only=(alone,), kernels={"conv": IsolatedLayer(30.0, 15.0)}))
    assert other.code == "noise-amplification"  # it is not its weights, whatever those before it do


def test_inputs_of_unlike_size_are_why_a_kernel_has_too_few_steps():
    dense = layer("dense", "Gemm", "dense", ["x"], weight="w", weight_axis=0)
    values = np.random.default_rng(0).uniform(0.5, 1, (4, 8)).astype(np.float32)
    values[:, 1] *= 400
    quantized = Drawn((dense,), constants={"w": rounded(values, 400 / 127)})
    made = case([error(dense, out=15.0)], [dense], quantized, constants={"w": values})
    (cause,) = explain(replace(made, kernels={"dense": IsolatedLayer(14.0, 15.0)}))
    assert cause.code == "weight-resolution"
    assert "the largest weights of its inputs are up to" in cause.what
    assert cause.evidence["inputs_apart"] > 300


def test_data_that_leave_what_calibration_saw_are_named_at_the_first_tensor():
    hurt = error(CONV, out=2.0, into=2.0, low=-80, high=90, cut_sqnr_db=3.0)
    made = replace(case([hurt], [CONV]), input_ranges={"x": (-20.0, 22.0)}, input_cuts={"x": 1.2})
    assert [cause.code for cause in explain(made)] == ["accumulated"]  # what calibration saw is not known
    (cause,) = explain(replace(made, calibrated={"x": (-1.28, 1.27), "conv": (-12.8, 12.7)}))
    assert (cause.code, cause.layer) == ("outside-calibration", "conv")
    assert cause.what == (
        "'x' runs from -20 to 22 on the items that are evaluated, and calibration saw -1.28 to 1.27: cutting off what "
        "lies beyond leaves 1 dB; so it is with 1 more"
    )
    wide = replace(made, calibrated={"x": (-21.0, 22.0), "conv": (-80, 90)})
    rare = replace(made, errors=(replace(hurt, cut_sqnr_db=40.0),), input_cuts={}, calibrated={"conv": (-12.8, 12.7)})
    for other in (wide, rare):  # nothing leaves it, or a few values do and the noise is of something else
        assert "outside-calibration" not in [cause.code for cause in explain(other)]


def test_pixels_into_a_model_that_normalises_nothing_are_input_scaling():
    made = case([error(CONV, out=25.0, into=None, low=-900, high=1200)], [CONV])
    found = explain(replace(made, input_ranges={"x": (0.0, 255.0)}))
    assert [cause.code for cause in found] == ["input-scaling"]
    assert "runs from 0 to 255" in found[0].what
    assert explain(replace(made, input_ranges={"x": (-1.0, 1.0)})) == ()


def test_operators_outside_the_fast_path_split_the_graph():
    made = case([error(CONV, **FINE)], [CONV])
    (cause,) = explain(replace(made, pieces=22, outside=("HARD_SWISH",) * 21))
    assert (cause.code, cause.layer) == ("splits-graph", "")
    assert cause.what == "operators outside the engine's fast path (21 HARD_SWISH) split the graph in 22 pieces"


def test_nothing_quantized_is_said_first_of_all(monkeypatch):
    from edgekit_converters.fidelity import explain as rules

    monkeypatch.setattr(rules, "quantized_fraction", lambda _format, _data: (0.0, 0.0))
    found = explain(case([error(CONV, out=None, own_sqnr_db=None)], [CONV]))
    assert [cause.code for cause in found] == ["nothing-quantized"]


def test_the_greatest_loss_comes_first_and_each_layer_is_blamed_once():
    layers, errors, _ = CASES["cancellation"]
    again = layer("inverse", "Reciprocal", "elementwise", ["difference"])
    found = explain(case([*errors, error(again, into=15.0, out=-10.0)], [*layers, again]))
    assert [cause.layer for cause in found] == ["difference", "inverse"]
    assert found[0].loss_db > found[1].loss_db


def test_damage_that_no_layer_did_alone_is_said_to_add_up():
    chain = [CONV]
    for at in range(9):
        chain.append(layer(f"conv{at}", "Conv", "conv", [chain[-1].name], weight="w"))
    falling = [error(one, out=34.0 - 2 * at, into=36.0 - 2 * at, own_sqnr_db=33.0) for at, one in enumerate(chain)]
    (cause,) = explain(case(falling, chain))
    assert (cause.code, cause.layer, len(cause.float_layers)) == ("accumulated", "", 5)
    assert cause.what.startswith("16 dB are left at the end")
