"""Whatever kind of model a bundle holds, it installs on a machine with both engines: its promise is one that its
runner-up keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import memory
import numpy as np
import pytest
from conftest import run_edgekit

from edgekit.building.build_journey import build
from edgekit.building.build_request import BuildRequest

pytestmark = pytest.mark.convert
Making = Callable[[Path, pytest.FixtureRequest], BuildRequest]


def with_several_inputs(folder: Path, request: pytest.FixtureRequest) -> BuildRequest:
    return BuildRequest(request.getfixturevalue("several"), ("x86-64",), output=folder / "out", allow_random=True)


def with_a_division(folder: Path, request: pytest.FixtureRequest) -> BuildRequest:
    made = request.getfixturevalue("divided")
    return BuildRequest(made / "divided.keras", ("x86-64",), output=folder / "out", calibration=str(made / "x.npz"))


def with_batch_variants(folder: Path, request: pytest.FixtureRequest) -> BuildRequest:
    digits = request.getfixturevalue("digits_model")
    return BuildRequest(
        digits.model,
        ("x86-64",),
        output=folder / "out",
        calibration=str(digits.calibration),
        batches=(2, 4),
        alternates=3,
    )


def with_a_carried_state(folder: Path, request: pytest.FixtureRequest) -> BuildRequest:
    np.save(folder / "set.npy", memory.frames(480).reshape(12, 40, 3))
    model = memory.MODELS / "memory_carried_f32.onnx"
    return BuildRequest(model, ("x86-64",), output=folder / "out", calibration=str(folder / "set.npy"))


def with_a_state_inside(folder: Path, request: pytest.FixtureRequest) -> BuildRequest:
    np.save(folder / "set.npy", memory.frames(480).reshape(12, 40, 3))
    model = memory.MODELS / "memory_inside_f32.tflite"
    asked = {"calibration": str(folder / "set.npy"), "recipes": ("tflite-as-is",)}
    return BuildRequest(model, ("x86-64",), output=folder / "out", **asked)


KINDS: tuple[Making, ...] = (
    with_several_inputs,
    with_a_division,
    with_batch_variants,
    with_a_carried_state,
    with_a_state_inside,
)


@pytest.mark.parametrize("making", KINDS, ids=lambda making: making.__name__)
def test_what_a_build_packs_installs_in_a_fresh_root(making, tmp_path, request):
    (bundle,) = build(making(tmp_path, request)).bundles
    assert bundle.path is not None, bundle.choice.refused
    installed(bundle.path, tmp_path / "root", "x86-64")


def installed(bundle: Path, root: Path, board: str) -> None:
    asked = ("--root", root, "--allow-unsigned", "--profile", board, "--json")
    ran = run_edgekit("install", bundle, *asked, cwd=bundle.parent)
    assert (ran.code, ran.json.get("state")) == (0, "committed"), ran.err or ran.json
