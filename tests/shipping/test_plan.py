"""What a package will consist of, decided from a bundle and a profile alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny

from edgekit.shipping.plan import NoWheelError, package_name, plan_deploy
from edgekit_profiles import load
from edgekit_runtime.bundle.manifest import Target
from edgekit_runtime.bundle.reader import read_bundle

PI_4 = load("raspberry-pi-4")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return read_bundle(tiny.bundle(tmp_path_factory.mktemp("plan"), target=Target("raspberry-pi-4", "aarch64", 4)))


def test_the_engine_is_the_first_that_installs_for_the_bundle_s_format(bundle):
    plan = plan_deploy(bundle, PI_4, None)
    assert (plan.name, plan.version, plan.engine, plan.extras, plan.notes) == ("tiny", "1", "litert", ("image",), ())
    assert plan.proven == bundle.manifest.golden[0].answers[0].engine_version


def test_an_engine_may_be_asked_for_and_more_extras(bundle):
    plan = plan_deploy(bundle, PI_4, "tflite-runtime", ("telemetry",))
    assert (plan.engine, plan.extras, plan.proven) == ("tflite-runtime", ("image", "telemetry"), None)


def test_a_bundle_for_another_board_is_packed_and_said(bundle):
    (note,) = plan_deploy(bundle, load("raspberry-pi-5"), None).notes
    assert note == (
        "the bundle was built for raspberry-pi-4: its latencies were not judged for raspberry-pi-5, and a board that "
        "is known as one refuses it: build it with --compatible raspberry-pi-5"
    )


REFUSED = {
    "an engine of another format": (PI_4, "onnxruntime", "it has only tflite"),
    "an engine that no board has": (PI_4, "openvino", "no known wheel of openvino for boards"),
    "an image whose Python is too new": (replace(PI_4, os=replace(PI_4.os, python="3.13")), "tflite-runtime", "3.13"),
    "a machine without a wheel": (replace(PI_4, arch="armv7l"), "litert", "none for armv7l"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_installed_is_refused_before_anything_is_fetched(bundle, case):
    profile, engine, reason = REFUSED[case]
    with pytest.raises(NoWheelError) as refused:
        plan_deploy(bundle, profile, engine)
    assert reason in refused.value.what


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("digits", "digits"),
        ("My Net_v2", "my-net-v2"),
        ("../../etc/passwd", "etc-passwd"),
        ("-.-", "model"),
        ("Ünet", "net"),
    ],
)
def test_names_are_fit_for_files_debian_and_systemd(name, fit):
    assert package_name(name) == fit
