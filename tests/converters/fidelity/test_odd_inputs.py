"""Odd samples through real engines, in a child process."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace

import numpy as np
import tiny
from linear import linear, onnx_artifact

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.fidelity.odd_inputs import odd_inputs, odd_samples

LOADED = '{"loaded": true}\n'
NAMES = ["zeros", "ones", "smallest", "largest", "single", "alternating", "noise"]


def test_a_sound_artifact_answers_every_odd_sample():
    verdicts = odd_inputs(tiny.artifact("tflite-int8"), tiny.CONTRACT)
    assert [verdict.name for verdict in verdicts] == NAMES
    assert all(verdict.ok for verdict in verdicts), verdicts


def test_an_answer_that_is_not_finite_is_told_with_the_output():
    source = linear((-1, 3), 2)
    weights = np.array([[3e38, 1], [3e38, 1], [3e38, 1]])  # three of them are more than a float32 holds
    found = {v.name: v for v in odd_inputs(onnx_artifact(source, weights), describe(source, None))}
    assert found["zeros"].ok
    assert not found["largest"].ok
    assert found["largest"].what == "'scores' is NaN or infinite"


def test_a_file_that_no_engine_loads_fails_for_all_after_one_child():
    started = []

    def run(*arguments, **more):
        started.append(arguments)
        return subprocess.run(*arguments, **more)

    broken = replace(tiny.artifact("tflite-int8"), data=b"no model at all")
    found = odd_inputs(broken, tiny.CONTRACT, run=run)
    assert len(started) == 1
    assert not any(verdict.ok for verdict in found)
    assert "not a TFLite model" in found[0].what


def test_a_crash_is_blamed_on_its_sample_and_the_rest_is_still_tried():
    answered = iter(
        [
            subprocess.CompletedProcess([], -signal.SIGFPE, LOADED + '{"name": "zeros", "ok": true, "what": ""}\n', ""),
            subprocess.CompletedProcess(
                [], 0, LOADED + "".join(f'{{"name": "{name}", "ok": true, "what": ""}}\n' for name in NAMES[2:]), ""
            ),
        ]
    )
    found = odd_inputs(tiny.artifact("tflite-int8"), tiny.CONTRACT, run=lambda *_a, **_k: next(answered))
    assert [verdict.ok for verdict in found] == [True, False, True, True, True, True, True]
    assert found[1].what == "the engine died with SIGFPE"


def test_odd_samples_are_the_same_at_every_call_and_fit_the_contract():
    first, second = dict(odd_samples(tiny.CONTRACT)), dict(odd_samples(tiny.CONTRACT))
    for name in NAMES:
        np.testing.assert_array_equal(first[name]["image"], second[name]["image"])
        assert first[name]["image"].dtype == np.uint8
    assert first["largest"]["image"].min() == 255
