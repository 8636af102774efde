"""Which Debian and which processor stand for a board, and what that board shows; decided without an emulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny

from edgekit.boards.emulated_board import CPUS, Image, NotEmulatedError, cpu_for, image_for, show
from edgekit.packaging.assemble import BundleArtifact
from edgekit.shipping.plan import NoWheelError, choose_engine
from edgekit_profiles import load
from edgekit_runtime.bundle.reader import read_bundle

PI_4 = load("raspberry-pi-4")

IMAGES = {
    "raspberry-pi-4": ("bookworm", "aarch64"),
    "raspberry-pi-4-trixie": ("trixie", "aarch64"),
    "raspberry-pi-4-32bit": ("bookworm", "armv7l"),
    "raspberry-pi-4-trixie-32bit": ("trixie", "armv7l"),
    "raspberry-pi-zero-2-w": ("bookworm", "aarch64"),
    "rock-5b-trixie": ("trixie", "aarch64"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_the_release_whose_python_the_board_has(name):
    assert image_for(load(name)) == Image(*IMAGES[name])


REFUSED = {
    "raspberry-pi-zero-w": "armv6l cannot be emulated",
    "x86-64": "x86_64 cannot be emulated",
    "jetson-nano": "no Debian release matches",
    "jetson-orin-nano": "no Debian release matches",  # its glibc, 2.35, is older than bookworm's
    "pixel-4": "no Debian release matches Android",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_release_stands_for_is_refused(name):
    with pytest.raises(NotEmulatedError, match=REFUSED[name]) as refused:
        image_for(load(name))
    assert refused.value.where == name
    assert "without --emulate" in refused.value.do


PROCESSORS = {
    "raspberry-pi-zero-2-w": "cortex-a53",
    "raspberry-pi-3b": "cortex-a53",
    "raspberry-pi-4": "cortex-a72",
    "raspberry-pi-5": "cortex-a76",
    "rock-5b": "cortex-a76",
    "cortex-a55": "cortex-a76",  # QEMU 7.2 has none; the same instructions
    "raspberry-pi-4-32bit": "cortex-a15",
    "raspberry-pi-2": "cortex-a7",
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_board_s_processor_or_one_with_its_instructions(name):
    profile = load(name)
    cpu = cpu_for(profile)
    assert cpu.name == PROCESSORS[name]
    assert cpu.machine == profile.arch
    assert ("asimddp" in cpu.features.split()) == ("dotprod" in profile.core.simd)


@pytest.mark.parametrize("name", ["max", "cortex-x9", "cortex-a15", ""])
def test_only_named_processors_of_the_machine(name):
    with pytest.raises(NotEmulatedError, match="cortex-a53, cortex-a57, cortex-a72, cortex-a76"):
        cpu_for(PI_4, name)


def test_max_is_refused_with_the_reason():
    with pytest.raises(NotEmulatedError, match="wrong INT8 numbers without an error"):
        cpu_for(PI_4, "max")


@pytest.mark.parametrize("cpu", CPUS.values(), ids=CPUS)
def test_proc_and_sys_agree_about_the_cores(tmp_path, cpu):
    show(tmp_path, cpu, cores=4, model="A board")
    info = (tmp_path / "proc/cpuinfo").read_text()
    assert info.count("processor\t: ") == 4
    assert info.count(f"CPU part\t: {cpu.part}\n") == 4
    system = tmp_path / "sys/devices/system/cpu"
    assert (system / "possible").read_text() == "0-3\n"
    assert {path.name for path in system.glob("cpu[0-9]")} == {"cpu0", "cpu1", "cpu2", "cpu3"}
    assert (tmp_path / "proc/device-tree/model").read_bytes() == b"A board\0"


def test_a_core_of_its_own_says_0_and_no_range(tmp_path):
    show(tmp_path, CPUS["cortex-a72"])
    assert (tmp_path / "sys/devices/system/cpu/online").read_text() == "0\n"


def test_a_profile_without_a_patch_version_of_python_is_enough():
    assert image_for(replace(PI_4, os=replace(PI_4.os, python="3.11.9", glibc="2.38"))) == Image("bookworm", "aarch64")


def test_an_artifact_that_has_no_engine_there_leaves_the_board_to_the_one_beside_it(tmp_path):
    bundle = read_bundle(tiny.bundle(tmp_path, alternates=[BundleArtifact(tiny.artifact("onnx-f32"))]))
    assert choose_engine(bundle.manifest, load("raspberry-pi-4-trixie-32bit")) == "onnxruntime"
    assert choose_engine(bundle.manifest, load("raspberry-pi-4-32bit")) == "tflite-runtime"
    with pytest.raises(NoWheelError, match="no engine for tiny installs on jetson-nano"):
        choose_engine(bundle.manifest, load("jetson-nano"))
