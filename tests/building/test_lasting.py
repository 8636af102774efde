"""A bundle says the same of the same inputs, whenever, wherever and in whatever process it was built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit.building.candidates import lasting_estimate
from edgekit.building.lasting import lasting_json, promise_of
from edgekit_profiles import Estimate, HostTimes
from edgekit_runtime.bundle import Promise, read_bundle

MODEL = Path(__file__).parents[1] / "models" / "tiny_f32.onnx"
_REQUEST = 'BuildRequest(Path({model!r}), ("raspberry-pi-4",), Path({folder!r}), recipes=("onnx-int8-qdq",), allow_random=True)'
_CHILD = "from pathlib import Path; from edgekit.building import BuildRequest, build; build({request})"


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Here and in a process with another seed for its hashes, in two folders, with nothing kept in between."""
    pytest.importorskip("onnxruntime")
    from edgekit.building import BuildRequest, build

    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    build(BuildRequest(MODEL, ("raspberry-pi-4",), here, recipes=("onnx-int8-qdq",), allow_random=True))
    request = _REQUEST.format(model=str(MODEL), folder=str(there))
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", _CHILD.format(request=request)], env=environment, check=True, timeout=120)
    return [next(folder.glob("*.ekb")) for folder in (here, there)]


@pytest.mark.convert
def test_two_builds_of_the_same_inputs_have_the_same_bytes(twice):
    one, other = twice
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.convert
def test_the_manifest_says_how_it_was_made_and_what_is_promised(twice):
    manifest = read_bundle(twice[0]).manifest
    (entry,) = manifest.artifacts
    assert "ai.onnx:QuantizeLinear" in entry.ops
    assert entry.settings["samples"] > 0
    assert entry.estimate["grade"] in ("estimated", "anchored")
    assert manifest.promise.p50_ms == entry.estimate["high_ms"]
    assert manifest.promise.peak_mb > 0


@pytest.mark.convert
def test_no_time_of_this_machine_is_asked_for():
    """The function that makes a bundle's estimate has no clock to ask: it takes profile, file and anchors alone."""
    import inspect

    assert [*inspect.signature(lasting_estimate).parameters] == ["profile", "support", "made", "anchors"]
    with pytest.raises(ValueError, match="times of this machine"):
        lasting_json(Estimate(1, 2, 3, "anchored", host=HostTimes(1, 1, "litert")))


ESTIMATE = {"low_ms": 1.0, "mid_ms": 2.0, "high_ms": 3.0}


@pytest.mark.parametrize(
    ("budget", "estimate", "memory", "promised"),
    [
        (None, ESTIMATE, [4_000_000, None, 5_000_000], Promise(3.0, 3.0, 5.0)),
        (50.0, ESTIMATE, [None], Promise(3.0, 50.0, None)),
        (2.5, ESTIMATE, [], Promise(2.5, 2.5, None)),
        (50.0, None, [], Promise(None, 50.0, None)),
        (None, {**ESTIMATE, "high_ms": 0.2}, [], Promise(0.2, 1.0, None)),
        (None, None, [1_000_000], Promise(None, None, 1.0)),
        (None, None, [None], None),
    ],
)
def test_a_promise_is_the_budget_or_the_upper_end_of_the_estimate(budget, estimate, memory, promised):
    assert promise_of(budget, estimate, memory) == promised


def test_figures_have_six_digits():
    found = lasting_json(Estimate(1 / 3, 2 / 3, 1e-9 / 7, "estimated"))
    assert (found["low_ms"], found["mid_ms"], found["high_ms"]) == (0.333333, 0.666667, 1.42857e-10)
    assert "host" not in found
