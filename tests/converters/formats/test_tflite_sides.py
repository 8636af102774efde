"""A file whose sides were cast to float32 answers bit for bit what the quantized one answers, dequantized."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from edgekit_converters.formats import tflite_edit, tflite_file
from edgekit_converters.formats.tflite_sides import cast_sides
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.engines.registry import load_engine


def cast(data):
    model = tflite_edit.read(data)
    cast_sides(model)
    return tflite_edit.write(model)


@pytest.mark.parametrize("name", ["tiny_int8.tflite", "tiny_int8_b4.tflite", "cnn_int8.tflite", "spots_int8.tflite"])
def test_the_answers_are_those_of_the_quantized_file_bit_for_bit(name):
    data = (tiny.MODELS / name).read_bytes()
    random = np.random.default_rng(7)
    with load_engine("tflite", data) as quantized, load_engine("tflite", cast(data)) as real:
        assert [one.dtype for one in (*real.inputs, *real.outputs)] == ["float32", "float32"]
        assert [one.shape for one in (*real.inputs, *real.outputs)] == [
            one.shape for one in (*quantized.inputs, *quantized.outputs)
        ]
        taken, made = quantized.inputs[0], quantized.outputs[0]
        for _ in range(300):
            steps = random.integers(-128, 128, taken.shape).astype(np.int8)
            wanted = dequantize(quantized.run([steps])[0], made, np.dtype(np.float32))
            assert np.array_equal(real.run([dequantize(steps, taken, np.dtype(np.float32))])[0], wanted)


def test_only_the_sides_change_and_signatures_name_them():
    data = (tiny.MODELS / "tiny_int8.tflite").read_bytes()
    before, after = tflite_file.read(data).main, tflite_file.read(cast(data)).main
    names = [operator.op for operator in before.operators]
    assert [operator.op for operator in after.operators] == ["QUANTIZE", *names, "DEQUANTIZE"]
    model = tflite_edit.read(cast(data))
    for signature in model.signatureDefs or ():
        assert [end.tensorIndex for end in signature.inputs] == list(model.subgraphs[0].inputs)
        assert [end.tensorIndex for end in signature.outputs] == list(model.subgraphs[0].outputs)


def test_float_sides_stay_as_they_are():
    data = (tiny.MODELS / "tiny_f32.tflite").read_bytes()
    model = tflite_edit.read(data)
    cast_sides(model)
    assert tflite_edit.write(model) == tflite_edit.write(tflite_edit.read(data))
