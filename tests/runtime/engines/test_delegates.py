"""External TFLite delegates: used when they load, a typed reason when they do not. The libraries are compiled here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from native import compiled

from edgekit_runtime.engines.litert import split
from edgekit_runtime.engines.registry import EngineSetup, available, load_with
from edgekit_runtime.system.errors import EngineError

TFLITE = sorted(set(available()) & {"litert", "tflite-runtime"})
pytestmark = pytest.mark.skipif(not TFLITE, reason="no TFLite engine is installed")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("delegates")
    (folder / "other.c").write_text("int answer(void) { return 42; }\n")
    (folder / "text.so").write_text("not a library")
    return {
        "delegate": compiled(HERE / "delegate.c", folder / "libnothing.so"),
        "other": compiled(folder / "other.c", folder / "libother.so"),
        "text": folder / "text.so",
        "absent": folder / "absent.so",
    }


def load(delegate, name=TFLITE[0] if TFLITE else ""):
    return load_with(name, "tflite", tiny.model_bytes("tflite-int8"), EngineSetup(delegate=str(delegate)))


@pytest.mark.parametrize("name", TFLITE)
def test_an_engine_runs_with_a_delegate_and_says_so(libraries, name):
    with (
        load(libraries["delegate"], name) as engine,
        load_with(name, "tflite", tiny.model_bytes("tflite-int8"), EngineSetup()) as plain,
    ):
        assert engine.info.delegate == str(libraries["delegate"])
        given = np.full((1, 8, 8, 3), 17, np.int8)
        np.testing.assert_array_equal(engine.run([given])[0], plain.run([given])[0])


@pytest.mark.parametrize(
    ("library", "options", "why"),
    [
        ("absent", "", "cannot be loaded: .*absent.so"),
        ("text", "", "cannot be loaded: .*text.so"),
        ("other", "", "not a TFLite delegate: it lacks tflite_plugin_create_delegate"),
        ("delegate", ",mode=missing", "refuses to start: no accelerator is plugged in"),
        ("delegate", ",mode=refuse", "refuses the artifact"),
        ("delegate", ",mode", "'mode' is not an option"),
    ],
)
def test_a_delegate_that_does_not_load_is_a_reason(libraries, library, options, why):
    with pytest.raises(EngineError, match=why) as raised:
        load(f"{libraries[library]}{options}")
    assert str(libraries[library]) in str(raised.value)


def test_a_delegate_that_does_not_load_prints_no_traceback_of_its_own(libraries, capfd):
    for library in ("absent", "other"):
        with pytest.raises(EngineError):
            load(libraries[library])
    assert "Traceback" not in capfd.readouterr().err


def test_options_stand_behind_the_path():
    assert split("libedgetpu.so.1") == ("libedgetpu.so.1", {})
    assert split("libedgetpu.so.1, device=usb:0,verbosity=1") == (
        "libedgetpu.so.1",
        {"device": "usb:0", "verbosity": "1"},
    )


def test_an_engine_without_delegates_says_so():
    with pytest.raises(EngineError, match="takes no delegate"):
        load_with("onnxruntime", "onnx", b"", EngineSetup(delegate="x.so"))
