"""A finished .tflite file is taken as it is, where a person says so; the recipe is its own."""

from __future__ import annotations

import memory
import numpy as np
import pytest
import tiny

from edgekit_converters.recipe.artifact import default_recipes, recipe
from edgekit_converters.recipe.conversion_errors import ConversionError, SourceError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert
AS_IS = LoadOptions(as_is=True)


@pytest.mark.parametrize(
    ("file", "state", "pairs", "precision"),
    [
        (tiny.MODELS / "tiny_int8.tflite", "none", (), "int8"),
        (tiny.MODELS / "tiny_f32.tflite", "none", (), "float32"),
        (memory.MODELS / "memory_inside_f32.tflite", "internal", (), "float32"),
        (memory.MODELS / "memory_carried_int8.tflite", "explicit", (("h_in", "h_out"),), "int8"),
    ],
    ids=["int8", "float", "state inside", "state carried"],
)
def test_its_bytes_are_the_artifact(file, state, pairs, precision):
    source = load(file, AS_IS)
    artifact = Workspace(source).make(recipe("tflite-as-is"))
    assert artifact.data == file.read_bytes()
    assert (source.state, source.state_pairs, artifact.recipe.precision) == (state, pairs, precision)
    assert all(spec.dtype == "float32" and spec.quantization is None for spec in (*source.inputs, *source.outputs))
    assert artifact.recipe.name == "tflite-as-is"
    assert not artifact.recipe.needs_calibration


def test_it_answers_in_real_numbers_what_the_file_answers_in_eight_bits():
    source = load(tiny.MODELS / "tiny_int8.tflite", AS_IS)
    pixels = np.random.default_rng(0).uniform(0, 1, (3, 8, 8, 3)).astype(np.float32)
    (got,) = source.predict([pixels])
    with load_engine("tflite", source.finished()) as engine:
        q = engine.inputs[0].quantization
        for row, picture in enumerate(pixels):
            fed = np.clip(np.rint(picture / np.float32(q.scale)) + q.zero_point, -128, 127).astype(np.int8)
            (raw,) = engine.run([fed[None]])
            np.testing.assert_array_equal(got[row], dequantize(raw[0], engine.outputs[0], np.dtype(np.float32)))


def test_a_state_inside_goes_on_until_it_is_reset():
    source = load(memory.MODELS / "memory_inside_f32.tflite", AS_IS)
    xs = memory.frames(6)
    first = source.predict([xs])[0]
    assert not np.array_equal(source.predict([xs])[0], first)
    source.reset()
    np.testing.assert_array_equal(source.predict([xs])[0], first)
    np.testing.assert_allclose(first, memory.worked_out(xs, 0.25), atol=1e-5)


def test_what_it_says_of_itself_is_honest():
    notes = {note.code: note.what for note in load(memory.MODELS / "memory_inside_f32.tflite", AS_IS).notes}
    assert "nothing was converted" in notes["as-is"]
    assert "model.session()" in notes["internal-state"]


def test_without_being_told_it_is_refused_and_the_way_is_named():
    with pytest.raises(SourceError, match=r"already quantized .* edgekit build FILE --recipe tflite-as-is"):
        load(tiny.MODELS / "tiny_int8.tflite")
    with pytest.raises(SourceError, match=r"keeps a state inside \(.*VAR_HANDLE\).* --recipe tflite-as-is"):
        load(memory.MODELS / "memory_inside_f32.tflite")


def test_other_formats_and_other_recipes_are_refused():
    with pytest.raises(SourceError, match=r"only a \.tflite file can be packed as it is, and this is an onnx model"):
        load(memory.MODELS / "memory_carried_f32.onnx", AS_IS)
    with pytest.raises(ConversionError, match="can be packed as it is"):
        Workspace(load(memory.MODELS / "memory_carried_f32.onnx")).make(recipe("tflite-as-is"))
    with pytest.raises(ConversionError, match="cannot be converted"):
        load(tiny.MODELS / "tiny_int8.tflite", AS_IS).onnx()


def test_it_is_no_default():
    assert "tflite-as-is" not in default_recipes()
