"""Where a board's runtime refuses an artifact, the same build makes the form that it runs.

Also where that runtime would answer wrongly.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgekit_profiles
from edgekit.boards.checked import CheckRequest, check
from edgekit.building.build_journey import build
from edgekit.building.build_request import BuildRequest
from edgekit_converters.formats.needs import Runtime, barriers, read_needs
from edgekit_profiles import Profile, installable, load
from edgekit_runtime.bundle.reader import read_bundle

BOARDS = Path(edgekit_profiles.__file__).parent / "boards"


def pinned(folder: Path, **pins: str) -> str:
    """A Raspberry Pi 4 whose image is held to these versions: the path of its profile."""
    text = (BOARDS / "raspberry-pi-4.toml").read_text().replace('name = "raspberry-pi-4"', 'name = "old-image"', 1)
    lines = "\n".join(f'{engine.replace("_", "-")} = "{version}"' for engine, version in pins.items())
    path = folder / "old-image.toml"
    path.write_text(f"{text}\n[pins]\n{lines}\n")
    return str(path)


def refusals(bundle) -> dict[str, str]:
    return {refusal.recipe: refusal.code for refusal in bundle.choice.refused}


def asked(profile: Profile, bundle: Path) -> list[str]:
    opened = read_bundle(bundle)
    entry = opened.artifact()
    verdict = next(one for one in installable(profile) if one.ok and one.format == entry.format)
    runtime = Runtime(verdict.engine, verdict.version or "", profile.arch, profile.core.type)
    return [barrier.code for barrier in barriers(read_needs(entry.format, opened.blob(entry.blob)), runtime)]


@pytest.mark.parametrize(("name", "code"), [("version_12", "op-version"), ("claims_1", "wrong-dense-hybrid")])
def test_a_finished_file_gets_one_scale_a_dense_layer_for_the_board_that_needs_it(
    planted, digits_model, tmp_path, name, code
):
    old = pinned(tmp_path, tflite_runtime="2.14.0")
    report = build(
        BuildRequest(
            getattr(planted, name),
            (old, "raspberry-pi-4"),
            output=tmp_path / "out",
            evaluation=str(digits_model.evaluation),
            recipes=("tflite-as-is",),
        )
    )
    board, other = report.bundles
    assert board.choice.chosen is not None
    assert board.choice.chosen.recipe == "tflite-as-is-per-tensor"
    assert refusals(board) == {"tflite-as-is": code}
    assert board.choice.refused[0].reason.endswith("tflite-as-is-per-tensor was made instead")
    assert board.choice.chosen.fidelity is not None
    assert board.choice.chosen.fidelity.loss < 0.02
    assert asked(load(old), board.path) == []
    assert code not in refusals(other).values()  # LiteRT runs both
    checked = check(CheckRequest(board.path, load(old)))  # on tflite-runtime itself, where its wheel can be had
    assert checked.ok, checked.findings


@pytest.mark.parametrize(
    ("engine", "version", "code"),
    [("tflite_runtime", "2.14.0", "crash-attention"), ("litert", "2.1.2", "wrong-matmul")],
)
def test_int8_attention_stays_in_float_where_a_runtime_crashes_in_it_or_multiplies_wrongly(
    tmp_path, engine, version, code
):
    from planted import attention

    network, examples = attention()
    network.save(tmp_path / "attention.keras")  # type: ignore[attr-defined]
    np.savez(tmp_path / "x.npz", x=examples)
    old = pinned(tmp_path, **{engine: version})
    report = build(
        BuildRequest(
            tmp_path / "attention.keras",
            (old,),
            output=tmp_path / "out",
            calibration=str(tmp_path / "x.npz"),
            recipes=("tflite-int8",),
        )
    )
    (board,) = report.bundles
    assert refusals(board)["tflite-int8"] == code
    assert board.choice.chosen is not None
    assert board.choice.chosen.recipe == "tflite-int8-mixed"
    assert asked(load(old), board.path) == []
    artifact = next(one for one in report.candidates if one["recipe"] == "tflite-int8-mixed")
    assert len(artifact["plan"]["float_layers"]) >= 2


def test_dense_layers_of_a_build_have_one_scale_where_the_recipe_says_so(digits_model):
    from edgekit_converters.recipe.artifact import recipe
    from edgekit_converters.sources.load import load as load_source
    from edgekit_converters.targets.workspace import Workspace

    samples = Samples(np.load(digits_model.calibration)["x"][:60])
    source = load_source(digits_model.model)
    plain, lowered = (
        Workspace(source, samples).make(recipe(name)) for name in ("tflite-int8", "tflite-int8-per-tensor")
    )
    assert read_needs("tflite", plain.data).per_channel_dense
    assert read_needs("tflite", lowered.data).per_channel_dense == ()


class Samples:
    """Calibration examples of the digits."""

    def __init__(self, x):
        self._x = x

    def __len__(self):
        return len(self._x)

    def __iter__(self):
        return ([item[None]] for item in self._x)
