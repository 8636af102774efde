"""`edgekit host export`: what is written for Triton and KServe, and what is refused. A real Triton: tests/interop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit.host.export import Export, export
from edgekit.host.http1 import ExportError
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter

ON_GPU = Target("host-gpu", "x86_64", threads=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("export"), "onnx-f32", target=ON_GPU))


def config(made):
    return next(file for file in made.files if file.name == "config.pbtxt").read_text()


def test_the_repository_holds_the_artifact_its_configuration_and_its_examples(bundle, tmp_path):
    made = export(bundle, tmp_path / "new")
    assert sorted(str(file.relative_to(tmp_path / "new")) for file in made.files) == [
        "tiny/1/model.onnx",
        "tiny/config.pbtxt",
        "tiny/warmup/golden-0-image",
        "tiny/warmup/golden-1-image",
    ]
    assert (tmp_path / "new/tiny/1/model.onnx").read_bytes() == tiny.model_bytes("onnx-f32")
    entry = bundle.artifact()
    wanted = Adapter(bundle.manifest.contract.inputs[0], entry.inputs[0])(tiny.BLUE)
    got = np.fromfile(tmp_path / "new/tiny/warmup/golden-1-image", np.float32)
    np.testing.assert_array_equal(got, wanted.ravel())


def test_a_gpu_of_the_profile_gets_tensorrt_and_a_processor_does_not(bundle, tmp_path):
    on_gpu, on_cpu = (config(export(bundle, tmp_path / str(gpu), Export(gpu=gpu))) for gpu in (None, False))
    assert "kind: KIND_GPU" in on_gpu
    assert 'name: "tensorrt"\n  parameters { key: "precision_mode" value: "FP32" }' in on_gpu
    assert "kind: KIND_CPU" in on_cpu
    assert "tensorrt" not in on_cpu


def test_batches_are_formed_of_what_waits_and_every_one_is_warmed_up(bundle, tmp_path):
    told = config(export(bundle, tmp_path / "new"))
    assert "max_batch_size: 32" in told
    assert "preferred_batch_size: [ 8, 16, 32 ]" in told
    assert "allow_timeout_override: true" in told
    assert "max_queue_delay" not in told
    for name in ("golden 0, batch 1", "golden 0, batch 32", "golden 1, batch 1"):
        assert f'name: "{name}"' in told


def test_devices_get_a_host_with_the_names_that_differ(bundle, tmp_path):
    made = export(bundle, tmp_path / "new")
    assert made.host_line("http://box:8000") == 'Host("http://box:8000", model="tiny")'
    named = replace(made, inputs={"image": "input_1"}, outputs={"probs": "Identity:0"})
    assert named.host_line("https://box") == (
        'Host("https://box", model="tiny", inputs={"image": "input_1"}, outputs={"probs": "Identity:0"})'
    )


@pytest.mark.parametrize("gpu", [True, False])
def test_kserve_gets_a_service_beside_the_repository(bundle, tmp_path, gpu):
    export(bundle, tmp_path / "new", Export("kserve", gpu=gpu, storage="s3://models/tiny"))
    told = (tmp_path / "new/inferenceservice.yaml").read_text()
    assert 'storageUri: "s3://models/tiny"' in told
    assert ("nvidia.com/gpu" in told) == gpu


def test_a_bundle_without_an_onnx_artifact_is_refused_with_what_it_holds(tmp_path):
    other = read_bundle(tiny.bundle(tmp_path, "tflite-int8"))
    with pytest.raises(ExportError, match="no ONNX artifact with float inputs and outputs; it has tflite-int8"):
        export(other, tmp_path / "new")


def test_a_recipe_that_is_not_there_and_a_folder_that_is_taken_are_refused(bundle, tmp_path):
    with pytest.raises(ExportError, match="no ONNX artifact 'onnx-f16'; it has onnx-f32"):
        export(bundle, tmp_path / "new", Export(recipe="onnx-f16"))
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(ExportError):
            export(bundle, folder)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file"]


def test_the_command_prints_the_files_and_the_line_for_devices(edgekit, tmp_path):
    path = tiny.bundle(tmp_path, "onnx-f32", target=ON_GPU)
    ran = edgekit("host", "export", path, "--for", "triton", "-o", "made", "--allow-unsigned", "--url", "http://box:1")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == ('on a device: open_bundle(..., hosts=[Host("http://box:1", model="tiny")])')
    told = edgekit("host", "export", path, "--for", "kserve", "-o", "other", "--allow-unsigned", "--json").json
    assert (told["model"], told["recipe"]) == ("tiny", "onnx-f32")
    assert "inferenceservice.yaml" in told["files"]
