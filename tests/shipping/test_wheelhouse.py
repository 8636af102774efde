"""What a wheelhouse holds, for boards that are not this machine: resolved by a real uv from a shelf of small wheels."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgekit.shipping import wheelhouse
from edgekit.shipping.plan import NoWheelError, ShippingError, WheelDownloadError
from edgekit.shipping.wheelhouse import collect
from edgekit_profiles import load

PI_4 = load("raspberry-pi-4")
ARM, X86, ARM_32 = "manylinux_2_28_aarch64", "manylinux_2_28_x86_64", "manylinux_2_31_armv7l"
TRIXIE = replace(PI_4.os, python="3.13", glibc="2.41", debian="trixie")
BOOKWORM = replace(PI_4.os, python="3.11", glibc="2.36", debian="bookworm")
BOOKWORM_32 = replace(PI_4, name="pi-32", arch="armv7l", os=BOOKWORM)
TRIXIE_32 = replace(PI_4, name="pi-32-trixie", arch="armv7l", os=TRIXIE)
DEBIAN = ("python3-cryptography", "python3-numpy", "python3-pil", "python3-xxhash")


def names(house):
    return {wheel.name: wheel.version for wheel in house.wheels}


def test_the_board_s_own_wheels_with_their_hashes(shelf, tmp_path):
    house = collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit())
    assert house.engine_version == "2.3.0"
    assert house.debian == ()
    assert names(house)["numpy"] == "2.4.6"
    assert {"edgekit-deploy", "click", "pillow", "tqdm", "cffi", "pip"} <= names(house).keys()
    for wheel in house.wheels:
        data = (house.folder / wheel.file).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (wheel.sha256, wheel.bytes)
        assert wheel.file.endswith(("-any.whl", "aarch64.whl"))
    assert {path.name for path in house.folder.iterdir()} == {wheel.file for wheel in house.wheels} | {
        "requirements.txt"
    }


def test_markers_are_the_board_s_and_not_this_machine_s(shelf, tmp_path):
    shelf.put(
        "ai-edge-litert",
        "2.4.0",
        f"cp311-cp311-{ARM}",
        needs=("only-arm; platform_machine == 'aarch64'", "no-arm; platform_machine == 'x86_64'"),
    )
    shelf.put("only-arm", "1.0")
    shelf.put("no-arm", "1.0")
    found = names(collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit()))
    assert "only-arm" in found
    assert "no-arm" not in found


def test_a_wheel_that_the_board_s_python_is_too_new_for_is_passed_over(shelf, tmp_path):
    shelf.put("ai-edge-litert", "2.3.1", f"cp311-cp311-{ARM}", needs=("numpy>=1.23", "backports.strenum"))
    shelf.put("backports.strenum", "1.2.8", python=">=3.8.6,<4.0")
    shelf.put("backports.strenum", "1.3.1", python=">=3.8.6,<3.11")  # uv takes it, pip on the board would not
    found = names(collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit()))
    assert found["backports-strenum"] == "1.2.8"


def test_tflite_runtime_gets_numpy_1(shelf, tmp_path):
    found = names(collect(PI_4, "tflite-runtime", tmp_path / "usb", wheel=shelf.edgekit()))
    assert (found["tflite-runtime"], found["numpy"]) == ("2.14.0", "1.26.4")


def test_a_profile_s_pin_holds(shelf, tmp_path):
    for version in ("1.19.2", "1.31.1"):
        shelf.put("onnxruntime", version, f"cp311-cp311-{ARM}")
    newest = collect(PI_4, "onnxruntime", tmp_path / "a", wheel=shelf.edgekit())
    pinned = collect(
        replace(PI_4, pins={"onnxruntime": "1.19.2"}), "onnxruntime", tmp_path / "b", wheel=shelf.edgekit()
    )
    assert (newest.engine_version, pinned.engine_version) == ("1.31.1", "1.19.2")


def test_on_32_bits_what_is_compiled_comes_from_debian(shelf, tmp_path):
    house = collect(BOOKWORM_32, "tflite-runtime", tmp_path / "usb", wheel=shelf.edgekit())
    assert house.debian == DEBIAN
    assert names(house).keys() == {"click", "edgekit-deploy", "pip", "tflite-runtime"}
    assert house.engine_version == "2.14.0"


def test_a_wheel_for_32_bits_does_not_replace_debian_s_library(shelf, tmp_path):
    shelf.put("cryptography", "50.0.2", f"cp39-abi3-{ARM_32}", needs=("cffi>=2",))
    shelf.put("cffi", "2.1.1", f"cp311-cp311-{ARM}")
    assert collect(BOOKWORM_32, "tflite-runtime", tmp_path / "usb", wheel=shelf.edgekit()).debian == DEBIAN


def test_the_engine_itself_may_come_from_debian(shelf, tmp_path):
    for name, version in (("onnxruntime", "1.31.1"), ("numpy", "2.4.6"), ("xxhash", "3.5.0"), ("pillow", "11.0.0")):
        shelf.put(name, version, f"cp313-cp313-{X86}")
    shelf.put("cffi", "2.1.1", f"cp313-cp313-{X86}")
    house = collect(TRIXIE_32, "onnxruntime", tmp_path / "usb", wheel=shelf.edgekit())
    assert "python3-onnxruntime" in house.debian
    assert house.engine_version == "1.21.0"
    assert names(house).keys() == {"click", "edgekit-deploy", "pip"}


def test_debian_s_version_must_satisfy_who_needs_it(shelf, tmp_path):
    shelf.put("tflite-runtime", "2.15.0", "cp311-cp311-manylinux_2_34_armv7l", needs=("numpy>=1.25",))
    with pytest.raises(
        NoWheelError, match=r"tflite_runtime-2.15.0.* needs numpy>=1.25, and Debian's python3-numpy is 1.24.2"
    ):
        collect(BOOKWORM_32, "tflite-runtime", tmp_path / "usb", wheel=shelf.edgekit())


NONE = {
    "no wheel for 32 bits": (BOOKWORM_32, "litert", "ai-edge-litert 2.3.0 has no wheel for armv7l"),
    "no wheel for its Python": (replace(PI_4, os=TRIXIE), "tflite-runtime", "cp311"),
    "no wheel at all": (PI_4, "onnxruntime", "onnxruntime was not found"),
}


@pytest.mark.parametrize("case", NONE)
def test_what_cannot_be_installed_is_refused_with_the_reason(shelf, tmp_path, case):
    profile, engine, reason = NONE[case]
    for name, version in (("numpy", "2.4.6"), ("xxhash", "3.5.0"), ("pillow", "11.0.0"), ("cffi", "1.17.1")):
        shelf.put(name, version, f"cp313-cp313-{ARM}")
    with pytest.raises(NoWheelError) as refused:
        collect(profile, engine, tmp_path / "usb", wheel=shelf.edgekit())
    assert reason in refused.value.what
    assert refused.value.where == profile.name
    assert "--engine" in refused.value.do


def test_an_index_that_cannot_be_reached_is_one_sentence(shelf, tmp_path, monkeypatch):
    monkeypatch.delenv("UV_CONFIG_FILE")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with pytest.raises(WheelDownloadError, match="the package index cannot be reached"):
        collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit())


def test_the_same_again_gives_the_same_files_and_removes_what_is_no_longer_needed(shelf, tmp_path):
    first = collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit())
    assert collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit()) == first
    second = collect(PI_4, "tflite-runtime", tmp_path / "usb", wheel=shelf.edgekit())
    assert {path.name for path in second.folder.glob("*.whl")} == {wheel.file for wheel in second.wheels}


def test_what_is_no_wheel_is_refused(shelf, tmp_path):
    (tmp_path / "edgekit_deploy-0.1.0-py3-none-any.whl").write_text("no zip")
    with pytest.raises(ShippingError, match="not a wheel"):
        collect(PI_4, "litert", tmp_path / "usb", wheel=tmp_path / "edgekit_deploy-0.1.0-py3-none-any.whl")


def test_pip_is_told_every_hash_but_its_own(shelf, tmp_path):
    house = collect(PI_4, "litert", tmp_path / "usb", wheel=shelf.edgekit())
    lines = house.requirements.read_text().splitlines()
    assert len(lines) == len(house.wheels) - 1
    assert all("==" in line and " --hash=sha256:" in line for line in lines)
    assert house.pip.file == "pip-26.3-py3-none-any.whl"


def test_edgekit_s_wheel_is_built_of_its_source_and_put_together_of_an_install(tmp_path, monkeypatch):
    """The second as an ordinary install has it: both hold the same modules, and pip takes what was put together."""
    built = wheelhouse.own_wheel(tmp_path / "built")
    site = tmp_path / "site"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    (found,) = importlib.metadata.distributions(name="edgekit-deploy", path=[str(site)])
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: found)
    again = wheelhouse.own_wheel(tmp_path / "again")
    assert set(zipfile.ZipFile(built).namelist()) == set(zipfile.ZipFile(again).namelist())
    assert again.read_bytes() == wheelhouse.own_wheel(tmp_path / "third").read_bytes()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target"]
    subprocess.run([*install, str(tmp_path / "second"), str(again)], check=True, timeout=120)
    module = Path("edgekit_runtime", "serving", "model.py")
    assert (tmp_path / "second" / module).read_bytes() == (site / module).read_bytes()


def test_a_full_disk_is_not_taken_for_a_broken_builder(tmp_path, monkeypatch):
    refused = subprocess.CompletedProcess([], 2, "", "error: Failed to build\n  cause: exit status 1\n\nhint: ask\n")
    monkeypatch.setattr(wheelhouse.subprocess, "run", lambda *given, **more: refused)
    with pytest.raises(ShippingError, match=r"wheel failed: error: Failed to build cause: exit status 1\. Run"):
        wheelhouse.own_wheel(tmp_path)
    monkeypatch.setattr(wheelhouse, "_ROOM", 1 << 62)
    with pytest.raises(OSError, match="No space left on device"):
        wheelhouse.own_wheel(tmp_path)


@pytest.mark.network
def test_the_real_index_has_all_of_it_for_a_raspberry_pi_4(tmp_path, monkeypatch):
    """Resolved for real; what is downloaded is small."""
    from edgekit.shipping.wheels import WheelTarget, resolve

    found = {
        one.name: one for one in resolve(WheelTarget.of(PI_4), ["ai-edge-litert>=2.1.3", "numpy", "pillow", "xxhash"])
    }
    assert all(one.file for one in found.values())
    assert found["ai-edge-litert"].file.endswith("_aarch64.whl")
    assert "cp311" in found["numpy"].file
