"""What each TFLite recipe promises of its bytes, all made from one float file."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekit_converters.formats import tflite_edit as tfl
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.artifact import FloatModel, QuantizationPlan, recipe
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.sources.load import load
from edgekit_converters.targets.tflite_float import float_model
from edgekit_converters.targets.tflite_quantize import make
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.pixels import quantize
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.children import environment, python_code

pytestmark = pytest.mark.convert

ODD = {"silent": 0.0, "constant": 1.0, "huge": 1e4, "negative": -1e4}


@dataclass(frozen=True)
class Seen:
    """Ranges of min-max."""

    found: Mapping[str, tuple[float, float]]

    def ranges(self, method: str) -> Mapping[str, tuple[float, float]]:
        return self.found


def seen(data: bytes, inputs: list[NDArray[Any]]) -> Seen:
    found: dict[str, tuple[float, float]] = {}
    with open_graph("tflite", data).watch() as watched:
        for array in inputs:
            for name, values in watched.run([array]).items():
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = (min(low, float(values.min())), max(high, float(values.max())))
    return Seen(found)


def answer(data: bytes, array: NDArray[Any]) -> NDArray[np.float32]:
    """One input through LiteRT as boards run it, the ends in float."""
    with load_engine("tflite", data) as engine:
        [given], [wanted] = engine.inputs, engine.outputs
        fed = array if given.quantization is None else quantize(array, given.quantization, np.dtype(given.dtype))
        return dequantize(engine.run([fed])[0], wanted, np.dtype("float32"))


def ops(data: bytes) -> list[tuple[str, str, tuple[str, ...]]]:
    """(operator, layer, types of inputs and outputs)."""
    model = tfl.read(data)
    graph = model.subgraphs[0]
    return [
        (
            tfl.op_of(model, op),
            tfl.layer_of(graph, op),
            tuple(tfl.type_of(graph.tensors[i]) for i in (*op.inputs, *op.outputs) if i >= 0),
        )
        for op in graph.operators
    ]


def in_float(data: bytes) -> set[str]:
    return {name for op, name, types in ops(data) if "FLOAT32" in types and op not in ("QUANTIZE", "DEQUANTIZE")}


def versions(data: bytes) -> dict[str, int]:
    model = tfl.read(data)
    return {tfl.op_of(model, op): model.operatorCodes[op.opcodeIndex].version for op in model.subgraphs[0].operators}


@pytest.fixture(scope="module")
def inputs(digits_model) -> list[NDArray[Any]]:
    return [item[None] for item in np.load(digits_model.calibration)["x"]]


@pytest.fixture(scope="module")
def digits(digits_model) -> FloatModel:
    return float_model(load(digits_model.model))


@pytest.fixture(scope="module")
def statistics(digits: FloatModel, inputs) -> Seen:
    return seen(digits.data, inputs)


@pytest.fixture(scope="module")
def peers(digits_model, inputs) -> Callable[[str], bytes]:
    """What TensorFlow's own converter makes of the digits, with the same calibration data."""
    import keras
    import tensorflow as tf

    from edgekit_converters.recipe.foreign_code import quiet

    with quiet():
        model = keras.models.load_model(digits_model.model, compile=False)
    call = tf.function(
        lambda image: {"probs": model(image, training=False)},
        input_signature=[tf.TensorSpec([1, 8, 8, 1], tf.float32, name="image")],
    )
    holder = tf.Module()
    holder.weights = [variable.value for variable in model.variables]

    def convert(name: str) -> bytes:
        with quiet():
            converter = tf.lite.TFLiteConverter.from_concrete_functions([call.get_concrete_function()], holder)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter._experimental_disable_per_channel_quantization_for_dense_layers = name == "tflite-dynamic"
            kinds = tf.lite.OpsSet
            if name == "tflite-f16":
                converter.target_spec.supported_types = [tf.float16]
            if name in ("tflite-int8", "tflite-int16x8"):
                wide = kinds.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
                converter.target_spec.supported_ops = [kinds.TFLITE_BUILTINS_INT8 if name == "tflite-int8" else wide]
                kind = tf.int8 if name == "tflite-int8" else tf.int16
                converter.inference_input_type = converter.inference_output_type = kind
                converter.representative_dataset = lambda: iter([[array] for array in inputs])
            return bytes(converter.convert())

    return convert


@pytest.mark.parametrize("name", ["tflite-int8", "tflite-int16x8", "tflite-dynamic", "tflite-f16"])
def test_a_recipe_answers_as_what_tensorflows_own_converter_makes(name, digits, statistics, peers, inputs) -> None:
    ours, theirs = make(digits, recipe(name), QuantizationPlan(), statistics), peers(name)
    # Of some small kernels TensorFlow's dynamic range leaves more in float than the rule of 1,024 numbers says.
    limit = {"tflite-dynamic": 5e-3, "tflite-f16": 1e-3, "tflite-int16x8": 1e-4}.get(name, 1e-6)
    for array in inputs[:10]:
        np.testing.assert_allclose(answer(ours, array), answer(theirs, array), atol=limit)


@pytest.mark.parametrize("name", ["tflite-int8", "tflite-int16x8", "tflite-dynamic", "tflite-f16", "tflite-f32"])
def test_the_same_arguments_give_the_same_bytes(name, digits, statistics) -> None:
    assert make(digits, recipe(name), QuantizationPlan(), statistics) == make(
        digits, recipe(name), QuantizationPlan(), statistics
    )


def test_int8_is_int8_from_end_to_end_with_a_scale_for_each_channel(digits, statistics) -> None:
    data = make(digits, recipe("tflite-int8"), QuantizationPlan(), statistics)
    assert in_float(data) == set()
    model = tfl.read(data)
    graph = model.subgraphs[0]
    scales = {}
    for op in graph.operators:
        if tfl.op_of(model, op) in ("CONV_2D", "DEPTHWISE_CONV_2D"):
            kernel = graph.tensors[op.inputs[1]]
            depthwise = tfl.op_of(model, op) == "DEPTHWISE_CONV_2D"
            assert len(kernel.quantization.scale) == kernel.shape[3 if depthwise else 0]
            scales[tfl.op_of(model, op)] = len(kernel.quantization.scale)
    assert scales["DEPTHWISE_CONV_2D"] == 16


def test_sixteen_bits_are_sixteen_bits_around_zero_with_wide_biases(digits, statistics) -> None:
    model = tfl.read(make(digits, recipe("tflite-int16x8"), QuantizationPlan(), statistics))
    graph = model.subgraphs[0]
    assert {tfl.type_of(graph.tensors[i]) for i in (*graph.inputs, *graph.outputs)} == {"INT16"}
    kinds = {tfl.type_of(t) for t in graph.tensors if tfl.is_constant(model, t) and tfl.name_of(t)}
    assert {"INT8", "INT64"} <= kinds
    for tensor in graph.tensors:
        if tfl.type_of(tensor) == "INT16":
            assert not np.any(tensor.quantization.zeroPoint)


def test_every_set_of_float_layers_is_kept_in_float_and_nothing_else(digits, statistics) -> None:
    layers = [layer.name for layer in open_graph("tflite", digits.data).layers]
    rng = np.random.default_rng(0)
    for _ in range(8):
        chosen = frozenset(rng.choice(layers, rng.integers(1, len(layers)), replace=False).tolist())
        data = make(digits, recipe("tflite-int8-mixed"), QuantizationPlan(float_layers=chosen), statistics)
        assert in_float(data) == chosen


def test_an_end_that_a_float_layer_reads_or_makes_stays_float(digits, statistics) -> None:
    layers = [layer.name for layer in open_graph("tflite", digits.data).layers]
    for chosen, types in (((), "int8 int8"), (layers[:1], "float32 int8"), (layers[-1:], "int8 float32")):
        data = make(digits, recipe("tflite-int8-mixed"), QuantizationPlan(float_layers=frozenset(chosen)), statistics)
        with load_engine("tflite", data) as engine:
            assert f"{engine.inputs[0].dtype} {engine.outputs[0].dtype}" == types


def test_a_fixed_range_is_the_range_of_its_tensor(digits, statistics) -> None:
    name = next(layer.name for layer in open_graph("tflite", digits.data).layers if layer.kind == "conv")
    data = make(digits, recipe("tflite-int8"), QuantizationPlan(fixed_ranges=((name, 0.0, 2.55),)), statistics)
    [tensor] = [t for t in tfl.read(data).subgraphs[0].tensors if tfl.name_of(t) == name]
    np.testing.assert_allclose(tensor.quantization.scale, [0.01], rtol=1e-5)


def test_layers_are_found_by_the_same_names_in_every_recipe(digits, statistics) -> None:
    names = {layer.name for layer in open_graph("tflite", digits.data).layers}
    for name in ("tflite-int8", "tflite-int16x8", "tflite-dynamic", "tflite-f16"):
        made = open_graph("tflite", make(digits, recipe(name), QuantizationPlan(), statistics))
        found = {layer.name for layer in made.layers}
        added = {layer.name + "/even" for layer in made.layers if layer.op == "MUL"}  # before channels are scaled
        assert found - names <= added, name
        assert found >= names, name


def test_old_runtimes_know_the_versions_of_every_operator(digits, statistics) -> None:
    """The newest that tflite-runtime 2.14 has; a dense layer per channel would be version 12."""
    for name in ("tflite-int8", "tflite-dynamic", "tflite-f16"):
        found = versions(make(digits, recipe(name), QuantizationPlan(), statistics))
        assert found["FULLY_CONNECTED"] <= 9, name
        assert found["CONV_2D"] <= 5, name


def test_dynamic_dense_layers_have_one_scale_and_convolutions_one_a_channel(digits) -> None:
    model = tfl.read(make(digits, recipe("tflite-dynamic"), QuantizationPlan()))
    graph = model.subgraphs[0]
    found = {}
    for op in graph.operators:
        kernel = graph.tensors[op.inputs[1]] if len(op.inputs) > 1 else None
        if kernel is not None and tfl.type_of(kernel) == "INT8":
            found[tfl.op_of(model, op)] = len(kernel.quantization.scale)
            assert len(kernel.quantization.scale) in (1, kernel.shape[0])
    assert found["FULLY_CONNECTED"] == 1
    assert found["CONV_2D"] == 32


@pytest.mark.parametrize("name", ["tflite-dynamic", "tflite-f16"])
def test_float_layers_are_honoured_where_only_weights_are_made_small(name, digits) -> None:
    layer = next(layer for layer in open_graph("tflite", digits.data).layers if layer.kind == "dense")
    made = open_graph("tflite", make(digits, recipe(name), QuantizationPlan(float_layers=frozenset({layer.name}))))
    weight = layer.weight
    assert weight is not None
    exact = open_graph("tflite", digits.data).constant(weight)
    np.testing.assert_array_equal(made.constant(weight), exact)
    smaller = open_graph("tflite", make(digits, recipe(name), QuantizationPlan()))
    assert np.any(smaller.constant(weight + "/even" if name == "tflite-dynamic" else weight) != exact)


def test_channels_of_a_dense_layer_keep_their_own_ranges(digits) -> None:
    """With one scale and no more, those below 1/254 of the largest would answer their bias."""
    graph = open_graph("tflite", digits.data)
    layer = next(layer for layer in graph.layers if layer.kind == "dense")
    assert layer.weight is not None
    assert layer.bias is not None
    kernel, bias = graph.constant(layer.weight), graph.constant(layer.bias)
    factors = np.geomspace(1e-4, 1, len(bias), dtype=np.float32)
    uneven = graph.with_constants({layer.weight: kernel * factors[:, None], layer.bias: bias * factors}).data
    made = make(replace(digits, data=uneven), recipe("tflite-dynamic"), QuantizationPlan())
    given = np.random.default_rng(0).uniform(0, 1, (1, 8, 8, 1)).astype(np.float32)
    answers = []
    for data in (uneven, made):
        with open_graph("tflite", data).watch([layer.outputs[0]]) as watched:
            answers.append(watched.run([given])[layer.outputs[0]] / factors)
    np.testing.assert_allclose(answers[1], answers[0], atol=0.03 * float(np.abs(answers[0]).max()))
    assert np.count_nonzero(answers[0]) > len(bias) // 4


# --- graphs that calibration data does not tell everything about


def traced(function: Callable[[Any], Any], shape: tuple[int, ...] = (1, 4, 4, 4)) -> FloatModel:
    import tensorflow as tf

    from edgekit_converters.recipe.foreign_code import quiet

    kernel = tf.constant(np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32))
    call = tf.function(
        lambda x: {"y": function(tf.nn.conv2d(x, kernel, 1, "SAME"))},
        autograph=False,
        input_signature=[tf.TensorSpec(shape, tf.float32, name="x")],
    )
    with quiet():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([call.get_concrete_function()], None)
        return FloatModel("tflite", bytes(converter.convert()), ("x",), ("y",), {})


def usual(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.2, 1, (1, 4, 4, 4)).astype(np.float32)


def formulas() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    import tensorflow as tf

    yield "a division by a sum", lambda t: t / (tf.reduce_sum(tf.abs(t), -1, keepdims=True) + 1e-6)
    yield (
        "a division by a spread",
        lambda t: (t - tf.reduce_min(t)) / (tf.reduce_max(t) - tf.reduce_min(t) + 1e-6),
    )
    yield (
        "a layer norm",
        lambda t: (
            (t - tf.reduce_mean(t, -1, keepdims=True))
            * tf.math.rsqrt(tf.math.reduce_variance(t, -1, keepdims=True) + 1e-5)
        ),
    )
    yield "a length of one", lambda t: tf.nn.l2_normalize(t, -1)
    yield "a root and a logarithm", lambda t: tf.math.log(tf.sqrt(tf.nn.relu(t)) + 1e-3)


def test_odd_inputs_never_crash_an_artifact() -> None:
    for name, formula in formulas():
        model = traced(formula)
        data = make(
            model, recipe("tflite-int8-mixed"), QuantizationPlan(), seen(model.data, [usual(i) for i in range(8)])
        )
        for odd, value in ODD.items():
            result = answer(data, np.full((1, 4, 4, 4), value, np.float32))
            assert np.all(np.isfinite(result)), (name, odd)


def test_a_division_is_left_in_float_or_refused_with_the_way_out() -> None:
    model = traced(dict(formulas())["a division by a sum"])
    statistics = seen(model.data, [usual(i) for i in range(8)])
    [layer] = [name for op, name, _ in ops(model.data) if op == "DIV"]
    with pytest.raises(ConversionError) as caught:
        make(model, recipe("tflite-int8"), QuantizationPlan(), statistics)
    assert f"DIV in '{layer}'" in caught.value.what
    assert "tflite-int8-mixed" in caught.value.do
    mixed = make(model, recipe("tflite-int8-mixed"), QuantizationPlan(), statistics)
    assert [op for op, name, _ in ops(mixed) if name in in_float(mixed)] == ["ADD", "DIV"]  # the guard and the division


def test_an_operator_without_an_int8_kernel_is_named_and_left_alone_when_mixed() -> None:
    import tensorflow as tf

    model = traced(lambda t: tf.nn.relu(tf.nn.elu(t) * 2.0))
    statistics = seen(model.data, [usual(i) for i in range(8)])
    [layer] = [name for op, name, _ in ops(model.data) if op == "ELU"]
    with pytest.raises(ConversionError, match="ELU in") as caught:
        make(model, recipe("tflite-int8"), QuantizationPlan(), statistics)
    assert layer in caught.value.what
    assert in_float(make(model, recipe("tflite-int8-mixed"), QuantizationPlan(), statistics)) == {layer}


def test_a_file_whose_products_all_stay_in_float_is_not_called_int8(digits, statistics) -> None:
    """A note of litert-torch's hides the weights from the quantizer, which says nothing."""
    model = tfl.read(digits.data)
    note, text = tfl.schema().MetadataT(), tfl.schema().BufferT()
    note.name, note.buffer, text.data = b"keep_stablehlo_constant", len(model.buffers), list(b"true")
    model.buffers, model.metadata = [*model.buffers, text], [*(model.metadata or ()), note]
    hidden = replace(digits, data=tfl.write(model))
    with pytest.raises(ConversionError, match=r"none of its \d layers that multiply could be quantized"):
        make(hidden, recipe("tflite-int8-mixed"), QuantizationPlan(), statistics)


def test_the_parts_that_a_tensor_is_sliced_into_run_in_8_bits_too() -> None:
    import tensorflow as tf

    model = traced(lambda t: tf.concat([t[..., :2] * 8.0 + 1.0, tf.exp(tf.minimum(t[..., 2:], 3.0)) * 8.0], -1))
    statistics = seen(model.data, [usual(i) for i in range(8)])
    assert [op for op, _, _ in ops(model.data)].count("STRIDED_SLICE") == 2
    assert in_float(make(model, recipe("tflite-int8"), QuantizationPlan(), statistics)) == set()


def test_a_mixed_file_leaves_in_float_what_old_runtimes_cannot_load_in_int8() -> None:
    import tensorflow as tf

    model = traced(lambda t: tf.sqrt(tf.nn.relu(t)) * 2.0)
    statistics = seen(model.data, [usual(i) for i in range(8)])
    assert in_float(make(model, recipe("tflite-int8"), QuantizationPlan(), statistics)) == set()
    mixed = make(model, recipe("tflite-int8-mixed"), QuantizationPlan(), statistics)
    assert [op for op, name, _ in ops(mixed) if name in in_float(mixed)] == ["SQRT"]


def test_sixteen_bits_refuse_an_operator_that_fails_only_when_it_runs() -> None:
    import tensorflow as tf

    model = traced(lambda t: t * tf.nn.relu6(t + 3.0) / 6.0)
    statistics = seen(model.data, [usual(i) for i in range(8)])
    with pytest.raises(ConversionError, match="HARD_SWISH in"):
        make(model, recipe("tflite-int16x8"), QuantizationPlan(), statistics)


def test_a_tensor_that_was_always_zero_has_a_scale() -> None:
    import tensorflow as tf

    model = traced(lambda t: tf.nn.relu(t - 1e3) + t)
    data = make(model, recipe("tflite-int8"), QuantizationPlan(), seen(model.data, [usual(i) for i in range(8)]))
    for tensor in tfl.read(data).subgraphs[0].tensors:
        if tfl.type_of(tensor) == "INT8":
            assert np.all(tensor.quantization.scale > 0)
    assert np.all(np.isfinite(answer(data, usual(9))))


def test_a_range_that_is_no_number_names_its_tensor(digits, statistics) -> None:
    name = open_graph("tflite", digits.data).layers[0].name
    with pytest.raises(ConversionError, match="not finite") as caught:
        make(digits, recipe("tflite-int8"), QuantizationPlan(fixed_ranges=((name, float("nan"), 1.0),)), statistics)
    assert name in caught.value.what


def test_half_precision_keeps_what_it_would_turn_to_zero_or_infinity() -> None:
    import tensorflow as tf

    big = tf.constant(np.full(4, 1e6, np.float32))
    model = traced(lambda t: tf.math.rsqrt(tf.square(t) + 1e-9) * big)
    data = make(model, recipe("tflite-f16"), QuantizationPlan())
    silent = np.zeros((1, 4, 4, 4), np.float32)
    np.testing.assert_allclose(answer(data, silent), answer(model.data, silent), rtol=1e-3)


# --- where the float file comes from


def test_a_batch_of_four_is_four_items_in_every_recipe(digits_model, digits, inputs) -> None:
    model = float_model(load(digits_model.model), batch=4)
    batch = np.concatenate(inputs[:4])
    found = seen(model.data, [np.concatenate(inputs[i : i + 4]) for i in range(0, 200, 4)])
    single = seen(digits.data, inputs)
    for name, limit in (("tflite-f32", 1e-6), ("tflite-int8", 1e-6), ("tflite-dynamic", 1e-2)):
        answers = answer(make(model, recipe(name), QuantizationPlan(), found), batch)
        one = make(digits, recipe(name), QuantizationPlan(), single)
        assert answers.shape == (4, 10)
        np.testing.assert_allclose(answers, np.concatenate([answer(one, item) for item in inputs[:4]]), atol=limit)


def test_a_float_tflite_file_is_taken_as_it_is(digits: FloatModel, tmp_path: Path) -> None:
    path = tmp_path / "digits.tflite"
    path.write_bytes(digits.data)
    source = load(path)
    model = float_model(source)
    assert model.data == digits.data
    assert (model.inputs, model.outputs) == (("image",), ("probs",))
    with pytest.raises(ConversionError, match="batch"):
        float_model(source, batch=4)


def test_an_operator_that_tflite_lacks_is_named_with_its_layer(tmp_path: Path) -> None:
    import keras

    x = keras.Input((4,), name="x")
    keras.Model(x, keras.ops.erfinv(keras.ops.tanh(x) * 0.5)).save(tmp_path / "net.keras")
    with pytest.raises(ConversionError) as caught:
        float_model(load(tmp_path / "net.keras"))
    assert "Erfinv in '" in caught.value.what
    assert "onnx" in caught.value.do


@pytest.mark.convert
def test_what_the_quantizer_fuses_is_called_by_the_files_own_names(tmp_path) -> None:
    import keras

    x = keras.Input((6, 5), name="x")
    keras.Model(x, keras.layers.Dense(3)(keras.layers.GRU(6)(x))).save(tmp_path / "gru.keras")
    model = float_model(load(tmp_path / "gru.keras"))
    feeds = [[np.random.default_rng(i).normal(size=(1, 6, 5)).astype(np.float32)] for i in range(4)]
    ranges = seen(model.data, [feed[0] for feed in feeds])
    with pytest.raises(ConversionError, match="TFLite has no int8 kernel for WHILE in 'functional") as why:
        make(model, recipe("tflite-int8"), QuantizationPlan(), ranges)
    assert not re.search(r"s\d+t\d+e", str(why.value))
    made = tfl.read(make(model, recipe("tflite-int8-mixed"), QuantizationPlan(), ranges))
    assert not [one for one in made.subgraphs[0].tensors if re.match(r"s\d+t\d+e", tfl.name_of(one))]


_ALONE = """
import json, sys
from pathlib import Path
from edgekit_converters.recipe.artifact import QuantizationPlan, recipe
from edgekit_converters.targets.tflite_static import static
folder = Path(sys.argv[1])
data, ranges = (folder / "float.tflite").read_bytes(), json.loads((folder / "ranges.json").read_text())
alone = static(data, recipe("tflite-int8"), QuantizationPlan(), ranges)
assert "tensorflow" not in sys.modules
import tensorflow
assert int(tensorflow.constant(1) + 1) == 2
assert static(data, recipe("tflite-int8"), QuantizationPlan(), ranges) == alone
(folder / "made.tflite").write_bytes(alone)
"""


def test_the_quantizer_needs_no_tensorflow_which_may_come_later(tmp_path: Path, digits: FloatModel, statistics: Seen):
    (tmp_path / "float.tflite").write_bytes(digits.data)
    (tmp_path / "ranges.json").write_text(json.dumps(dict(statistics.found)))
    subprocess.run([*python_code(_ALONE), str(tmp_path)], env=environment(), check=True, timeout=600)
    assert (tmp_path / "made.tflite").read_bytes() == make(
        digits, recipe("tflite-int8"), QuantizationPlan(), statistics
    )
