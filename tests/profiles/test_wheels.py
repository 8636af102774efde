"""Which engines install follows from the board's machine, Python and glibc, and from nothing else."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_profiles import OsImage, Profile, debian_packages, estimate, installable, load, runtime_python
from edgekit_profiles.wheels import wheels
from edgekit_profiles.workload import mobilenet_v1
from edgekit_runtime.engines.registry import ENGINES


def board(
    arch: str = "aarch64", python: str = "3.11", glibc: str = "2.36", debian: str = "", **more: object
) -> Profile:
    system = OsImage("any", python, glibc, debian)
    return replace(load("raspberry-pi-4"), arch=arch, os=system, **more)  # type: ignore[arg-type]


def versions(profile: Profile) -> dict[str, str | None]:
    """Of the engines of tensors; llama.cpp's one wheel is an `abi3`, for every Python that edgekit takes."""
    return {verdict.engine: verdict.version for verdict in installable(profile) if verdict.format != "gguf"}


NCNN = "1.0.20261020"
MATRIX = {
    "bookworm, 64 bit": (("aarch64", "3.11", "2.36"), ("2.3.0", "2.14.0", "1.31.1", NCNN)),
    "trixie, 64 bit": (("aarch64", "3.13", "2.41"), ("2.3.0", None, "1.31.1", NCNN)),
    "bookworm, 32 bit": (("armv7l", "3.11", "2.36"), (None, "2.14.0", None, NCNN)),
    "trixie, 32 bit": (("armv7l", "3.13", "2.41"), (None, None, None, NCNN)),
    "trixie, 32 bit, with Debian's packages": (("armv7l", "3.13", "2.41", "trixie"), (None, None, "1.21.0", NCNN)),
    "trixie, 64 bit, with Debian's packages": (("aarch64", "3.13", "2.41", "trixie"), ("2.3.0", None, "1.31.1", NCNN)),
    "trixie's packages with another Python": (("armv7l", "3.12", "2.41", "trixie"), (None, None, None, NCNN)),
    "Ubuntu 22.04 with Python 3.11": (("aarch64", "3.11", "2.35"), ("2.3.0", "2.14.0", "1.31.1", NCNN)),
    "Ubuntu 22.04": (("aarch64", "3.10", "2.35"), ("2.3.0", "2.14.0", "1.23.2", NCNN)),
    "Debian 11": (("aarch64", "3.9", "2.31"), (None, None, None, None)),
    "an x86-64 machine of that age": (("x86_64", "3.9", "2.31"), (None, None, None, None)),
    "Android": (("aarch64", "", ""), (None, None, None, None)),
    "a current Python on glibc 2.27": (("aarch64", "3.12", "2.27"), ("2.3.0", None, "1.28.0", NCNN)),
    "JetPack 4": (("aarch64", "3.6", "2.27"), (None, None, None, None)),
    "ARMv6": (("armv6l", "3.11", "2.36"), (None, None, None, None)),
    "a Python nobody serves yet": (("aarch64", "3.16", "2.41"), (None, None, None, None)),
}


@pytest.mark.parametrize(("system", "expected"), MATRIX.values(), ids=MATRIX)
def test_the_newest_wheel_that_fits(system: tuple[str, ...], expected: tuple[str | None, ...]):
    assert versions(board(*system)) == dict(
        zip(("litert", "tflite-runtime", "onnxruntime", "ncnn"), expected, strict=True)
    )


def test_the_verdicts_are_the_runtimes_engines_in_its_order():
    verdicts = installable(load("raspberry-pi-5"))
    on_boards = {wheel.engine for wheel in wheels()}
    expected = [(name, form) for name, kind in ENGINES.items() if name in on_boards for form in kind.formats]
    assert [(verdict.engine, verdict.format) for verdict in verdicts] == expected


def test_jetson_nano_is_refused_by_its_python_for_every_engine():
    for verdict in installable(load("jetson-nano")):
        assert not verdict.ok
        assert verdict.reason.startswith("Python 3.6 is supported by no current wheel of ")


def test_reasons_name_what_stands_in_the_way():
    reasons = {verdict.engine: verdict.reason for verdict in installable(board("armv7l", "3.11", "2.31"))}
    assert reasons["litert"] == "ai-edge-litert has wheels for aarch64, x86_64 and none for armv7l"
    assert reasons["onnxruntime"] == "onnxruntime has wheels for aarch64, x86_64 and none for armv7l"
    assert reasons["tflite-runtime"] == "glibc 2.31 is older than the 2.34 that tflite-runtime needs on Python 3.11"


def test_tflite_runtime_says_that_it_needs_an_old_numpy():
    verdict = next(item for item in installable(load("raspberry-pi-4")) if item.engine == "tflite-runtime")
    assert verdict.reason.endswith("with numpy<2")


def test_an_older_python_than_edgekit_runs_on_is_refused_even_where_a_wheel_exists():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={runtime_python()}"
    verdict = installable(board("aarch64", "3.9", "2.35"))[1]
    assert verdict.reason.startswith(
        "edgekit's runtime needs Python 3.10, and the image has 3.9 (tflite-runtime 2.14.0"
    )


def test_a_debian_package_is_named_where_it_is_what_is_left():
    verdict = installable(load("raspberry-pi-4-trixie-32bit"))[2]
    assert (verdict.ok, verdict.version, verdict.package) == (True, "1.21.0", "python3-onnxruntime")
    assert verdict.reason == "Debian trixie packages python3-onnxruntime 1.21.0 for armv7l"


def test_android_is_refused_in_its_own_words():
    assert {s.reason for s in installable(load("pixel-4"))} == {
        "Android has no glibc, which every wheel for Linux needs"
    }


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_debians_packages_satisfy_the_base_installs_floors(release: str):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["image"]]
    floors = dict(item.split(">=") for item in wanted if ";" not in item)
    found = {item.distribution: item for item in debian_packages(board(debian=release))}
    assert set(floors) <= set(found)
    for name, floor in floors.items():
        assert [*map(int, found[name].version.split("."))] >= [*map(int, floor.split("."))]
    assert debian_packages(board()) == ()


def test_a_pinned_version_is_the_only_one_that_counts():
    assert versions(board(pins={"onnxruntime": "1.23.2"}))["onnxruntime"] == "1.23.2"
    verdict = installable(board(pins={"onnxruntime": "1.2.0"}))[2]
    assert (verdict.ok, verdict.reason) == (False, "onnxruntime 1.2.0 has no wheel known to edgekit")


def test_a_pinned_engine_is_the_only_one_of_its_format():
    verdicts = {verdict.engine: verdict for verdict in installable(board(pins={"tflite-runtime": "2.14.0"}))}
    assert [name for name, verdict in verdicts.items() if verdict.ok] == [
        "tflite-runtime",
        "onnxruntime",
        "ncnn",
        "llama.cpp",
    ]
    assert verdicts["litert"].reason == "the profile pins its image to tflite-runtime 2.14.0"


def test_wheels_stand_newest_first_within_an_engine_and_machine():
    for engine in ENGINES:
        for arch in ("x86_64", "aarch64"):
            of_engine = [wheel for wheel in wheels() if wheel.engine == engine and not wheel.package]
            listed = [wheel.version for wheel in of_engine if arch in wheel.arch]
            assert listed == sorted(listed, key=lambda text: [int(part) for part in text.split(".")], reverse=True)


@given(
    st.sampled_from(["x86_64", "aarch64", "armv7l", "armv6l"]),
    st.integers(5, 16),
    st.integers(17, 45),
    st.integers(0, 9),
)
def test_a_newer_glibc_never_takes_an_engine_away(arch: str, python: int, glibc: int, more: int):
    before = installable(board(arch, f"3.{python}", f"2.{glibc}"))
    after = installable(board(arch, f"3.{python}", f"2.{glibc + more}"))
    assert all(new.ok or not old.ok for old, new in zip(before, after, strict=True))
    assert all(verdict.reason and verdict.ok == (verdict.version is not None) for verdict in before)


def test_ncnn_has_an_estimate_from_the_rates_that_were_fitted_to_its_own_times():
    found = estimate(load("raspberry-pi-5"), mobilenet_v1("float32"), "ncnn")
    assert found.grade == "estimated"
    assert "ncnn kernels" in found.source
    assert 0 < found.low_ms < found.mid_ms < found.high_ms
