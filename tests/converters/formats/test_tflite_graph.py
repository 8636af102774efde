"""A .tflite is a graph of layers whose tensors can be seen and whose constants can be changed."""

from __future__ import annotations

import contextlib
import copy
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.conversion_errors import ConversionError

pytest.importorskip("ai_edge_litert")
MODELS = Path(__file__).parents[2] / "models"


def tiny(name: str):
    return open_graph("tflite", (MODELS / f"tiny_{name}.tflite").read_bytes())


def picture(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (1, 8, 8, 3)).astype(np.float32)


def test_layers_come_in_order_and_are_called_after_what_they_make():
    graph = tiny("f32")
    assert [layer.kind for layer in graph.layers] == ["conv", "pool", "dense", "activation"]
    assert [layer.op for layer in graph.layers] == ["CONV_2D", "MEAN", "FULLY_CONNECTED", "SOFTMAX"]
    assert [layer.macs for layer in graph.layers] == [8 * 8 * 3 * 3 * 9, 0, 12, 0]
    assert all(layer.name == layer.outputs[0] for layer in graph.layers)
    assert graph.tensors == (*graph.inputs, *(layer.name for layer in graph.layers))
    assert graph.layers[-1].outputs == graph.outputs
    for before, after in zip(graph.layers, graph.layers[1:], strict=False):
        assert after.inputs == before.outputs


def test_a_convolution_says_how_it_slides_and_where_its_weights_are():
    conv, _, dense, _ = tiny("f32").layers
    assert conv.window is not None
    assert (conv.window.kernel, conv.window.strides, conv.window.groups) == ((3, 3), (1, 1), 1)
    assert conv.window.pads == (1, 1, 1, 1)
    assert conv.window.channels_last
    assert tiny("f32").constant(conv.weight).shape[conv.weight_axis] == 3
    assert dense.weight_axis == 0
    assert dense.window is None


@pytest.mark.parametrize("name", ["f32", "int8"])
def test_every_tensor_is_in_sight_and_the_outputs_agree_with_an_ordinary_run(name: str):
    graph = tiny(name)
    with graph.watch() as every, graph.watch(graph.outputs) as last:
        seen, plain = every.run([picture()]), last.run([picture()])
    assert tuple(seen) == graph.tensors
    assert all(value.dtype == np.float32 for value in seen.values())
    assert tuple(plain) == graph.outputs
    np.testing.assert_allclose(seen[graph.outputs[0]], plain[graph.outputs[0]], atol=2 / 256)


def test_a_quantized_file_shows_dequantized_values_under_the_float_names():
    with tiny("f32").watch() as before, tiny("int8").watch(tiny("f32").tensors) as after:
        floats, integers = before.run([picture()]), after.run([picture()])
    shared = [name for name in floats if name in integers]
    assert len(shared) >= 4
    for name in shared:
        assert np.abs(floats[name] - integers[name]).max() < 0.05 * (np.ptp(floats[name]) + 0.1), name


def test_constants_read_as_floats_whether_quantized_or_not():
    floats, integers = tiny("f32"), tiny("int8")
    for a, b in zip(floats.layers[::2], integers.layers[::2], strict=True):
        assert (a.weight_axis, a.kind) == (b.weight_axis, b.kind)
        np.testing.assert_allclose(floats.constant(a.weight), integers.constant(b.weight), atol=0.03)
        np.testing.assert_allclose(floats.constant(a.bias), integers.constant(b.bias), atol=0.02)


@pytest.mark.parametrize("name", ["f32", "int8"])
def test_other_constants_make_another_graph_and_leave_this_one(name: str):
    graph = tiny(name)
    bias = graph.layers[2].bias
    before = graph.constant(bias)
    other = graph.with_constants({bias: before + np.float32(0.5)})
    np.testing.assert_array_equal(graph.constant(bias), before)
    np.testing.assert_allclose(other.constant(bias), before + 0.5, atol=1e-3)
    target = graph.layers[2].name
    with graph.watch([target]) as first, other.watch([target]) as second:
        moved = second.run([picture()])[target] - first.run([picture()])[target]
    np.testing.assert_allclose(moved, 0.5, atol=0.05)
    assert open_graph("tflite", other.data).layers == graph.layers


def test_constants_of_other_shapes_and_names_are_refused():
    graph = tiny("f32")
    weight = graph.layers[0].weight
    with pytest.raises(ValueError, match="has shape"):
        graph.with_constants({weight: np.zeros(3, np.float32)})
    for name in ("no such tensor", graph.inputs[0]):
        with pytest.raises(KeyError):
            graph.constant(name)
        with pytest.raises(KeyError):
            graph.with_constants({name: np.zeros(3, np.float32)})


@pytest.fixture(scope="module")
def backwards_gru():
    import keras

    from edgekit_converters.sources.load import load
    from edgekit_converters.targets.workspace import Workspace

    x = keras.Input((6, 5), name="x")
    with TemporaryDirectory() as folder:
        keras.Model(x, keras.layers.Dense(3)(keras.layers.GRU(6, go_backwards=True)(x))).save(f"{folder}/gru.keras")
        return Workspace(load(Path(folder) / "gru.keras")).graph("tflite")


@pytest.mark.convert
def test_results_of_a_loop_that_nothing_reads_are_not_in_sight(backwards_gru):
    """LiteRT never writes them: what stands there is old memory, now and then NaN."""
    graph = backwards_gru
    [loop] = (layer for layer in graph.layers if layer.op == "WHILE")
    read = {name for layer in graph.layers for name in layer.inputs}
    unread = set(loop.outputs) - read
    assert unread
    with graph.watch() as watched, graph.watch([*unread, *graph.outputs]) as asked:
        seen, few = (reader.run([np.ones((1, 6, 5), np.float32)]) for reader in (watched, asked))
    assert set(graph.outputs) <= set(seen) <= set(graph.tensors)
    assert set(graph.tensors) - set(graph.outputs) <= read
    assert set(few) == set(graph.outputs)


def test_a_name_that_the_file_lacks_is_left_out_of_what_is_seen():
    graph = tiny("f32")
    with graph.watch([graph.outputs[0], "gone"]) as watched:
        assert list(watched.run([picture()])) == [graph.outputs[0]]


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x1c\0\0\0TFL3", b"\x1c\0\0\0TFL3" + b"\xff" * 64])
def test_bytes_that_are_no_model_are_refused(data: bytes):
    with pytest.raises(ConversionError):
        open_graph("tflite", data)


def test_damaged_bytes_are_read_or_refused_but_never_crash():
    whole, rng = (MODELS / "tiny_int8.tflite").read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(8, len(damaged))] = rng.randrange(256)
        with contextlib.suppress(ConversionError):
            graph = open_graph("tflite", bytes(damaged[: rng.randrange(9, len(damaged) + 1)]))
            assert graph.layers is not None


def converted(model, *, half: bool = False) -> bytes:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if half:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


@pytest.mark.convert
def test_weights_in_sixteen_bits_are_constants_and_no_layers():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.Conv2D(4, 3, strides=2, padding="same")])
    floats, halves = open_graph("tflite", converted(model)), open_graph("tflite", converted(model, half=True))
    assert [layer.op for layer in halves.layers] == [layer.op for layer in floats.layers] == ["CONV_2D"]
    window = floats.layers[0].window
    assert window is not None
    assert (window.strides, window.pads) == ((2, 2), (0, 0, 1, 1))
    kernel = floats.constant(floats.layers[0].weight)
    np.testing.assert_allclose(halves.constant(halves.layers[0].weight), kernel, rtol=1e-3)
    doubled = halves.with_constants({halves.layers[0].weight: 2 * kernel})
    np.testing.assert_allclose(doubled.constant(halves.layers[0].weight), 2 * kernel, rtol=1e-3)


def test_two_constants_that_share_bytes_are_changed_apart():
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    plain = tiny("f32")
    first = plain.layers[2].bias
    model = schema.ModelT.InitFromPackedBuf(plain.data, 0)
    tensors = model.subgraphs[0].tensors
    tensors.append(copy.copy(next(tensor for tensor in tensors if tensor.name.decode() == first)))
    tensors[-1].name = "again"
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    graph = open_graph("tflite", bytes(builder.Output()))
    before = graph.constant("again")
    np.testing.assert_array_equal(before, graph.constant(first))
    other = graph.with_constants({"again": before + np.float32(1)})
    np.testing.assert_array_equal(other.constant("again"), before + 1)
    np.testing.assert_array_equal(other.constant(first), before)
    with other.watch() as watched, plain.watch() as expected:
        seen, known = watched.run([picture()]), expected.run([picture()])
    np.testing.assert_array_equal(seen[graph.outputs[0]], known[graph.outputs[0]])


@pytest.mark.convert
def test_inputs_and_outputs_stand_in_the_engines_order(several: Path):
    import keras
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    model, holder = keras.models.load_model(several), tf.Module()
    holder.weights = [variable.value for variable in model.variables]  # the converter freezes what it can reach
    signature = [tf.TensorSpec([1, *tensor.shape[1:]], tensor.dtype) for tensor in model.inputs]
    concrete = tf.function(lambda *inputs: model(inputs), input_signature=signature).get_concrete_function()
    data = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder).convert()
    graph, interpreter = open_graph("tflite", data), Interpreter(model_content=data)
    assert graph.inputs == tuple(detail["name"] for detail in interpreter.get_input_details())
    assert graph.outputs == tuple(detail["name"] for detail in interpreter.get_output_details())
    details = interpreter.get_input_details()
    whole = [detail["name"] for detail in details if detail["dtype"] == np.int32]
    assert len(whole) == 1
    assert whole[0] not in graph.tensors
    with graph.watch() as watched:
        seen = watched.run([np.ones([1, *detail["shape"][1:]], detail["dtype"]) for detail in details])
    assert tuple(seen) == graph.tensors


def test_grids_are_of_what_the_file_has_in_integers():
    quantized = tiny("int8")
    assert tiny("f32").grids == {}
    assert {*quantized.inputs, *quantized.outputs} <= {*quantized.grids}
    grid = quantized.grids[quantized.outputs[0]]  # a softmax: 256 steps from 0
    assert (grid.step, grid.low, grid.high) == (1 / 256, 0.0, 255 / 256)
