"""What could run on a board, and in which order it is tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit_runtime.bundle.manifest import ArtifactEntry, Manifest, Target
from edgekit_runtime.loading.candidates import TuningOptions, candidates, untried_candidates
from edgekit_runtime.system.board import Cpu

BOTH = {"litert": "2.3.0", "onnxruntime": "1.31.1"}
ALL = {**BOTH, "tflite-runtime": "2.14.0"}

ARM = Cpu("aarch64")


def entry(role, recipe, blob):
    return ArtifactEntry(role, recipe, recipe.partition("-")[0], "int8", blob, 1, (), ())


PRIMARY = entry("primary", "tflite-int8", "aa")
ALTERNATE = entry("alternate", "onnx-int8-qdq", "bb")
BATCH = entry("batch", "tflite-int8", "cc")


def manifest(*artifacts, threads=4):
    target = Target("raspberry-pi-4", "aarch64", threads)
    return Manifest(1, "m", "1", "0", None, "0", target, artifacts, (), ())


def ways(found):
    return [(one.recipe, one.engine, one.threads, one.kernels) for one in found]


def test_the_manifests_own_choice_comes_first_and_other_kernels_last():
    found = ways(candidates(manifest(PRIMARY, ALTERNATE, BATCH), BOTH, TuningOptions(), cores=4, cpu=ARM))
    assert found == [
        *(("tflite-int8", "litert", threads, "default") for threads in (4, 1, 2)),
        *(("onnx-int8-qdq", "onnxruntime", threads, "default") for threads in (4, 1, 2)),
        *(("tflite-int8", "litert", threads, "plain") for threads in (4, 1, 2)),
    ]


@pytest.mark.parametrize(
    ("threads", "cores", "tried"),
    [(4, 4, [4, 1, 2]), (4, 1, [1]), (1, 2, [1, 2]), (2, 8, [2, 1, 8, 4]), (4, 3, [3, 1]), (16, 2, [2, 1])],
)
def test_threads_are_the_bundles_one_half_and_all_of_the_cores(threads, cores, tried):
    found = candidates(
        manifest(PRIMARY, threads=threads), {"onnxruntime": "1", "litert": "2"}, TuningOptions(), cores=cores
    )
    assert [one.threads for one in found if one.kernels == "default"] == tried


def test_what_the_caller_decided_is_not_tried_otherwise():
    found = candidates(manifest(PRIMARY, ALTERNATE), ALL, TuningOptions(engine="tflite-runtime", threads=3), cores=4)
    assert {(one.engine, one.threads) for one in found} == {("tflite-runtime", 3)}


def test_a_delegate_is_tried_first_and_only_where_it_fits():
    found = candidates(
        manifest(PRIMARY, ALTERNATE), BOTH, TuningOptions(threads=1, delegate="libedgetpu.so.1"), cores=4, cpu=ARM
    )
    assert [(one.engine, one.delegate, one.kernels) for one in found] == [
        ("litert", "libedgetpu.so.1", "default"),
        ("litert", None, "default"),
        ("onnxruntime", None, "default"),
        ("litert", None, "plain"),
    ]


def test_without_an_engine_there_is_none():
    assert candidates(manifest(PRIMARY), {"onnxruntime": "1"}, TuningOptions(), cores=4) == ()


def test_a_label_says_it_in_words():
    found = candidates(manifest(PRIMARY), BOTH, TuningOptions(threads=1, delegate="x.so"), cores=1)
    assert found[0].label == "tflite-int8 on litert 2.3.0, 1 thread, delegate x.so"
    assert replace(found[-1], threads=2).label == "tflite-int8 on litert 2.3.0, 2 threads, without XNNPACK"


def test_a_pin_leaves_the_primary_artifact_on_one_engine_with_its_own_kernels():
    found = ways(candidates(manifest(PRIMARY, ALTERNATE), ALL, TuningOptions(pin="primary"), cores=4))
    assert {(recipe, engine, kernels) for recipe, engine, _, kernels in found} == {("tflite-int8", "litert", "default")}
    other = ways(
        candidates(manifest(PRIMARY, ALTERNATE), ALL, TuningOptions(engine="tflite-runtime", pin="primary"), cores=1)
    )
    assert other == [("tflite-int8", "tflite-runtime", 1, "default")]
    assert candidates(manifest(PRIMARY, ALTERNATE), {"onnxruntime": "1"}, TuningOptions(pin="primary"), cores=4) == ()


ONNX = entry("primary", "onnx-f16", "dd")
GPU = {"onnxruntime": "1.31.1", "tensorrt-rtx": "1.7.1", "torch-cuda": "2.11.0", "tensorrt": "10.13"}


def engines(found):
    return list(dict.fromkeys(one.engine for one in found))


def test_engines_of_a_gpu_come_first_in_the_tables_order_and_with_one_thread_count():
    found = candidates(manifest(ONNX, threads=2), GPU, TuningOptions(), cores=4, cpu=ARM)
    assert engines(found) == ["tensorrt", "tensorrt-rtx", "torch-cuda", "onnxruntime"]
    assert [one.threads for one in found if one.on_gpu] == [2, 2, 2]
    assert found[0].label == "onnx-f16 on tensorrt 10.13, GPU"


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (TuningOptions(engine="gpu"), ["tensorrt", "tensorrt-rtx", "torch-cuda"]),
        (TuningOptions(engine="torch-cuda"), ["torch-cuda"]),
        (TuningOptions(pin="primary"), ["onnxruntime"]),
        (TuningOptions(pin="primary", engine="gpu"), ["tensorrt"]),
        (TuningOptions(pin="onnx-f16"), ["onnxruntime"]),
    ],
)
def test_what_is_pinned_runs_on_no_gpu_unless_one_was_asked_for(wanted, left):
    assert engines(candidates(manifest(ONNX), GPU, wanted, cores=1, cpu=ARM)) == left


def test_nothing_unmeasured_answers_on_a_gpu_unless_nothing_else_was_asked_for():
    everything = candidates(manifest(ONNX), GPU, TuningOptions(), cores=1, cpu=ARM)
    assert engines(untried_candidates(everything)) == ["onnxruntime"]
    asked = candidates(manifest(ONNX), GPU, TuningOptions(engine="gpu"), cores=1, cpu=ARM)
    assert untried_candidates(asked) == asked


def test_vulkan_is_offered_behind_the_processor_and_where_a_driver_is():
    ncnn = manifest(entry("primary", "ncnn-f32", "ee"), threads=2)
    here = {"ncnn": "1.0"}
    assert [one.kernels for one in candidates(ncnn, here, TuningOptions(), cores=2)] == ["default"] * 2
    found = candidates(ncnn, here, TuningOptions(), cores=2, vulkan={"ncnn"})
    assert [one.kernels for one in found] == ["default", "default", "vulkan"]
    assert found[-1].label == "ncnn-f32 on ncnn 1.0, GPU, Vulkan"
    assert untried_candidates(found) == found[:2]
    pinned = candidates(ncnn, here, TuningOptions(pin="primary"), cores=2, vulkan={"ncnn"})
    assert {one.kernels for one in pinned} == {"default"}
    two = candidates(manifest(PRIMARY, ALTERNATE), BOTH, TuningOptions(threads=1), cores=1, cpu=ARM, vulkan=["litert"])
    assert [(one.engine, one.kernels) for one in two] == [
        ("litert", "default"), ("onnxruntime", "default"), ("litert", "vulkan"), ("litert", "plain"),
    ]  # fmt: skip
