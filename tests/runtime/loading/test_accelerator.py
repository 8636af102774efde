"""An accelerator's delegate as a candidate: what is wrong with it costs its trial, and the processor answers.

The libraries are compiled here, against TFLite's own interface.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny
from native import compiled

from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.loading.candidates import TuningOptions
from edgekit_runtime.loading.readiness import Preparation, prepare
from edgekit_runtime.loading.tuning import Tuner, tune
from edgekit_runtime.system.board import library_version

ENGINE = min(set(available()) & {"litert", "tflite-runtime"}, default="")
pytestmark = pytest.mark.skipif(not ENGINE, reason="no TFLite engine is installed")
SOURCES = Path(__file__).parents[1] / "engines"
NEWER = "void TfLiteOfNextYear(void);\nvoid *tflite_plugin_create_delegate(void) { TfLiteOfNextYear(); return 0; }\n"
WRONG = {
    "is not there": ("libabsent.so", "cannot be loaded"),
    "is built for another version": ("libnewer.so", "undefined symbol: TfLiteOfNextYear"),
    "finds no device": ("libplain.so,mode=missing", "no accelerator is plugged in"),
    "drifts": ("libtaking.so,take=all", "golden example 0 of 'probs' differs"),
    "crashes": ("libplain.so,mode=crash", "crashed with SIGABRT"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("accelerator"), engine=ENGINE)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "newer.c").write_text(NEWER)
    for name, source in (("plain", SOURCES / "delegate.c"), ("taking", SOURCES / "accelerator.c")):
        compiled(source, folder / f"lib{name}.so")
    compiled(folder / "newer.c", folder / "libnewer.so")
    return folder


@pytest.mark.parametrize("what", WRONG)
def test_one_that_is_wrong_costs_its_trial_and_not_the_model(path, libraries, tmp_path, what):
    library, why = WRONG[what]
    wanted = TuningOptions(threads=1, delegate=f"{libraries}/{library}")
    verdict = tune(read_bundle(path), wanted, Tuner(0.3, folder=tmp_path))
    first = verdict.describe()["candidates"][0]
    assert first["candidate"].endswith(f"delegate {wanted.delegate}")
    assert why in first["refused"]
    assert (verdict.how, verdict.chosen.delegate) == ("measured", None)


@pytest.mark.parametrize("what", ["drifts", "crashes"])
def test_unmeasured_it_is_left_for_the_processor_with_a_note(path, libraries, tmp_path, monkeypatch, what):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path))
    how = Preparation(TuningOptions(threads=1, delegate=f"{libraries}/{WRONG[what][0]}"), tuning=Tuner(0.0))
    prepared = prepare(read_bundle(path), how)
    prepared.close()
    assert prepared.engine.info.delegate is None
    assert WRONG[what][1].split(" of ")[0] in prepared.notes[0]


def test_one_that_works_is_a_candidate_and_describe_says_so(path, libraries, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("EDGEKIT_TUNE", "0.5")
    monkeypatch.setenv("EDGEKIT_DELEGATE", f"{libraries}/libplain.so")
    with open_bundle(path, threads=1) as model:
        described = model.describe()
        assert model.predict(tiny.RED).top(1)[0].label == "red"
    first = described["tuning"]["candidates"][0]
    assert first["candidate"].endswith("libplain.so")
    assert first["p50_ms"] > 0
    assert first["refused"] is None
    elected = "delegate" in described["tuning"]["chosen"]
    assert described["engine"]["delegate"] == (f"{libraries}/libplain.so" if elected else None)


def test_another_version_of_the_library_is_measured_again(path, libraries, tmp_path):
    library = tmp_path / "liblater.so"
    library.write_bytes((libraries / "libplain.so").read_bytes())
    wanted, folder = TuningOptions(threads=1, delegate=str(library)), tmp_path / "state"
    tunings = []
    for later_ns in (0, 0, 10**9):
        os.utime(library, ns=(later_ns, later_ns))
        tunings.append(tune(read_bundle(path), wanted, Tuner(0.2, folder=folder)).how)
    assert tunings == ["measured", "stored", "measured"]


def test_a_library_is_known_by_its_place_size_and_date(tmp_path):
    assert library_version("libteflon-of-nowhere.so,option=1") == "libteflon-of-nowhere.so"
    assert library_version("") == ""
    file = tmp_path / "libx.so"
    file.write_bytes(b"12345")
    assert library_version(f"{file},a=b").startswith(f"{file.resolve()} 5 ")
