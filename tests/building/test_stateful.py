"""From a stateful model to a bundle whose sequences are replayed, and to sessions."""

from __future__ import annotations

import memory
import numpy as np
import pytest

from edgekit.building.build_journey import build
from edgekit.building.build_report import summary
from edgekit.building.build_request import BuildRequest
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle

pytestmark = pytest.mark.convert


@pytest.fixture
def built(tmp_path):
    def make(file, *recipes, count=12, **changes):
        np.save(tmp_path / "set.npy", memory.frames(count * 40).reshape(count, 40, 3))
        asked = {"profiles": ("x86-64",), "calibration": str(tmp_path / "set.npy"), "max_drop": 0.2} | changes
        return build(BuildRequest(model=memory.MODELS / file, output=tmp_path / "out", recipes=recipes, **asked))

    return make


def test_a_carried_state_is_calibrated_measured_and_replayed_along_sequences(built):
    report = built("memory_carried_f32.onnx", "onnx-int8-qdq", "onnx-f32")
    (bundle,) = report.bundles
    opened = read_bundle(bundle.path)
    contract = opened.manifest.contract
    assert (contract.state, [pair.input for pair in contract.carried]) == ("explicit", ["h_in"])
    assert [golden.steps for golden in opened.manifest.golden] == [32, 32]
    by_name = {candidate["recipe"]: candidate["fidelity"] for candidate in report.candidates}
    assert by_name["onnx-f32"]["sqnr_db"] is None
    assert by_name["onnx-int8-qdq"]["sequences"] == 2
    assert by_name["onnx-int8-qdq"]["over_time"][-1]["last"] == 39
    text = "\n".join(summary(report))
    assert "onnx-int8-qdq with its own state over 80 frames of 2 sequences: signal over noise" in text
    assert "run it with model.session()" in text

    xs = memory.frames(50, 9)
    with open_bundle(bundle.path) as model, model.session() as session:
        got = np.array([session.predict(x).outputs["y"] for x in xs])
    assert np.abs(got - memory.worked_out(xs)).max() < 0.2


def test_a_state_inside_is_packed_as_it_is(built):
    report = built("memory_inside_f32.tflite", "tflite-as-is")
    (bundle,) = report.bundles
    opened = read_bundle(bundle.path)
    entry = opened.artifact()
    assert opened.blob(entry.blob) == (memory.MODELS / "memory_inside_f32.tflite").read_bytes()
    assert (entry.recipe, entry.precision, opened.manifest.contract.state) == ("tflite-as-is", "float32", "internal")
    codes = [finding.code for finding in report.findings]
    assert {"as-is", "internal-state"} <= set(codes)

    xs = memory.frames(30, 9)
    with open_bundle(bundle.path) as model, model.session() as one, model.session() as other:
        first = [(one.predict(x).outputs["y"], other.predict(-x).outputs["y"]) for x in xs]
    np.testing.assert_allclose([a for a, _ in first], memory.worked_out(xs, 0.25), atol=1e-5)
    np.testing.assert_allclose([b for _, b in first], memory.worked_out(-xs, 0.25), atol=1e-5)


def test_a_finished_int8_file_keeps_its_eight_bits(built):
    report = built("memory_carried_int8.tflite", "tflite-as-is")
    entry = read_bundle(report.bundles[0].path).artifact()
    assert (entry.precision, [tensor.dtype for tensor in entry.inputs]) == ("int8", ["int8", "int8"])


def test_a_first_look_needs_no_data(built):
    report = built("memory_carried_f32.onnx", "onnx-f32", calibration=None, allow_random=True)
    assert report.random_data
    assert read_bundle(report.bundles[0].path).manifest.golden[0].steps == 32


def test_a_second_build_makes_the_same_bundle_out_of_the_store(built, tmp_path):
    first = built("memory_carried_f32.onnx", "onnx-f32", cache=tmp_path / "cache").bundles[0].path.read_bytes()
    again = built("memory_carried_f32.onnx", "onnx-f32", cache=tmp_path / "cache")
    assert read_bundle(again.bundles[0].path).manifest.golden
    assert len(again.bundles[0].path.read_bytes()) == len(first)


def test_as_it_is_stands_alone(built):
    with pytest.raises(ConversionError, match="packs the file unchanged and goes with no other recipe"):
        built("memory_inside_f32.tflite", "tflite-as-is", "tflite-f32")


def test_inspect_says_what_is_carried(built, edgekit):
    path = built("memory_carried_f32.onnx", "onnx-f32").bundles[0].path
    said = edgekit("inspect", path).out
    assert "state      h_out is the next h_in [4], zeros at first; ask it through model.session()" in said
    assert "input      x: float32 [3]" in said
    assert "h_in: float32 [4]" not in said
    assert "golden     2 sequences of 32 frames, replayed when the bundle is opened" in said
