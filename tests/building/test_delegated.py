"""A file that was compiled for an accelerator: packed, checked, opened and answered with its delegate, and only so.

No Edge TPU and no Ethos-U was at hand: the delegate is compiled here, and copies what it is given.
"""

from __future__ import annotations

import accelerated
import numpy as np
import pytest

from edgekit_converters.formats.needs import Runtime, barriers, read_needs
from edgekit_runtime import open_bundle
from edgekit_runtime.engines.registry import available, load_engine
from edgekit_runtime.modelfile.check import check_model
from edgekit_runtime.system.errors import EngineError, ModelFileError

pytestmark = pytest.mark.skipif("litert" not in available(), reason="LiteRT is not installed")
CONTRACT = """\
[[inputs]]
name = "x"

[[outputs]]
name = "y"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerated")
    accelerated.delegate(folder)
    (folder / "net_edgetpu.tflite").write_bytes(accelerated.model_bytes())
    for name, seed in (("calibration", 0), ("evaluation", 1)):
        x = np.random.default_rng(seed).integers(-100, 100, (60, 4)) / 10
        np.savez(folder / f"{name}.npz", x=x.astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def bundle(folder):
    from conftest import run_edgekit

    ran = run_edgekit(
        "build", "net_edgetpu.tflite", "--profile", "x86-64", "--recipe", "tflite-as-is", "--calibration",
        "calibration.npz", "--evaluation", "evaluation.npz", "-o", "out",
        cwd=folder, EDGEKIT_DELEGATE=str(folder / "libedgetpu.so.1"),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return next((folder / "out").glob("*.ekb"))


@pytest.mark.convert
def test_it_is_packed_and_answers_with_its_delegate(folder, bundle):
    with open_bundle(bundle, delegate=str(folder / "libedgetpu.so.1"), allow_unsigned=True) as model:
        assert model.predict(np.array([0.1, -0.5, 3, 9], np.float32)).outputs["y"] == pytest.approx([0.1, -0.5, 3, 9])
        assert "delegate" in model.describe()["tuning"]["chosen"]


@pytest.mark.convert
def test_without_a_delegate_it_does_not_open_and_says_which_one_it_needs(bundle, monkeypatch):
    monkeypatch.delenv("EDGEKIT_DELEGATE", raising=False)
    with pytest.raises(EngineError, match="edgetpu-custom-op, which only a delegate can run") as raised:
        open_bundle(bundle, allow_unsigned=True)
    assert "libedgetpu.so.1" in raised.value.do


@pytest.mark.convert
def test_it_is_checked_verified_and_installed_with_its_delegate_alone(edgekit, folder, bundle, monkeypatch, tmp_path):
    assert edgekit("check", bundle, "--profile", "x86-64").code == 1
    assert "op-delegate" in edgekit("check", bundle, "--profile", "x86-64", "--no-replay").out
    assert edgekit("install", bundle, "--root", tmp_path / "root", "--allow-unsigned").code == 1
    monkeypatch.setenv("EDGEKIT_DELEGATE", str(folder / "libedgetpu.so.1"))
    checked = edgekit("check", bundle, "--profile", "x86-64")
    assert checked.code == 0, checked.out
    assert edgekit("verify", bundle, "--allow-unsigned").code == 0
    installed = edgekit("install", bundle, "--root", tmp_path / "root", "--allow-unsigned", "--trial", "app")
    assert installed.code == 0, installed.err


@pytest.mark.parametrize("operator", ["edgetpu-custom-op", "ethos-u"])
def test_operators_of_known_delegates_are_sound_and_need_that_delegate(operator):
    data = accelerated.model_bytes(operator)
    assert check_model("tflite", data).ops == (operator,)
    needs = read_needs("tflite", data)
    assert [one.code for one in barriers(needs, Runtime("litert", "2.3.0"))] == ["op-delegate"]
    assert barriers(needs, Runtime("litert", "2.3.0", delegate="lib.so")) == ()


def test_an_operator_of_no_known_delegate_stays_refused():
    with pytest.raises(ModelFileError, match="custom operator 'mine'"):
        check_model("tflite", accelerated.model_bytes("mine"))


def test_a_delegate_that_does_not_take_the_operator_is_no_help(folder, monkeypatch):
    monkeypatch.setenv("EDGEKIT_DELEGATE", str(folder / "libedgetpu.so.1"))
    with pytest.raises(EngineError, match="unresolved custom op: ethos-u"):
        load_engine("tflite", accelerated.model_bytes("ethos-u"))
