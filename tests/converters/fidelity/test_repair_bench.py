"""Repair on real models of both formats: what rounding is worth, what a layer costs, and that nothing is measured
twice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgekit_converters.fidelity.repair import RepairStart, RepairTarget, repair
from edgekit_converters.fidelity.repair_bench import WorkspaceBench, output_noise
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.artifact import STATIC, QuantizationPlan, recipe
from edgekit_converters.recipe.store import DiskStore
from edgekit_converters.sources.load import load
from edgekit_converters.targets.equalise import as_matrix
from edgekit_converters.targets.workspace import Workspace

pytestmark = pytest.mark.convert

RECIPES = {"tflite": "tflite-int8", "onnx": "onnx-int8-qdq"}


class NoWorkspace(Workspace):
    def trial(self, recipe, plan):
        raise AssertionError("measured a second time")


@pytest.fixture(scope="module")
def workspace(digits_model) -> Workspace:
    images = np.load(digits_model.calibration)["x"][:64]
    return Workspace(load(digits_model.model), [[image[None]] for image in images])


@pytest.fixture(params=["tflite", "onnx"])
def bench(request, workspace, tmp_path) -> WorkspaceBench:
    return WorkspaceBench(workspace, request.param, store=DiskStore(tmp_path), identity=("digits",))


def test_the_quantizer_finds_the_very_integers_of_the_rounded_weights(bench, workspace):
    ground = workspace.ground(bench._format, ("round",))
    quantized = open_graph(bench._format, workspace.trial(recipe(RECIPES[bench._format]), STATIC))
    found = {layer.outputs[0]: layer for layer in quantized.layers if layer.weight}
    checked = 0
    for layer in ground.graph.layers:
        other = found.get(layer.outputs[0])
        if as_matrix(ground.graph, layer) is not None and layer.weight and other is not None and other.weight:
            wanted, got = ground.graph.constant(layer.weight), quantized.constant(other.weight)
            np.testing.assert_allclose(got, wanted, atol=1e-6 * np.abs(wanted).max())
            checked += 1
    assert checked or bench._format == "onnx"


def test_one_layer_in_int8_makes_less_noise_than_all(bench):
    name = RECIPES[bench._format]
    whole = bench.noise(name, STATIC)
    alone = [bench.noise_alone(f"{name}-mixed", STATIC, unit) for unit in bench.units if unit.macs]
    assert len(alone) >= 4
    assert min(alone) < 0.5 * whole


def test_the_layer_whose_range_is_wrong_is_blamed_and_its_return_to_float_helps(bench):
    name, layers = RECIPES[bench._format], [unit for unit in bench.units if unit.macs]
    harmed = next(iter(layers[1].layers))
    high = bench._workspace.statistics(bench._format).ranges("minmax")[harmed][1]
    broken = replace(STATIC, fixed_ranges=((harmed, 0.0, 0.05 * high),))
    blamed = bench.blamed(name, broken)
    assert harmed in blamed[0]
    before, after = bench.noise(name, broken), bench.noise(f"{name}-mixed", replace(broken, float_layers=blamed[0]))
    assert after < 0.5 * before


def test_what_was_measured_once_is_not_measured_again(bench, workspace, tmp_path):
    name = RECIPES[bench._format]
    first = bench.noise_alone(f"{name}-mixed", STATIC, bench.units[0])
    again = NoWorkspace(workspace.source, workspace._samples)
    again._models, again._grounds = workspace._models, workspace._grounds
    second = WorkspaceBench(again, bench._format, store=DiskStore(tmp_path), identity=("digits",))
    assert second.noise_alone(f"{name}-mixed", STATIC, second.units[0]) == first


def test_layers_go_to_float_until_the_limit_holds(bench, workspace):
    name = RECIPES[bench._format]

    def work_in_int8(recipe_name: str, plan: QuantizationPlan) -> float:
        """Made up, for a search that is watched: the share of the work in int8 is what is lost."""
        return workspace.make(recipe(recipe_name), plan).quantized_macs

    start = RepairStart(name, STATIC, work_in_int8(name, STATIC))
    found = repair(bench, work_in_int8, start, RepairTarget(0.8, f"{name}-mixed", budget_s=60.0))
    assert found.met
    assert found.recipe == f"{name}-mixed"
    assert found.drop <= 0.8
    assert found.plan.float_layers


@pytest.mark.parametrize("axis", [1, 2], ids=["channels first", "channels last"])
def test_large_coordinates_do_not_drown_the_noise_of_scores(axis):
    corners, scores = np.full((1, 50), 100.0), np.full((1, 50), 0.5)
    before = [[np.stack([corners, scores], axis)]]
    assert output_noise(before, [[np.stack([corners, scores * 0], axis)]]) == pytest.approx(0.5)
    assert output_noise(before, [[np.stack([corners * 0, scores], axis)]]) == pytest.approx(0.5)
    silent = [[np.stack([corners, scores * 0], axis)]]
    assert output_noise(silent, silent) == 0


def test_a_class_that_never_occurs_has_no_say_in_a_detectors_noise():
    corners, scores, absent = np.full((1, 50), 100.0), np.full((1, 50), 0.5), np.full((1, 50), 0.02)
    before = [[np.stack([corners, scores, absent], 1)]]
    assert output_noise(before, [[np.stack([corners, scores, absent * 0], 1)]]) < 1e-3
    assert output_noise(before, [[np.stack([corners, scores * 0, absent], 1)]]) == pytest.approx(0.5, abs=1e-3)


def test_noise_beside_a_large_offset_is_relative_to_what_varies():
    before = [[np.array([[100.0]])], [np.array([[102.0]])]]
    assert output_noise(before, [[np.array([[101.0]])], [np.array([[101.0]])]]) == pytest.approx(1.0)
    heads = [[np.array([100.0, 102.0])], [np.array([102.0, 100.0])]]
    assert output_noise(heads, [[np.array([101.0, 101.0])]] * 2) == pytest.approx(1.0)


def test_noise_is_relative_to_the_signal_and_infinite_where_an_answer_is_no_number():
    before = [[np.array([3.0, 4.0])], [np.array([0.0, 5.0])]]
    assert output_noise(before, before) == 0
    assert output_noise(before, [[np.array([3.0, 4.0])], [np.array([0.0, 4.0])]]) == pytest.approx(1 / 50)
    assert output_noise(before, [[np.array([3.0, np.nan])], [np.array([0.0, 4.0])]]) == float("inf")
