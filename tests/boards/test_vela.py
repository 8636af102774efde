"""edgekit check --for ethos-u65-256: Vela's report, by Vela itself where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import tiny

from edgekit.boards.vela import check_ethos_u
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_runtime.system.errors import BundleError, MissingExtraError

HERE = importlib.util.find_spec("ethosu") is not None
needs_vela = pytest.mark.skipif(not HERE, reason="ethos-u-vela is not installed")


@pytest.mark.skipif(HERE, reason="ethos-u-vela is installed")
def test_without_vela_the_extra_is_named(tmp_path: Path):
    with pytest.raises(MissingExtraError, match="vela"):
        check_ethos_u(tiny.bundle(tmp_path), "ethos-u65-256")


@needs_vela
def test_an_int8_network_runs_on_the_npu(tmp_path: Path):
    record = check_ethos_u(tiny.bundle(tmp_path), "ethos-u85-256").as_json()
    (network,) = record["artifacts"]
    assert (record["for"], network["artifact"], network["cpu"], network["left"]) == (
        "ethos-u85-256",
        "tflite-int8",
        0,
        (),
    )
    assert network["npu"] > 0
    assert 0 < network["inference_ms"] < 1
    assert network["sram_kib"] > 0


@needs_vela
def test_what_is_left_to_the_processor_has_velas_reason(tmp_path: Path):
    (tmp_path / "float.tflite").write_bytes(tiny.model_bytes("tflite-f32"))
    (network,) = check_ethos_u(tmp_path / "float.tflite", "ethos-u65-256").networks
    assert (network.npu, network.cpu) == (0, 4)
    assert {op for op, _, _ in network.left} == {"SOFTMAX", "FULLY_CONNECTED", "MEAN", "RELU"}
    assert "unsupported DataType Float32" in network.left[0][1]


@needs_vela
def test_what_is_no_network_is_refused(tmp_path: Path):
    from edgekit.boards.vela import _compile

    with pytest.raises(ConversionError, match=r"Vela does not compile it: .*No networks defined"):
        _compile("net", b"garbage", "ethos-u65-256")
    with pytest.raises(BundleError, match="an Ethos-U takes TFLite files"):
        check_ethos_u(tiny.bundle(tmp_path, "onnx-f32", engine="onnxruntime"), "ethos-u65-256")
