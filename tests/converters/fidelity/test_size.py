"""Where the bytes of a file are."""

from __future__ import annotations

import tiny

from edgekit_converters.fidelity.compare import growth, size_breakdown


def test_an_int8_file_has_its_weights_in_8_bits():
    small, large = (size_breakdown("tflite", tiny.model_bytes(name)) for name in ("tflite-int8", "tflite-f32"))
    assert small.total == len(tiny.model_bytes("tflite-int8"))
    assert small.int8_weights > 0
    assert large.int8_weights == 0
    assert large.other_weights >= 4 * small.int8_weights


def test_what_is_no_model_has_no_breakdown():
    assert size_breakdown("tflite", b"junk") is None
    assert size_breakdown("onnx", b"junk") is None


def test_growth_names_the_part_that_grew_and_is_silent_where_nothing_did():
    small, large = tiny.model_bytes("tflite-int8"), tiny.model_bytes("tflite-f32")
    assert growth("tflite", large, small) == growth("tflite", small, small) == ""
    text = growth("tflite", small, small + bytes(40_000))
    assert "the size of the float file" in text
    assert text.endswith("operators, names and scales take 40 kB more")
