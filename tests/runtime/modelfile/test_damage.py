"""Whatever bytes a model file has, it is judged: facts or one kind of error, at once, never a fault of the judge."""

from __future__ import annotations

import contextlib
from time import process_time

import pytest
import tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.modelfile.check import ModelFacts, check_artifact, check_model
from edgekit_runtime.modelfile.protobuf import count_varints, fields, signed, varints
from edgekit_runtime.system.errors import ModelFileError

FILES = {
    path.name: path.read_bytes()
    for path in sorted(tiny.MODELS.iterdir())
    if path.suffix in (".tflite", ".onnx", ".ncnn")
}
A_SECOND = 1.0


def judged(name, data):
    began = process_time()
    with contextlib.suppress(ModelFileError):
        assert isinstance(check_model(name.rpartition(".")[2], data), ModelFacts)
    assert process_time() - began < A_SECOND


@given(st.sampled_from(sorted(FILES)), st.data())
@settings(max_examples=examples(150))
def test_bytes_that_were_changed(name, data):
    changed = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 8))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    judged(name, bytes(changed))


@given(st.sampled_from(sorted(FILES)), st.data())
@settings(max_examples=examples(100))
def test_words_that_were_changed(name, data):
    """Offsets, lengths and indices are words: the numbers that go wrong are small, huge, or just beyond."""
    changed = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = 4 * data.draw(st.integers(0, len(changed) // 4 - 1))
        number = data.draw(st.sampled_from([0, 1, 4, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, len(changed)]))
        changed[at : at + 4] = number.to_bytes(4, "little")
    judged(name, bytes(changed))


@given(st.sampled_from(sorted(FILES)), st.integers(0, 1 << 16))
@settings(max_examples=examples(60))
def test_files_that_end_early(name, size):
    judged(name, FILES[name][:size])


@given(st.sampled_from(["x.tflite", "x.onnx", "x.ncnn"]), st.binary(max_size=400))
@settings(max_examples=examples(100))
def test_bytes_that_were_never_a_model(name, data):
    judged(name, data)
    judged(name, b"\0\0\0\0TFL3" + data)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@example(-1)
@example(0)
def test_a_number_is_read_as_it_was_written(number):
    written = _varint(number & ((1 << 64) - 1))
    assert varints(written * 3, 0, 3 * len(written)) == [number] * 3
    assert count_varints(written * 3, 0, 3 * len(written)) == 3
    ((field, kind, value, end),) = fields(b"\x08" + written, 0, 1 + len(written))
    assert (field, kind, signed(value), end) == (1, 0, number, 1 + len(written))


def _varint(number):
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))


def test_a_list_of_operators_is_kept_to():
    data = FILES["cnn_int8.tflite"]
    facts = check_model("tflite", data)
    check_model("tflite", data, ops=[*facts.ops, "ADD"])
    with pytest.raises(ModelFileError, match="it uses CONV_2D, which the manifest does not allow"):
        check_model("tflite", data, ops=[op for op in facts.ops if op != "CONV_2D"])
    with pytest.raises(ModelFileError, match="which the manifest does not allow"):
        check_model("tflite", data, ops=())


def test_a_format_that_nobody_knows_is_refused():
    with pytest.raises(ModelFileError, match="unknown format 'pt'"):
        check_model("pt", b"PK")


def test_the_message_names_the_place():
    with pytest.raises(ModelFileError, match=r"^net\.ekb: it does not begin as a TFL3 file\. Do not use it"):
        check_model("tflite", b"PK", where="net.ekb")


def test_one_format_under_the_name_of_the_other_is_refused():
    for name, data in FILES.items():
        other = "onnx" if name.endswith(".tflite") else "tflite"
        with pytest.raises(ModelFileError):
            check_model(other, data)


def test_an_artifact_is_judged_by_what_its_manifest_allows(tmp_path):
    from dataclasses import replace

    from edgekit_runtime.bundle.reader import read_bundle
    from edgekit_runtime.engines.registry import available

    engine = min(available())
    bundle = read_bundle(tiny.bundle_for(engine, tmp_path))
    entry = bundle.artifact()
    facts = check_artifact(bundle, entry)
    assert check_artifact(bundle, entry) is facts  # the same bytes are not walked again
    with pytest.raises(ModelFileError, match=f"the model file of {entry.recipe}.*does not allow"):
        check_artifact(bundle, replace(entry, ops=("NOTHING",)))
