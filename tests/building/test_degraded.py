"""A smaller model's bundle as the degraded artifact of another build."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
from click.testing import CliRunner

from edgekit.building.build_journey import build
from edgekit.building.build_report import summary
from edgekit.building.build_request import BuildRequest
from edgekit.building.packing import degraded_artifact, read_degraded, too_large_together
from edgekit.cli.main import cli
from edgekit.packaging.assemble import assemble
from edgekit.packaging.output_errors import PackagingError
from edgekit_converters.choose import Candidate
from edgekit_converters.formats.workload import PROCESS_BYTES
from edgekit_profiles import open_catalogue
from edgekit_runtime import ModelLimits, open_bundle
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available

RENAMED = replace(
    tiny.CONTRACT,
    inputs=(replace(tiny.CONTRACT.inputs[0], name="picture"),),
    outputs=(replace(tiny.CONTRACT.outputs[0], name="scores"),),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("small"), fidelity={"items": 3})


def test_names_may_differ_and_nothing_else_of_the_contract(path):
    bundle = read_degraded([path], ["x86-64"], None)["x86-64"]
    shipped = degraded_artifact(bundle, RENAMED)
    artifact = shipped.artifact
    assert artifact.recipe.name == "degraded-tflite-int8"
    assert [spec.name for spec in (*artifact.inputs, *artifact.outputs)] == ["picture", "scores"]
    assert artifact.data == tiny.model_bytes("tflite-int8")
    assert shipped.fidelity == {"items": 3}
    darker = replace(tiny.IMAGE, mean=(1.0, 0.0, 0.0))
    for apart, what in (
        (replace(RENAMED, labels=("a", "b", "c", "d")), "labels"),
        (replace(RENAMED, scores="logits"), "scores"),
        (replace(RENAMED, inputs=(replace(RENAMED.inputs[0], image=darker),)), "inputs"),
        (replace(RENAMED, outputs=RENAMED.outputs * 2), "outputs"),
    ):
        with pytest.raises(PackagingError, match=f"its contract differs in: .*{what}"):
            degraded_artifact(bundle, apart)
    with pytest.raises(PackagingError, match="keeps a state"):
        degraded_artifact(bundle, replace(RENAMED, state="internal"))


def test_it_is_of_a_board_that_is_built_for_and_the_only_one(path, tmp_path):
    with pytest.raises(PackagingError, match="not among this build's profiles"):
        read_degraded([path], ["raspberry-pi-4"], None)
    other = tiny.bundle(tmp_path, target=Target("raspberry-pi-4", "aarch64", threads=4))
    assert set(read_degraded([path, other], ["x86-64", "raspberry-pi-4"], None)) == {"x86-64", "raspberry-pi-4"}
    with pytest.raises(PackagingError, match="a second bundle"):
        read_degraded([path, path], ["x86-64"], None)


def test_what_is_packed_answers_golden_examples_by_the_names_of_its_new_contract(path):
    shipped = degraded_artifact(read_bundle(path), tiny.CONTRACT)
    _, manifest = assemble(tiny.content(degraded=shipped))
    assert [entry.role for entry in manifest.artifacts] == ["primary", "degraded"]
    assert manifest.artifacts[0].blob == manifest.artifacts[1].blob
    assert manifest.artifacts[1].settings == read_bundle(path).artifact().settings


def test_a_board_whose_memory_does_not_hold_both_has_a_note(path):
    artifact = degraded_artifact(read_bundle(path), RENAMED).artifact
    board = open_catalogue().load("raspberry-pi-4")
    runtime = PROCESS_BYTES["tflite"]
    chosen = Candidate("tflite-int8", "tflite", "int8", memory_bytes=runtime)
    for ram_bytes, notes in ((2 * runtime + 2**22, 0), (2 * runtime, 1)):
        memory = replace(board.memory, ram_mb=ram_bytes / 2**20)
        assert len(too_large_together(replace(board, memory=memory), chosen, artifact)) == notes
    other = replace(chosen, format="onnx", memory_bytes=PROCESS_BYTES["onnx"])
    memory = replace(board.memory, ram_mb=2 * (runtime + PROCESS_BYTES["onnx"]) / 2**20)
    (note,) = too_large_together(replace(board, memory=memory), other, artifact)
    assert "with the degraded artifact loaded, too, it needs about" in note


@pytest.mark.convert
def test_two_builds_make_one_bundle_whose_late_answers_are_degraded(tmp_path):
    def built(name, **changes):
        asked = {"allow_random": True, "recipes": ("onnx-f32",), "name": name}
        return build(
            BuildRequest(tiny.MODELS / "tiny_f32.onnx", ("x86-64",), output=tmp_path / name, **asked, **changes)
        )

    first = built("small").bundles[0]
    assert first.as_json()["degraded"] is None
    report = built("large", degraded=(first.path,))
    bundle = report.bundles[0]
    packed = bundle.as_json()["degraded"]
    assert packed["recipe"] == "degraded-onnx-f32"
    assert any("instead of a late answer: degraded-onnx-f32" in line for line in summary(report))
    entry = read_bundle(bundle.path).manifest.artifacts[1]
    assert entry.role == "degraded"
    assert entry.memory_mb  # an install's trial holds it to that
    with open_bundle(bundle.path, cache=False, limits=ModelLimits(degraded=True)) as model:
        model.throttle(400)
        for _ in range(50):
            model._journey.device.learned.add(400.0)
        assert model.predict(np.zeros((3, 8, 8), np.float32), budget_ms=200).source == "degraded"


@pytest.mark.skipif(not {"litert", "onnxruntime"} <= set(available()), reason="needs both engines")
def test_verify_replays_its_golden_examples_too(tmp_path):
    small = tiny.bundle(tmp_path, "onnx-f32")
    path = tiny.bundle(tmp_path, degraded=degraded_artifact(read_bundle(small), tiny.CONTRACT))
    done = CliRunner().invoke(cli, ["verify", "--replay", "--allow-unsigned", "--json", str(path)])
    assert done.exit_code == 0, done.output
    checks = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert checks["replay degraded-onnx-f32"]["ok"] is True
    assert json.loads(done.stdout)["recipe"] == "tflite-int8"
