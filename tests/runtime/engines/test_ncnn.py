"""ncnn: what it is told besides the network, and what it never gets to read."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from edgekit_runtime.engines.registry import EngineSetup, import_engine, load_with
from edgekit_runtime.system.errors import EngineError

pytest.importorskip("ncnn", reason="pip install ncnn")

PIXELS = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)


def test_threads_are_those_asked_for_and_sleep_between_layers():
    with load_with("ncnn", "ncnn", tiny.model_bytes("ncnn-f32"), EngineSetup(threads=2)) as engine:
        options = engine._net.opt
        assert (options.num_threads, options.openmp_blocktime, options.use_vulkan_compute) == (2, 0, False)


def test_an_artifact_in_32_bits_is_computed_in_32():
    with load_with("ncnn", "ncnn", tiny.model_bytes("ncnn-f32"), EngineSetup()) as engine:
        options = engine._net.opt
        assert not any((options.use_fp16_storage, options.use_fp16_arithmetic, options.use_bf16_storage))


def test_it_answers_as_onnx_runtime_does():
    pytest.importorskip("onnxruntime")
    answers = []
    for form in ("ncnn", "onnx"):
        engine = "ncnn" if form == "ncnn" else "onnxruntime"
        with load_with(engine, form, tiny.model_bytes(f"{form}-f32"), EngineSetup()) as loaded:
            answers += loaded.run([PIXELS])
    np.testing.assert_allclose(*answers, atol=1e-6)


def test_ncnn_reads_only_what_was_checked(monkeypatch):
    library = import_engine("ncnn")
    monkeypatch.setattr(library, "Net", lambda: pytest.fail("ncnn got bytes that were refused"))
    data = tiny.model_bytes("ncnn-f32")
    with pytest.raises(EngineError, match=r"ncnn \S+ refuses the artifact: its text is longer than the file"):
        load_with("ncnn", "ncnn", data[:200], EngineSetup())


def test_no_file_of_the_model_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with load_with("ncnn", "ncnn", tiny.model_bytes("ncnn-f32"), EngineSetup()) as engine:
        engine.run([PIXELS])
    assert not list(tmp_path.iterdir())
