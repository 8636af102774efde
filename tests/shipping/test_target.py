"""A board's tags, markers and platform: never this machine's."""

from __future__ import annotations

import pytest
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

from edgekit.shipping.wheels import WheelTarget

PI_4 = WheelTarget("raspberry-pi-4", "aarch64", "3.11", "2.36")
PI_32 = WheelTarget("pi-32", "armv7l", "3.11", "2.36")
TRIXIE = WheelTarget("trixie", "aarch64", "3.13", "2.41")
JETSON = WheelTarget("old", "aarch64", "3.11", "2.27")
FITS = {
    "pure": (PI_4, "click-8.1-py3-none-any.whl", True),
    "its own machine": (PI_4, "numpy-2.4.6-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl", True),
    "another machine": (PI_4, "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl", False),
    "an older glibc's name": (PI_4, "xxhash-4.1-cp311-cp311-manylinux2014_aarch64.whl", True),
    "a newer glibc": (PI_4, "some-1-cp311-cp311-manylinux_2_38_aarch64.whl", False),
    "glibc exactly": (PI_4, "some-1-cp311-cp311-manylinux_2_36_aarch64.whl", True),
    "glibc 2.34 on an old system": (JETSON, "tflite_runtime-2.14.0-cp311-cp311-manylinux_2_34_aarch64.whl", False),
    "another Python": (TRIXIE, "tflite_runtime-2.14.0-cp311-cp311-manylinux_2_34_aarch64.whl", False),
    "abi3 of an older Python": (TRIXIE, "cryptography-50-cp39-abi3-manylinux_2_28_aarch64.whl", True),
    "free-threaded": (TRIXIE, "numpy-2.4-cp313-cp313t-manylinux_2_28_aarch64.whl", False),
    "musl": (PI_4, "numpy-2.4.6-cp311-cp311-musllinux_1_2_aarch64.whl", False),
    "32-bit": (PI_32, "tflite_runtime-2.14.0-cp311-cp311-manylinux_2_34_armv7l.whl", True),
    "64-bit on 32-bit": (PI_32, "tflite_runtime-2.14.0-cp311-cp311-manylinux_2_34_aarch64.whl", False),
}


@pytest.mark.parametrize("case", FITS)
def test_a_wheel_fits_a_board_by_its_tags(case):
    target, name, fits = FITS[case]
    assert bool(parse_wheel_filename(name)[3] & set(target.tags())) is fits


def test_the_nearest_glibc_comes_first():
    order = [str(tag) for tag in PI_4.tags()]
    assert order.index("cp311-cp311-manylinux_2_36_aarch64") < order.index("cp311-cp311-manylinux_2_17_aarch64")
    assert order.index("cp311-cp311-manylinux_2_17_aarch64") < order.index("py3-none-any")


def test_markers_speak_of_the_board():
    assert Marker("platform_machine == 'aarch64' and python_version == '3.11'").evaluate(PI_4.markers())
    assert Marker("platform_machine == 'armv7l'").evaluate(PI_32.markers())
    assert not Marker("platform_machine == 'x86_64' or sys_platform == 'win32'").evaluate(PI_4.markers())


@pytest.mark.parametrize(
    ("target", "platform"),
    [
        (PI_4, "aarch64-manylinux_2_36"),
        (JETSON, "aarch64-manylinux_2_17"),  # uv has no 2.27: the next older one that it has
        (WheelTarget("new", "x86_64", "3.13", "2.45"), "x86_64-manylinux_2_40"),
        (PI_32, None),
    ],
)
def test_uv_is_asked_for_a_platform_that_it_has(target, platform):
    assert target.uv_platform == platform


def test_a_profile_s_patch_version_does_not_matter():
    from dataclasses import replace

    from edgekit_profiles import load

    board = load("raspberry-pi-4")
    assert WheelTarget.of(replace(board, os=replace(board.os, python="3.11.2"))) == PI_4
