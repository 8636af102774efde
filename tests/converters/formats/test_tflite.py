"""The one reader of .tflite files: what it says of a file, and that no other module decodes one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.formats import tflite_edit as edit
from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.recipe.conversion_errors import ConversionError

pytest.importorskip("ai_edge_litert")
ROOT = Path(__file__).parents[3]
TINY = (ROOT / "tests/models/tiny_int8.tflite").read_bytes()


def test_a_file_is_tensors_operators_and_ends():
    main = tflite.read(TINY).main
    assert [(one.op, one.custom, one.fused) for one in main.operators] == [
        ("CONV_2D", False, "relu"),
        ("MEAN", False, None),
        ("FULLY_CONNECTED", False, None),
        ("SOFTMAX", False, None),
    ]
    kernel = main.tensors[main.operators[0].inputs[1]]
    assert (kernel.dtype, kernel.constant, kernel.affine.scale.size) == ("INT8", True, kernel.shape[0])
    assert tflite.stored_values(TINY, kernel).shape == kernel.shape
    assert [main.tensors[index].shape for index in (*main.inputs, *main.outputs)] == [(1, 8, 8, 3), (1, 4)]


def test_tensors_of_one_name_or_none_are_told_apart_and_keep_their_label():
    model = edit.read(TINY)
    model.subgraphs[0].tensors[0].name, model.subgraphs[0].tensors[1].name = b"", model.subgraphs[0].tensors[2].name
    tensors = tflite.read(edit.write(model)).main.tensors
    assert tensors[0].name == "#0"
    assert tensors[2].name == f"{tensors[1].name}#2"
    assert (tensors[0].label, tensors[2].label) == ("", tensors[1].name)


def test_an_index_that_names_no_tensor_is_damage():
    model = edit.read(TINY)
    model.subgraphs[0].operators[0].inputs = np.array([0, 99, -1], np.int32)
    with pytest.raises(ConversionError, match="cannot be read: there is no tensor 99"):
        tflite.read(edit.write(model))


def test_a_file_that_is_read_and_written_keeps_every_constant():
    again = edit.write(edit.read(TINY))
    before, after = tflite.read(TINY).main.tensors, tflite.read(again).main.tensors
    assert [tensor.name for tensor in before] == [tensor.name for tensor in after]
    for old, new in zip(before, after, strict=True):
        if old.constant:
            np.testing.assert_array_equal(tflite.stored_values(TINY, old), tflite.stored_values(again, new))


def test_no_other_module_decodes_the_flatbuffer():
    rooms = [ROOT / "converters", ROOT / "edgekit"]
    found = {path.relative_to(ROOT) for room in rooms for path in room.rglob("*.py") if _decodes(path)}
    assert {str(path) for path in found} == {
        "converters/edgekit_converters/formats/tflite_file.py",
        "converters/edgekit_converters/formats/tflite_edit.py",
        "edgekit/shipping/programs/mediapipe.py",  # writes another one, the metadata
    }


def _decodes(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return "schema_py_generated" in text or "import flatbuffers" in text
