"""Group 21: what proves nothing is not packed; the workstation refuses before a board has to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny

from edgekit.packaging.assemble import assemble
from edgekit.packaging.writer import write_bundle
from edgekit_runtime.bundle.manifest import Tolerance
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import EdgekitError

pytestmark = pytest.mark.skipif(
    "litert" not in available(), reason="LiteRT is not installed: pip install ai-edge-litert"
)


def packed(tmp_path, change):
    """Write a bundle of what `assemble` made, changed."""
    draft, manifest = assemble(tiny.content())
    write_bundle(tmp_path / "x.ekb", draft, change(draft, manifest))


def answering(**changes):
    """Every golden answer with other fields."""

    def change(_draft, manifest):
        golden = tuple(
            replace(one, answers=tuple(replace(a, **changes) for a in one.answers)) for one in manifest.golden
        )
        return replace(manifest, golden=golden)

    return change


def outputs(array):
    def change(draft, manifest):
        return answering(outputs={"probs": draft.add(array.tobytes())})(draft, manifest)

    return change


def floats(array):
    """The same where the artifact's output is float32."""

    def change(draft, manifest):
        (entry,) = manifest.artifacts
        output = replace(entry.outputs[0], dtype="float32", quantization=None)
        told = outputs(array)(draft, manifest)
        return replace(told, artifacts=(replace(entry, outputs=(output,)),))

    return change


WORTHLESS = {
    "NaN": (floats(np.array([np.nan, 0, 0, 1], np.float32)), "NaN"),
    "infinity": (floats(np.array([np.inf, 0, 0, 1], np.float32)), "NaN or infinity"),
    "another shape": (outputs(np.zeros(5, np.int8)), "differs in size"),
    "nothing": (outputs(np.zeros(0, np.int8)), "differs in size"),
    "a tolerance of 1e9 steps": (answering(tolerance=Tolerance(10**9, 0.95)), "proves nothing"),
    "a tolerance below none": (answering(tolerance=Tolerance(-1, 0.95)), "proves nothing"),
    "a cosine of -1": (answering(tolerance=Tolerance(2, -1.0)), "proves nothing"),
    "no example": (lambda _draft, manifest: replace(manifest, golden=()), "golden"),
    "the answers of another recipe": (answering(recipe="onnx-f32"), "onnx-f32"),
}


@pytest.mark.parametrize("case", WORTHLESS)
def test_group_21_a_golden_answer_that_proves_nothing_is_not_packed(case, tmp_path):
    change, says = WORTHLESS[case]
    with pytest.raises(EdgekitError, match=says) as caught:
        packed(tmp_path, change)
    assert caught.value.code == "packaging"
    assert caught.value.do
    assert not list(tmp_path.iterdir())


def test_group_21_what_is_left_alone_is_packed(tmp_path):
    packed(tmp_path, lambda _draft, manifest: manifest)
    assert read_bundle(tmp_path / "x.ekb").manifest.name == "tiny"


def test_group_21_a_picture_of_another_size_cannot_be_a_golden_one(tmp_path):
    with pytest.raises((EdgekitError, ValueError)):
        write_bundle(tmp_path / "x.ekb", *assemble(tiny.content(golden=[{"image": np.zeros((9, 8, 3), np.uint8)}])))
    assert not list(tmp_path.iterdir())
