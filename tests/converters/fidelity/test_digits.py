"""End to end on real data, measured by real engines.

A trained network, calibrated, converted to INT8 in both formats.
"""

from __future__ import annotations

import pytest
from linting import lint

from edgekit_converters.data.describe_contract import describe, settle
from edgekit_converters.data.open import open_dataset
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.fidelity.compare import Evaluation, compare, measure_ms
from edgekit_converters.fidelity.reference import pick_golden, reference

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def digits(digits_model):
    """source, contract, calibration, evaluation and the original's answers."""
    from edgekit_converters.sources.load import load

    source = load(digits_model.model)
    contract = describe(source, None)
    calibration = open_dataset(digits_model.calibration, contract)
    evaluation = open_dataset(digits_model.evaluation, contract)
    return source, contract, calibration, evaluation, reference(source, contract, evaluation)


def test_the_data_is_clean_and_the_scores_are_found(digits):
    _, contract, calibration, evaluation, answers = digits
    assert [finding for finding in lint(calibration, evaluation, contract) if finding.level != "note"] == []
    assert settle(contract, answers.outputs)[0].scores == "probabilities"


def test_golden_digits_are_four_different_ones_and_right(digits):
    *_, evaluation, answers = digits
    golden = list(evaluation.pick(pick_golden(answers)))
    chosen = [answers.best[index] for index in pick_golden(answers)]
    assert len(set(chosen)) == 4
    assert [example.label for example in golden] == chosen


@pytest.mark.parametrize("name", ["tflite-int8", "onnx-int8-qdq"])
def test_int8_loses_at_most_half_a_point_of_top1(digits, name):
    from edgekit_converters.recipe.artifact import recipe
    from edgekit_converters.targets.workspace import Workspace

    source, contract, calibration, evaluation, answers = digits
    artifact = Workspace(source, SourceSamples(calibration, contract, source)).make(recipe(name))
    found = compare(answers, artifact, Evaluation(contract, evaluation))
    low, high = found.ci95
    told = (
        f"{name}, {found.engine}: top-1 {found.original:.4f} -> {found.artifact:.4f}, drop {100 * found.drop:+.2f} "
        f"points (95 % {100 * low:+.2f} to {100 * high:+.2f}) on {found.items} digits, agreement "
        f"{found.agreement:.4f}, cosine {found.cosine:.5f}, SQNR {found.sqnr_db:.1f} dB"
    )
    print(told)
    assert found.items >= 500, told
    assert found.drop <= 0.005, told
    assert low <= found.drop <= high, told
    assert found.agreement >= 0.98, told
    assert found.cosine >= 0.99, told
    assert found.not_finite == 0, told
    assert found.quantized_weights > 0.5, told


def test_float_artifacts_answer_as_the_original(digits):
    from edgekit_converters.recipe.artifact import recipe
    from edgekit_converters.targets.workspace import Workspace

    source, contract, _, evaluation, answers = digits
    for name in ("tflite-f32", "onnx-f32"):
        artifact = Workspace(source).make(recipe(name))
        found = compare(answers, artifact, Evaluation(contract, evaluation))
        assert (found.drop, found.agreement) == (0.0, 1.0), name
        assert found.sqnr_db is None or found.sqnr_db > 80, name
        p50, p95, *_ = measure_ms(artifact, contract, next(iter(evaluation)))
        assert 0 < p50 <= p95
