"""A linear model in NumPy against itself as ONNX: a real engine, answers known in advance."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from linear import Linear, linear, onnx_artifact

from edgekit_converters.data.dataset import Example, Subset
from edgekit_converters.data.describe_contract import describe, settle
from edgekit_converters.data.open import open_dataset
from edgekit_converters.fidelity.compare import Evaluation, compare, compare_crossed, compare_parts, measure_ms
from edgekit_converters.fidelity.reference import reference
from edgekit_converters.recipe.conversion_errors import CalibrationError, ConversionError, SourceError
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract
from edgekit_runtime.system.errors import EngineError

# Three inputs, three classes: the class is the greatest input.
SOURCE = linear((-1, 3), 3, weights=np.eye(3))
CONTRACT = describe(SOURCE, None)
X = np.eye(3, dtype=np.float32)[np.arange(20) % 3] + np.float32(0.1)
Y = np.arange(20) % 3


@pytest.fixture
def give(tmp_path):
    def write(x=X, y=Y, contract=CONTRACT):
        arrays = {"x": x} if y is None else {"x": x, "y": y}
        np.savez(tmp_path / "set.npz", **arrays)
        return open_dataset(tmp_path / "set.npz", contract)

    return write


def run(dataset, artifact, contract=CONTRACT, source=SOURCE):
    return compare(reference(source, contract, dataset), artifact, Evaluation(contract, dataset))


def test_an_artifact_that_is_the_original_loses_nothing(give):
    found = run(give(), onnx_artifact(SOURCE))
    assert (found.items, found.metric, found.original, found.artifact, found.drop) == (20, "top1", 1.0, 1.0, 0.0)
    assert found.ci95 == pytest.approx((-0.0891, 0.0891), abs=1e-4)
    assert (found.agreement, found.sqnr_db, found.not_finite) == (1.0, None, 0)
    assert found.cosine == pytest.approx(1.0)
    assert found.engine.startswith("onnxruntime 1.")


def test_an_artifact_that_swaps_two_classes_loses_them_exactly(give):
    found = run(give(), onnx_artifact(SOURCE, np.eye(3)[:, [0, 2, 1]]))
    assert found.drop == 13 / 20
    assert found.agreement == 7 / 20
    low, high = found.ci95
    assert low < 13 / 20 < high
    assert found.cosine < 0.7
    assert found.sqnr_db < 3


def test_a_worse_original_gives_a_negative_drop(give):
    y = Y.copy()
    y[1] = 2  # the original is wrong here; the artifact, which answers 2 for 1, is right
    found = run(give(y=y), onnx_artifact(SOURCE, np.array([[1, 0, 0], [0, 0, 0.9], [0, 0, 1]])))
    assert found.original == 19 / 20
    assert found.artifact == (20 - 7 + 1) / 20
    assert found.drop == (6 - 1) / 20


def test_without_labels_there_is_agreement_and_no_metric(give):
    found = run(give(y=None), onnx_artifact(SOURCE))
    assert (found.metric, found.original, found.artifact, found.drop, found.ci95) == (None,) * 5
    assert found.agreement == 1.0


def test_parts_of_a_set_are_compared_in_one_pass_as_each_would_be_alone(give):
    wrong, dataset = onnx_artifact(SOURCE, np.eye(3)[:, [0, 2, 1]]), give()
    answers, evaluation = reference(SOURCE, CONTRACT, dataset), Evaluation(CONTRACT, dataset)
    parts = [range(0, 20, 2), range(5, 20), [3]]
    for part, found in zip(parts, compare_parts(answers, wrong, evaluation, parts), strict=True):
        alone = compare(answers.only(part), wrong, replace(evaluation, dataset=Subset(dataset, part)))
        assert found == alone


def test_crossed_artifacts_answer_each_its_own_items(give):
    right, wrong, dataset = onnx_artifact(SOURCE), onnx_artifact(SOURCE, np.eye(3)[:, [0, 2, 1]]), give()
    answers, evaluation = reference(SOURCE, CONTRACT, dataset), Evaluation(CONTRACT, dataset)
    whole = compare(answers, wrong, evaluation)
    same = compare_crossed(answers, wrong, evaluation, [(wrong, range(0, 20, 2)), (wrong, range(1, 20, 2))])
    assert (same.items, same.drop, same.agreement) == (20, whole.drop, whole.agreement)
    mixed = compare_crossed(
        answers, wrong, evaluation, [(right, [i for i in range(20) if i % 3]), (wrong, [0, 3, 6, 9, 12, 15, 18])]
    )
    assert (mixed.drop, mixed.agreement) == (0.0, 1.0)


def test_a_set_labelled_in_part_is_refused(give):
    class Partly:
        name = "partly"

        def __len__(self):
            return 20

        def __iter__(self):
            return (replace(e, label=None if i % 5 == 0 else e.label) for i, e in enumerate(give()))

    with pytest.raises(CalibrationError, match="partly: 4 of 20 items have no label"):
        reference(SOURCE, CONTRACT, Partly())


def test_a_raw_model_has_distances_only(give):
    contract = replace(CONTRACT, task="raw")
    found = run(give(y=None, contract=contract), onnx_artifact(SOURCE), contract)
    assert (found.metric, found.agreement) == (None, None)
    assert found.cosine == pytest.approx(1.0)


def test_a_regression_that_was_destroyed_does_not_pass_for_its_cosine(give):
    source = linear((-1, 3), 1, weights=[[1.0], [2.0], [3.0]])
    contract = describe(source, None)
    assert contract.task == "raw"
    found = run(give(y=None, contract=contract), onnx_artifact(source, [[2.0], [2.0], [2.0]]), contract, source)
    assert found.cosine == pytest.approx(1.0)
    assert found.decisive.measure == "spread"
    assert found.loss > 0.5


def test_what_floats_round_is_no_loss(give):
    """20 items leave an interval of 9 points, which says nothing of the same arithmetic in another order."""
    nearly = np.eye(3) * (1 + 1e-6)
    found = run(give(), onnx_artifact(SOURCE, nearly))
    assert (found.only_rounded, found.loss, found.loss_ci95) == (True, 0.0, (0.0, 0.0))
    assert found.sqnr_db > 99
    assert found.ci95[1] > 0.08
    farther = run(give(), onnx_artifact(SOURCE, np.eye(3) * 1.001))
    assert not farther.only_rounded
    assert farther.loss_ci95[1] > 0.08
    assert not replace(found, quantized_macs=1.0).only_rounded
    assert not replace(found, not_finite=1).only_rounded


def test_nan_answers_are_wrong_answers_and_are_counted(give):
    found = run(give(), onnx_artifact(SOURCE, np.full((3, 3), np.nan)))
    assert (found.not_finite, found.agreement, found.artifact, found.cosine, found.sqnr_db) == (20, 0.0, 0.0, 0.0, 0.0)
    assert found.drop == 1.0


def test_an_original_that_answers_nan_cannot_be_compared_with(give):
    with pytest.raises(SourceError, match=r"answers NaN or infinity for .*item 0"):
        reference(replace(SOURCE, weights=np.full((3, 3), np.nan, np.float32)), CONTRACT, give())


@dataclass(frozen=True)
class Centred(Linear):
    """A model that takes the mean over its batch: right in training, wrong to ship."""

    def predict(self, inputs):
        (answers,) = super().predict(inputs)
        return [answers - answers.mean(axis=0)]


def test_a_model_that_mixes_the_items_of_a_batch_is_refused(give):
    mixing = Centred(**vars(SOURCE))
    with pytest.raises(SourceError, match=r"'scores' of one item depends on the other items of its batch"):
        reference(mixing, CONTRACT, give())


def test_a_comparison_on_held_out_items_says_so(give):
    dataset = give()
    kept = reference(SOURCE, CONTRACT, dataset)
    assert compare(kept, onnx_artifact(SOURCE), Evaluation(CONTRACT, dataset, held_out=True)).held_out is True
    assert compare(kept, onnx_artifact(SOURCE), Evaluation(CONTRACT, dataset)).held_out is False


def test_a_file_with_a_fixed_batch_is_filled_and_the_filling_is_not_counted(give):
    source = linear((8, 3), 3, weights=np.eye(3))
    found = run(give(), onnx_artifact(source, np.eye(3)[:, [0, 2, 1]]), source=source)
    assert found.items == 20
    assert found.drop == 13 / 20


def test_pixels_reach_original_and_artifact_alike_though_their_layouts_differ(give):
    image = ImageSpec(2, 5, (10.0, 20.0, 30.0), (2.0, 4.0, 8.0))
    contract = Contract(
        "classification",
        (InputContract("x", (2, 5, 3), "float32", image),),
        (OutputContract("scores", (4,), "float32"),),
    )
    source = linear((-1, 2, 5, 3), 4, layout="NHWC")
    turned = source.weights.reshape(2, 5, 3, 4).transpose(2, 0, 1, 3).reshape(30, 4)
    artifact = onnx_artifact(replace(source, inputs=linear((-1, 3, 2, 5), layout="NCHW").inputs), turned)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 7, 9, 3), dtype=np.uint8)
    found = run(give(pixels, None, contract), artifact, contract, source)
    assert found.agreement == 1.0
    assert found.sqnr_db is None or found.sqnr_db > 90


def test_a_tensor_input_is_turned_for_an_artifact_with_its_channels_first(give):
    source = linear((-1, 2, 5, 3), 4, layout="NHWC")
    turned = source.weights.reshape(2, 5, 3, 4).transpose(2, 0, 1, 3).reshape(30, 4)
    artifact = onnx_artifact(replace(source, inputs=linear((-1, 3, 2, 5), layout="NCHW").inputs), turned)
    contract = describe(source, None)
    x = np.random.default_rng(0).normal(size=(50, 2, 5, 3))
    assert run(give(x, None, contract), artifact, contract, source).agreement == 1.0


def test_reference_keeps_answers_and_scores_are_found_from_them(give):
    kept = reference(SOURCE, CONTRACT, give())
    assert len(kept) == 20
    assert kept.labels == tuple(Y)
    assert kept.best == tuple(Y)
    np.testing.assert_array_equal([answer["scores"] for answer in kept.outputs], X)
    assert settle(CONTRACT, kept.outputs)[0].scores == "logits"


def test_a_set_that_changes_between_two_passes_is_noticed(give):
    kept = reference(SOURCE, CONTRACT, give())
    with pytest.raises(CalibrationError, match="item 0: is not the item that the original answered"):
        compare(kept, onnx_artifact(SOURCE), Evaluation(CONTRACT, give(X[::-1])))
    with pytest.raises(CalibrationError, match="has 19 items and the original answered 20"):
        compare(kept, onnx_artifact(SOURCE), Evaluation(CONTRACT, give(X[1:], Y[1:])))


def test_progress_is_told_of_both_passes(give):
    told = []
    dataset = give()

    def progress(stage, done, total):
        told.append((stage, done, total))

    kept = reference(SOURCE, CONTRACT, dataset, progress)
    compare(kept, onnx_artifact(SOURCE), Evaluation(CONTRACT, dataset), progress)
    assert told[0] == ("running the original", 20, 20)
    assert told[-1] == ("evaluating onnx-f32", 20, 20)


def test_an_artifact_that_no_engine_takes_is_an_engine_error(give):
    with pytest.raises(EngineError, match="refuses the artifact"):
        run(give(), replace(onnx_artifact(SOURCE), data=b"no model"))


def test_an_artifact_that_answers_another_shape_is_refused(give):
    wider = linear((-1, 3), 5)
    contract = replace(CONTRACT, task="raw")
    with pytest.raises(ConversionError, match=r"onnx-f32: answers \[5\] for 'scores' where the original answers \[3\]"):
        run(give(y=None), onnx_artifact(replace(wider, bias=np.zeros(5, np.float32))), contract)


def test_latency_is_a_median_and_a_tail_of_the_engine_alone():
    ticks = iter(range(10**6))
    example = Example({"x": X[0]}, None, "")
    p50, p95, *_ = measure_ms(onnx_artifact(SOURCE), CONTRACT, example, clock=lambda: next(ticks) * 1e-3)
    assert p50 == pytest.approx(1.0)
    assert p95 == pytest.approx(1.0)
    p50, p95, *_ = measure_ms(onnx_artifact(SOURCE), CONTRACT, example)
    assert 0 < p50 <= p95


def test_each_output_is_told_by_itself_with_intervals(give):
    (output,) = run(give(), onnx_artifact(SOURCE, np.eye(3)[:, [0, 2, 1]])).outputs
    assert output.name == "scores"
    assert (output.agreement.value, output.agreement.items) == (7 / 20, 20)
    assert output.agreement.ci95[0] < 7 / 20 < output.agreement.ci95[1]
    assert output.agreement_top5 is None  # of three classes, all are among the best five
    assert output.agreement_sure.items == 20
    assert output.worst == pytest.approx(1.0)
    assert output.cosine_ci95[0] < output.cosine < output.cosine_ci95[1]
    assert output.sqnr_ci95[0] < output.sqnr_db < output.sqnr_ci95[1]


def test_only_items_that_the_original_is_sure_of_count_for_sure_agreement(give):
    x = np.array([[4, 0, 0], [0.1, 0, 0], [0, 0, 0.1], [0, 4, 0]], np.float32)  # softmax: 0.96, 0.35, 0.35, 0.96
    (output,) = run(give(x, None), onnx_artifact(SOURCE)).outputs
    assert (output.agreement.items, output.agreement_sure.items) == (4, 2)
    (unsure,) = run(give(x[1:3], None), onnx_artifact(SOURCE)).outputs
    assert unsure.agreement_sure is None


def test_an_output_that_is_no_score_a_class_has_no_agreement(give):
    contract = replace(CONTRACT, task="raw")
    (output,) = run(give(y=None, contract=contract), onnx_artifact(SOURCE), contract).outputs
    assert (output.agreement, output.agreement_sure) == (None, None)
    assert output.cosine == pytest.approx(1.0)
    assert (output.sqnr_db, output.sqnr_ci95, output.worst) == (None, None, 0.0)


def test_the_bytes_of_a_file_are_told_apart(give):
    artifact = onnx_artifact(SOURCE)
    size = run(give(), artifact).size
    assert size.total == len(artifact.data)
    assert size.int8_weights == 0
    assert 9 * 4 + 3 * 4 <= size.other_weights < size.total


def test_rank_agreement_counts_the_triples_that_both_order_alike():
    from edgekit_converters.fidelity.compare import rank_agreement

    angles = np.deg2rad([0, 10, 30, 100])
    original = [np.array([np.cos(a), np.sin(a)]) for a in angles]
    assert rank_agreement(original, [3 * one for one in original]) == 1.0
    moved = np.deg2rad([0, 10, -9, 100])  # from 0 the third is nearer than the second
    assert rank_agreement(original, [np.array([np.cos(a), np.sin(a)]) for a in moved]) == pytest.approx(
        1 - np.mean(_reversed(angles, moved))
    )


def _reversed(first, second):
    """For each triple, whether the nearer one changes."""
    found = []
    for anchor in range(len(first)):
        others = [one for one in range(len(first)) if one != anchor]
        for one in others:
            for other in others:
                if one < other:
                    a, b = (abs(v[anchor] - v[one]) < abs(v[anchor] - v[other]) for v in (first, second))
                    found.append(a != b)
    return found
