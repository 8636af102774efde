"""A stateful artifact is measured along sequences with its own state, and what is packed to be replayed moves."""

from __future__ import annotations

from dataclasses import replace

import memory
import numpy as np
import pytest

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.data.sequences import open_sequences
from edgekit_converters.fidelity.compare import Evaluation, OverTime, compare
from edgekit_converters.fidelity.reference import GOLDEN_FRAMES, golden_sequences, reference
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions

pytestmark = pytest.mark.convert


def opened(tmp_path, xs, model="memory_carried_f32.onnx", **options):
    np.save(tmp_path / "set.npy", xs)
    source = load(memory.MODELS / model, LoadOptions(**options))
    contract = describe(source, None)
    return source, contract, open_sequences(tmp_path / "set.npy", contract, source)


def stacked(number, frames):
    return memory.frames(number * frames).reshape(number, frames, 3)


def test_the_reference_is_what_a_caller_gets(tmp_path):
    xs = stacked(3, 10)
    source, contract, dataset = opened(tmp_path, xs)
    found = reference(source, contract, dataset)
    assert set(found.outputs[0]) == {"y"}
    got = np.array([answer["y"] for answer in found.outputs]).reshape(3, 10, 2)
    np.testing.assert_allclose(got, [memory.worked_out(x) for x in xs], atol=1e-5)


def test_an_original_with_its_state_inside_begins_each_sequence_afresh(tmp_path):
    xs = stacked(3, 10)
    source, contract, dataset = opened(tmp_path, xs, "memory_inside_f32.tflite", as_is=True)
    found = reference(source, contract, dataset)
    again = reference(source, contract, dataset)
    name = contract.outputs[0].name
    got = np.array([answer[name] for answer in found.outputs]).reshape(3, 10, 2)
    np.testing.assert_allclose(got, [memory.worked_out(x, 0.25) for x in xs], atol=1e-5)
    np.testing.assert_array_equal([a[name] for a in found.outputs], [a[name] for a in again.outputs])


def test_the_same_file_does_not_drift(tmp_path):
    source, contract, dataset = opened(tmp_path, stacked(4, 12))
    found = compare(reference(source, contract, dataset), memory.artifact("onnx"), Evaluation(contract, dataset))
    assert (found.items, found.sequences, found.sqnr_db) == (48, 4, None)
    assert [(span.first, span.last, span.frames) for span in found.over_time] == [
        (0, 0, 4), (1, 2, 8), (3, 3, 4), (4, 5, 8), (6, 6, 4), (7, 8, 8), (9, 9, 4), (10, 11, 8),
    ]  # fmt: skip


def test_an_artifact_carries_its_own_state_and_not_the_originals(tmp_path):
    xs = stacked(4, 32)
    source, contract, dataset = opened(tmp_path, xs)
    answers = reference(source, contract, dataset)
    seen = {}
    found = compare(
        answers,
        memory.artifact("int8"),
        Evaluation(contract, dataset),
        seen=lambda index, answer: seen.update({index: answer["y"]}),
    )
    assert found.sequences == 4
    from edgekit_runtime.engines.registry import load_engine
    from edgekit_runtime.loading.replay import Stepper

    made = memory.artifact("int8")
    with load_engine("tflite", made.data) as engine:
        stepper = Stepper(memory.CARRIED, made.inputs, made.outputs, engine)
        for number, sequence in enumerate(xs):
            stepper.reset()
            alone = [stepper.step({"x": x})["y"] for x in sequence]
            np.testing.assert_array_equal(alone, [seen[number * 32 + step] for step in range(32)])
    assert found.sqnr_db is not None
    assert all(span.sqnr_db is not None and span.sqnr_db > 10 for span in found.over_time)


def test_drift_that_grows_is_seen():
    along = OverTime(["y"])
    for _ in range(3):
        for step in range(16):
            along.add(step, {"y": np.ones(4)}, {"y": np.ones(4) + 0.01 * step})
    spans = along.spans()
    assert along.sequences == 3
    noise = [span.sqnr_db for span in spans]
    assert noise == sorted(noise, reverse=True)
    assert spans[-1].worst == pytest.approx(0.15)


def test_an_answer_that_is_not_finite_counts_as_zeros():
    along = OverTime(["y"])
    along.add(0, {"y": np.ones(2)}, {"y": np.array([1.0, np.nan])})
    (span,) = along.spans()
    assert span.sqnr_db == pytest.approx(10 * np.log10(2))
    assert span.worst == 1


def test_golden_sequences_are_where_the_answers_move(tmp_path):
    xs = np.zeros((6, 40, 3), np.float32)
    xs[1], xs[4] = memory.frames(40, 1), memory.frames(40, 2)
    source, contract, dataset = opened(tmp_path, xs)
    golden = golden_sequences(dataset, contract, reference(source, contract, dataset), count=2)
    assert [set(item) for item in golden] == [{"x"}, {"x"}]
    np.testing.assert_array_equal([item["x"] for item in golden], [xs[1, :GOLDEN_FRAMES], xs[4, :GOLDEN_FRAMES]])


def test_a_short_sequence_is_golden_as_a_whole(tmp_path):
    source, contract, dataset = opened(tmp_path, stacked(2, 5))
    golden = golden_sequences(dataset, contract, reference(source, contract, dataset))
    assert [item["x"].shape for item in golden] == [(5, 3), (5, 3)]


def test_a_classifier_agrees_by_frames(tmp_path):
    source, contract, dataset = opened(tmp_path, stacked(4, 8))
    contract = replace(contract, task="classification", scores="logits")
    found = compare(reference(source, contract, dataset), memory.artifact("int8"), Evaluation(contract, dataset))
    assert found.items == 32
    assert found.agreement is not None
    assert found.agreement > 0.8
