"""What labels say of two models on the same items."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear import linear, onnx_artifact

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.data.open import open_dataset
from edgekit_converters.fidelity.compare import Evaluation, compare
from edgekit_converters.fidelity.metric_function import FunctionMetric
from edgekit_converters.fidelity.metrics import MeanAbsoluteError, TopK, macro_f1, named_metric, rehearse, task_metrics
from edgekit_converters.fidelity.reference import reference
from edgekit_converters.recipe.conversion_errors import CalibrationError, MetricError

SOURCE = linear((-1, 8), 8, weights=np.eye(8))
CLASSES = describe(SOURCE, None)
RAW = replace(CLASSES, task="raw")
X = np.eye(8, dtype=np.float32)[np.arange(40) % 8] + np.float32(0.1)
SWAPPED = np.eye(8)[:, [0, 2, 1, 3, 4, 5, 6, 7]]


@pytest.fixture
def measured(tmp_path):
    def run(y, contract=CLASSES, weights=SWAPPED, metric=None, x=X):
        np.savez(tmp_path / "set.npz", x=x, y=y)
        dataset = open_dataset(tmp_path / "set.npz", contract)
        kept = reference(SOURCE, contract, dataset)
        chosen = named_metric(metric, contract) if metric else None
        return compare(kept, onnx_artifact(SOURCE, weights), Evaluation(contract, dataset, chosen))

    return run


def test_a_classifier_is_scored_by_top1_top5_and_f1_at_once(measured):
    found = measured(np.arange(40) % 8)
    assert [score.metric for score in found.scores] == ["top1", "top5", "f1"]
    top1, top5, f1 = found.scores
    assert (found.metric, found.drop, found.ci95) == ("top1", 10 / 40, top1.ci95)
    assert (top5.original, top5.artifact) == (1.0, 1.0)
    assert f1.artifact == pytest.approx(6 / 8)
    assert f1.drop == pytest.approx(2 / 8)
    assert f1.ci95[0] <= f1.drop <= f1.ci95[1]


def test_the_metric_that_is_asked_for_decides_and_the_others_are_still_told(measured):
    found = measured(np.arange(40) % 8, metric="f1")
    assert (found.metric, found.drop) == ("f1", found.scores[0].drop)
    assert [score.metric for score in found.scores] == ["f1", "top1", "top5"]


def test_a_worse_error_is_a_positive_drop(measured):
    exact = X.astype(np.float64)
    found = measured(exact, RAW)
    assert (found.metric, found.original) == ("mae", pytest.approx(0, abs=1e-6))
    assert found.drop == pytest.approx(found.artifact)
    assert found.drop > 0
    assert found.ci95[0] < found.drop < found.ci95[1]
    assert found.scores[0].higher_is_better is False


def test_float_labels_in_a_raw_task_are_numbers_to_be_predicted_and_whole_ones_may_be_anything(measured):
    assert measured(X.astype(np.float32), RAW).metric == "mae"
    assert measured(np.arange(40) % 8, RAW).metric is None


def test_an_answer_that_is_not_finite_is_as_wrong_as_can_be():
    metric = MeanAbsoluteError("scores")
    labels = [0.0, 10.0, 5.0]
    right = [metric.keep({"scores": np.array([value])}, value) for value in labels]
    broken = [metric.keep(None, value) for value in labels]
    score = metric.compare(right, broken)
    assert (score.original, score.artifact) == (0.0, pytest.approx((10 + 10 + 5) / 3))


def test_the_farthest_answer_is_measured_from_the_labels_of_the_whole_set():
    metric = MeanAbsoluteError("scores")
    labels = [np.array([0.0, 4.0]), np.array([5.0, 10.0])]
    off = [metric.keep({"scores": label + 1}, label) for label in labels]
    broken = metric.compare(off, [metric.keep(None, label) for label in labels])
    assert (broken.original, broken.artifact, broken.drop) == (1.0, 10.0, 9.0)


def test_an_answer_that_is_not_finite_names_no_class():
    assert TopK("scores").keep(None, 0) is False
    assert TopK("scores", 5).keep(None, 0) is False


@pytest.mark.parametrize(("classes", "names"), [(5, ["top1", "f1"]), (6, ["top1", "top5", "f1"])])
def test_five_classes_have_no_top5(classes, names):
    contract = replace(CLASSES, outputs=(replace(CLASSES.outputs[0], shape=(classes,)),))
    assert [metric.name for metric in task_metrics(contract, [0], None)] == names


def test_labels_that_do_not_fit_are_refused_before_anything_is_converted():
    with pytest.raises(MetricError, match="mae compares 3 values") as caught:
        rehearse([MeanAbsoluteError("scores")], [{"scores": np.zeros(8)}], [np.zeros(3)], "set.npz")
    assert caught.value.where == "set.npz"


def test_what_to_do_instead_follows_the_model():
    with pytest.raises(MetricError) as caught:
        named_metric("top1", RAW)
    assert 'task = "classification"' in caught.value.do
    for contract, name in ((CLASSES, "mae"), (replace(RAW, outputs=(replace(RAW.outputs[0], shape=(2, 4)),)), "top1")):
        with pytest.raises(MetricError) as caught:
            named_metric(name, contract)
        assert "module:function" in caught.value.do


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 4)), min_size=1, max_size=50))
def test_macro_f1_agrees_with_scikit_learn(pairs):
    from sklearn.metrics import f1_score

    truth, predicted = np.array(pairs).T
    seen = sorted({*truth, *predicted} - {-1})
    expected = f1_score(truth, predicted, labels=seen, average="macro", zero_division=0)
    assert macro_f1(truth, predicted) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "contract", "message"),
    [
        ("top2", CLASSES, "there is no metric 'top2'. Did you mean top"),
        ("accuracy", CLASSES, "there is no metric 'accuracy'"),
        ("mae", CLASSES, "this model's task is classification"),
        ("top1", RAW, "top1 is for a classifier, and this model's task is raw"),
        ("map", RAW, "does not know where the boxes are: the outputs are scores"),
        ("nowhere:score", CLASSES, "there is no module 'nowhere'"),
    ],
)
def test_a_metric_that_does_not_fit_is_an_error_that_says_what_would(name, contract, message):
    with pytest.raises(MetricError, match=message):
        named_metric(name, contract)


def test_a_metric_without_labels_is_refused():
    with pytest.raises(MetricError, match="top1 needs labels"):
        task_metrics(CLASSES, None, TopK("scores"))


def test_labels_of_another_size_than_the_output_are_refused(measured):
    with pytest.raises(MetricError, match="mae compares 3 values a label with the 8 of the output 'scores'"):
        measured(np.zeros((40, 3)), RAW, metric="mae")


def test_labels_that_are_not_finite_are_refused(measured):
    with pytest.raises(CalibrationError, match="y: holds NaN or infinity"):
        measured(np.full((40, 8), math.nan), RAW)


FUNCTIONS = """
import numpy as np

def rights(outputs, labels):
    return (outputs["scores"].argmax(1) == labels).mean()

def wrongs(outputs, labels):
    return (outputs["scores"].argmax(1) != labels).mean()

wrongs.higher_is_better = False

def raises(outputs, labels):
    return outputs["boxes"]

def words(outputs, labels):
    return "good"

def leaves(outputs, labels):
    raise SystemExit(0)

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_metrics", None)


@pytest.mark.usefixtures("own")
def test_a_function_of_ones_own_decides_and_says_which_way_is_better(measured):
    found = measured(np.arange(40) % 8, metric="own_metrics:rights")
    assert (found.metric, found.drop) == ("own_metrics:rights", pytest.approx(10 / 40))
    found = measured(np.arange(40) % 8, metric="own_metrics:wrongs")
    assert (found.original, found.artifact, found.drop) == (0.0, 0.25, 0.25)
    assert found.ci95[0] < 0.25 < found.ci95[1]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"own_metrics:raises: raised KeyError: 'boxes' \(.*own_metrics.py, line 13\)"),
        ("words", "own_metrics:words: gave 'good'. Return one finite number"),
        ("right", "has no function 'right'. Did you mean 'own_metrics:rights'"),
        ("leaves", r"own_metrics:leaves: raised SystemExit: 0 \("),
        ("number", "'number' is not a function: its type is int. Name a function"),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(measured, name, message):
    with pytest.raises(MetricError, match=message):
        measured(np.arange(40) % 8, metric=f"own_metrics:{name}")


@pytest.mark.usefixtures("own")
def test_a_rehearsal_says_what_the_first_item_looks_like():
    answers = [{"scores": np.zeros(8, np.float32)}] * 4
    with pytest.raises(MetricError, match=r"'boxes' .*first item: scores float32 \[8\]; label 2") as caught:
        named_metric("own_metrics:raises", CLASSES).rehearse(answers, [2, 0, 1, 1])
    assert caught.value.where == "own_metrics:raises"
    named_metric("own_metrics:rights", CLASSES).rehearse(answers, [2, 0, 1, 1])


@pytest.mark.parametrize(("seconds", "calls"), [(0.001, 2 + 2 * 100), (0.1, 2 + 2 * 30), (60.0, 2 + 2 * 20)])
def test_a_slow_function_is_called_fewer_times_for_its_interval(seconds, calls):
    counted = []

    def rights(outputs, labels):
        counted.append(len(labels))
        return float((outputs["scores"].argmax(1) == labels).mean())

    ticks = iter([0.0, seconds])
    kept = [({"scores": np.eye(4, dtype=np.float32)[i % 4]}, i % 4) for i in range(12)]
    score = FunctionMetric("own:rights", rights, clock=lambda: next(ticks)).compare(kept, kept)
    assert (score.drop, len(counted)) == (0.0, calls)
