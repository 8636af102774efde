"""A bundle says the same of the same inputs, whenever, wherever and in whatever process it was built."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from refusing import has_code

from edgekit.building.board_candidates import lasting_estimate
from edgekit.building.promises import allowance_mb, lasting_json, promise_of, with_memory
from edgekit.packaging.assemble import BundleArtifact, assemble
from edgekit.packaging.writer import write_bundle
from edgekit_converters.recipe.store import NO_STORE
from edgekit_profiles import Estimate, HostTimes
from edgekit_runtime.bundle.manifest import Promise
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.install import TrialOptions
from edgekit_runtime.install.prove import prove
from edgekit_runtime.system.errors import InstallError

MODEL = Path(__file__).parents[1] / "models" / "tiny_f32.onnx"
_REQUEST = (
    'BuildRequest(Path({model!r}), ("raspberry-pi-4",), output=Path({folder!r}), recipes=("onnx-int8-qdq",), '
    "allow_random=True)"
)
_CHILD = (
    "from pathlib import Path; from edgekit.building.build_request import BuildRequest; "
    "from edgekit.building.build_journey import build; build({request})"
)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Here and in a process with another seed for its hashes, in two folders, with nothing kept in between."""
    pytest.importorskip("onnxruntime")
    from edgekit.building.build_journey import build
    from edgekit.building.build_request import BuildRequest

    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    build(BuildRequest(MODEL, ("raspberry-pi-4",), output=here, recipes=("onnx-int8-qdq",), allow_random=True))
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
    ("budget", "estimate", "promised"),
    [
        (None, ESTIMATE, Promise(3.0, 3.0)),
        (50.0, ESTIMATE, Promise(3.0, 50.0)),
        (2.5, ESTIMATE, Promise(2.5, 2.5)),
        (50.0, None, Promise(None, 50.0)),
        (None, {**ESTIMATE, "high_ms": 0.2}, Promise(0.2, 1.0)),
        (None, None, None),
    ],
)
def test_a_promise_is_the_budget_or_the_upper_end_of_the_estimate(budget, estimate, promised):
    assert promise_of(budget, estimate) == promised


ALLOWED = {
    "the file's estimate with headroom": (80_000_000, 10_000_000, 80.0, 128),
    "nothing was measured": (80_000_000, 10_000_000, None, 128),
    "a process that takes more than the estimate leaves room for": (80_000_000, 10_000_000, 124.0, 160.0),
    "a process a little below what the estimate leaves room for": (56_627_728, 5_208, 61.4, 80),
    "the same process, measured again": (56_627_728, 5_208, 61.8, 80),
    "no estimate": (None, 10_000_000, 100.0, 128.0),
    "neither": (None, 10_000_000, None, None),
}


@pytest.mark.parametrize(("estimated", "bundle", "measured", "promised"), ALLOWED.values(), ids=ALLOWED)
def test_memory_is_promised_by_the_file_unless_a_process_takes_more(estimated, bundle, measured, promised):
    found = allowance_mb(estimated, bundle, measured)
    assert found == promised


@pytest.mark.skipif(not {"litert", "onnxruntime"} <= set(available()), reason="it takes LiteRT and ONNX Runtime")
def test_each_artifact_keeps_its_promise_on_each_engine(tmp_path):
    """As `edgekit install` will try it, whichever of them the board's tuning takes."""
    content = tiny.content(alternates=[BundleArtifact(tiny.artifact("onnx-f32"))], promise=Promise(p99_ms=1000.0))
    draft, manifest = assemble(content)
    manifest = with_memory(draft, manifest, {"tflite-int8": 1, "onnx-f32": 1}, NO_STORE)
    primary, alternate = manifest.artifacts
    assert set(primary.memory_mb) == {"litert", "tflite-runtime"}  # the engines whose wheels boards take
    assert set(alternate.memory_mb) == {"onnxruntime"}
    assert 30 < primary.memory_mb["litert"] < alternate.memory_mb["onnxruntime"] < 300
    assert manifest.promise == Promise(p99_ms=1000.0, peak_mb=alternate.memory_mb["onnxruntime"])
    write_bundle(tmp_path / "both.ekb", draft, manifest)
    bundle = read_bundle(tmp_path / "both.ekb")
    for entry in bundle.manifest.artifacts:
        proof = prove("trial", bundle, TrialOptions(answers=5, least=2, recipe=entry.recipe))
        assert proof.recipe == entry.recipe
        assert proof.seen.peak_mb < entry.memory_mb[proof.engine.split()[0]]


def test_a_process_that_takes_more_than_its_artifact_promises_is_refused_with_a_way_out(tmp_path):
    draft, manifest = assemble(tiny.content("onnx-f32" if "litert" not in available() else "tflite-int8"))
    (entry,) = manifest.artifacts
    small = replace(entry, memory_mb=dict.fromkeys(available(), 5.0))
    write_bundle(tmp_path / "small.ekb", draft, replace(manifest, artifacts=(small,), promise=Promise(peak_mb=5000.0)))
    with pytest.raises(
        InstallError,
        match=f"on trial with {entry.recipe} on .* MB, and 5 were promised",
        check=has_code("trial-failed"),
    ) as caught:
        prove("trial", read_bundle(tmp_path / "small.ekb"), TrialOptions(answers=5, least=2))
    assert "edgekit build --alternates 0" in caught.value.do


def test_figures_have_six_digits():
    found = lasting_json(Estimate(1 / 3, 2 / 3, 1e-9 / 7, "estimated"))
    assert (found["low_ms"], found["mid_ms"], found["high_ms"]) == (0.333333, 0.666667, 1.42857e-10)
    assert "host" not in found
