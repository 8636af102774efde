"""The network that boards are timed with: the same everywhere, of the published size, and run by every engine."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from edgekit_converters.formats.workload import precision_of, quantized_fraction, read_workload
from edgekit_converters.zoo.mobilenet_v1 import anchor_files, anchor_model
from edgekit_profiles import mobilenet_v1
from edgekit_runtime.engines.registry import load_engine

ALL = [(form, precision) for form in ("tflite", "onnx") for precision in ("float32", "int8")]


@pytest.mark.parametrize(("form", "precision"), ALL)
def test_it_is_the_network_that_the_estimate_goes_by(form: str, precision: str):
    data = anchor_model(form, precision)
    found = read_workload(form, data, precision)
    wanted = mobilenet_v1(precision)
    assert not found.unknown
    assert found.macs == wanted.macs
    assert [(op.kind, op.macs) for op in found.ops if op.macs] == [(op.kind, op.macs) for op in wanted.ops if op.macs]
    assert precision_of(form, data) == precision
    assert quantized_fraction(form, data)[0] == pytest.approx(1.0 if precision == "int8" else 0.0, abs=0.01)


def test_its_files_answer_alike_in_both_formats_and_both_precisions():
    picture = (np.random.default_rng(3).random((1, 224, 224, 3)) * 2 - 1).astype(np.float32)
    answers = {}
    for form, precision in ALL:
        with load_engine(form, anchor_model(form, precision)) as engine:
            if form == "onnx":
                item = picture.transpose(0, 3, 1, 2)
            elif precision == "int8":
                item = np.clip(np.rint(picture * 127.5 - 1), -128, 127).astype(np.int8)
            else:
                item = picture
            (got,) = engine.run([np.ascontiguousarray(item)])
            scale = engine.outputs[0].quantization
            answers[form, precision] = (
                got[0] if scale is None else (got[0].astype(np.float32) - scale.zero_point) * scale.scale
            )
    exact = answers["tflite", "float32"]
    assert exact.sum() == pytest.approx(1.0, abs=1e-4)
    assert answers["onnx", "float32"] == pytest.approx(exact, abs=1e-6)
    assert np.corrcoef(answers["onnx", "int8"], exact)[0, 1] > 0.9
    assert np.abs(answers["tflite", "int8"] - exact).max() < 1 / 128


def test_the_files_are_written_once_and_are_the_same_bytes(tmp_path):
    files = anchor_files(tmp_path)
    assert sorted(files) == ["mobilenet_v1-float32.tflite", "mobilenet_v1-int8.tflite"]
    before = {
        name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).digest()) for name, path in files.items()
    }
    anchor_model.cache_clear()
    again = anchor_files(tmp_path)
    assert before == {
        name: (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).digest()) for name, p in again.items()
    }
    made = hashlib.sha256(anchor_model("tflite", "int8")).digest()
    assert made == before["mobilenet_v1-int8.tflite"][1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    from edgekit_converters.recipe.conversion_errors import ConversionError

    (tmp_path / "file").write_text("")
    with pytest.raises(ConversionError, match="cannot be written"):
        anchor_files(tmp_path / "file")
