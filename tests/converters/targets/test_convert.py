"""What every recipe promises, on a trained net and on one with several inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from edgekit_converters.formats.onnx_file import opset_of
from edgekit_converters.recipe.artifact import RECIPES, Artifact
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import CalibrationError, ConversionError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.load import load
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.pixels import quantize
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert

INT8 = ("tflite-int8", "onnx-int8-qdq")
MADE = {name: recipe for name, recipe in RECIPES.items() if not recipe.finished}
"""The recipes that make something: one packs a finished file as it is."""
ROUNDING = {"int8": 0.08, "int16x8": 0.08, "dynamic": 0.08, "float16": 5e-3, "float32": 1e-4}
"""The most that an output of the small net may move."""


class Stream:
    """Calibration samples that are made when asked for, and count how many are alive."""

    def __init__(self, source: SourceModel, count: int, items: list[list[NDArray[Any]]] | None = None) -> None:
        self._source, self._count, self._items = source, count, items
        self.started = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[NDArray[Any]]]:
        for i in range(self._count):
            self.started += 1
            yield self._items[i] if self._items else float_onnx.random_inputs(self._source.inputs, 1, seed=i)


def digit_stream(source: SourceModel, path: Path) -> Stream:
    x = np.load(path)["x"]
    if source.inputs[0].layout == "NCHW":
        x = x.transpose(0, 3, 1, 2)
    return Stream(source, len(x), [[np.ascontiguousarray(item[None])] for item in x])


def run(artifact: Artifact, source: SourceModel, inputs: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """One item through the artifact's engine, fed by the contract's names; outputs dequantized."""
    by_name = {spec.name: (spec, array) for spec, array in zip(source.inputs, inputs, strict=True)}
    tensors = []
    for tensor in artifact.inputs:
        spec, array = by_name[tensor.name]
        if tensor.layout != spec.layout:
            array = array.transpose(0, 3, 1, 2)
        if tensor.quantization is not None:
            array = quantize(array, tensor.quantization, np.dtype(tensor.dtype))
        tensors.append(np.ascontiguousarray(array, tensor.dtype))
    with load_engine(artifact.recipe.format, artifact.data) as engine:
        outputs = engine.run(tensors)
    return {
        tensor.name: dequantize(output, tensor, np.dtype("float32"))
        for tensor, output in zip(artifact.outputs, outputs, strict=True)
    }


@pytest.fixture(scope="module")
def digits(digits_model):
    return load(digits_model.model)


@pytest.fixture(scope="module")
def artifacts(digits, digits_model) -> dict[str, Artifact]:
    samples = digit_stream(digits, digits_model.calibration)
    return {name: Workspace(digits, samples).make(recipe) for name, recipe in MADE.items()}


@pytest.mark.parametrize("name", MADE)
def test_accuracy_on_held_out_digits_drops_by_half_a_point_at_most(name: str, artifacts, digits, digits_model) -> None:
    held_out = np.load(digits_model.evaluation)
    x, y = held_out["x"], held_out["y"]
    best = np.array([run(artifacts[name], digits, [item[None]])["probs"][0].argmax() for item in x])
    float_best = digits.predict([x])[0].argmax(1)
    assert (float_best == y).mean() - (best == y).mean() <= 0.005
    assert (best == float_best).mean() >= (0.98 if "int8" in name else 0.995)


def test_int8_artifacts_are_int8_and_small(artifacts) -> None:
    for name, full in (("tflite-int8", "tflite-f32"), ("onnx-int8-qdq", "onnx-f32")):
        assert artifacts[name].quantized_macs > 0.95  # ONNX Runtime's first convolution stays float: it is the faster
        assert artifacts[name].quantized_weights > 0.99
        assert artifacts[full].quantized_macs == 0.0
        assert len(artifacts[name].data) < 0.5 * len(artifacts[full].data)  # a 35 k-parameter net: headers weigh


def test_tflite_int8_takes_and_gives_int8(artifacts) -> None:
    [image], [probs] = artifacts["tflite-int8"].inputs, artifacts["tflite-int8"].outputs
    assert (image.name, image.dtype, image.shape, image.layout) == ("image", "int8", (1, 8, 8, 1), "NHWC")
    assert (probs.name, probs.dtype, probs.shape) == ("probs", "int8", (1, 10))
    assert image.quantization is not None
    assert probs.quantization is not None


def test_onnx_artifacts_of_a_keras_model_are_nchw_with_a_free_batch(artifacts) -> None:
    for name in ("onnx-f32", "onnx-int8-qdq"):
        [image] = artifacts[name].inputs
        assert (image.name, image.dtype, image.shape, image.layout) == ("image", "float32", (-1, 1, 8, 8), "NCHW")
        model = onnx.load_model_from_string(artifacts[name].data)
        assert (opset_of(model), model.ir_version <= 10) == (17, True)


def test_an_artifact_carries_its_recipe_tools_and_sample_count(artifacts) -> None:
    for name, artifact in artifacts.items():
        assert artifact.recipe is RECIPES[name]
        assert artifact.samples == (200 if RECIPES[name].needs_calibration else 0)
        assert "keras" in artifact.tools
        assert artifact.recipe.format == "tflite" or "onnxruntime" in artifact.tools


@pytest.mark.parametrize("name", INT8)
def test_the_same_inputs_give_the_same_bytes(name: str, artifacts, digits_model) -> None:
    again = load(digits_model.model)
    samples = digit_stream(again, digits_model.calibration)
    assert Workspace(again, samples).make(find_recipe(name)).data == artifacts[name].data


REFUSED_FOR_SEVERAL = ("onnx-int8-dynamic", "ncnn-f32", "ncnn-f16", "ncnn-int8", "ncnn-int8-mixed")
"""It has no product to make dynamic, and an input of integers."""


@pytest.mark.parametrize("name", [name for name in MADE if name not in REFUSED_FOR_SEVERAL])
def test_several_inputs_and_outputs_are_never_mixed_up(name: str, several) -> None:
    source = load(several)
    artifact = Workspace(source, Stream(source, 40)).make(find_recipe(name))
    inputs = float_onnx.random_inputs(source.inputs, 1, seed=3)
    got = run(artifact, source, inputs)
    for spec, want in zip(source.outputs, source.predict(inputs), strict=True):
        assert got[spec.name].shape == want.shape
        np.testing.assert_allclose(got[spec.name], want, atol=ROUNDING[artifact.recipe.precision], err_msg=spec.name)


@pytest.mark.parametrize("name", REFUSED_FOR_SEVERAL)
def test_a_recipe_that_would_quantize_nothing_or_takes_no_integers_is_refused(name: str, several) -> None:
    with pytest.raises(ConversionError):
        Workspace(load(several)).make(find_recipe(name))


@pytest.mark.parametrize("name", ["onnx-int8-qdq", "onnx-f32"])
def test_an_onnx_source_becomes_onnx(name: str, digits_onnx, digits_model) -> None:
    source = load(digits_onnx)
    artifact = Workspace(source, digit_stream(source, digits_model.calibration)).make(find_recipe(name))
    assert artifact.inputs[0].layout == "NCHW"
    assert "tensorflow-cpu" not in artifact.tools
    x = np.load(digits_model.evaluation)["x"][:20].transpose(0, 3, 1, 2)
    want = source.predict([x])[0].argmax(1)
    assert [run(artifact, source, [item[None]])["probs"][0].argmax() for item in x] == want.tolist()


def test_a_graph_of_opset_11_becomes_per_channel_int8_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(opset_11())
    source = load(path)
    artifact = Workspace(source, Stream(source, 8)).make(find_recipe("onnx-int8-qdq"))
    assert artifact.quantized_macs > 0.95


def test_samples_are_streamed_and_progress_is_told(digits, digits_model) -> None:
    for name in INT8:
        samples, told = digit_stream(digits, digits_model.calibration), []
        Workspace(digits, samples, lambda stage, done, total, told=told: told.append((stage, done, total))).make(
            find_recipe(name)
        )
        assert 200 < samples.started <= 400  # once for the ranges, once more, of some, to round weights
        seen = [(done, total) for stage, done, total in told if stage.endswith(" calibration")]
        assert seen == [(done, 200) for done in range(1, 201)]


@pytest.mark.parametrize("name", INT8)
def test_int8_without_calibration_data_is_refused(name: str, digits) -> None:
    for samples in (None, Stream(digits, 0)):
        with pytest.raises(ConversionError, match="needs calibration data"):
            Workspace(digits, samples).make(find_recipe(name))


@pytest.mark.parametrize("name", INT8)
def test_a_sample_of_the_wrong_shape_is_named(name: str, digits) -> None:
    items = [[np.zeros((1, 8, 8, 1), np.float32)], [np.zeros((8, 8, 1), np.float32)]]
    with pytest.raises(ConversionError, match="calibration sample 1"):
        Workspace(digits, Stream(digits, 2, items)).make(find_recipe(name))


@pytest.mark.parametrize("name", INT8)
def test_an_error_of_the_calibration_data_passes_through(name: str, digits) -> None:
    class Broken(Stream):
        def __iter__(self) -> Iterator[list[NDArray[Any]]]:
            yield [np.zeros((1, 8, 8, 1), np.float32)]
            raise CalibrationError("a photo is damaged", where="cat.jpg", do="Remove it")

    with pytest.raises(CalibrationError, match=r"cat\.jpg"):
        Workspace(digits, Broken(digits, 2)).make(find_recipe(name))


def test_an_operator_that_tflite_lacks_is_named(tmp_path: Path) -> None:
    import keras

    x = keras.Input((4,), name="x")
    keras.Model(x, keras.ops.erfinv(keras.ops.tanh(x) * 0.5)).save(tmp_path / "net.keras")
    source = load(tmp_path / "net.keras")
    with pytest.raises(ConversionError) as caught:
        Workspace(source).make(find_recipe("tflite-f32"))
    assert "Erfinv" in caught.value.what
    assert "onnx" in caught.value.do


def test_dynamic_dense_layers_load_on_old_runtimes(artifacts) -> None:
    """Per channel they would be FULLY_CONNECTED version 12, which tflite-runtime 2.14 does not know."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(artifacts["tflite-dynamic"].data, 0)
    versions = {
        code.version for code in model.operatorCodes if code.builtinCode == schema.BuiltinOperator.FULLY_CONNECTED
    }
    assert versions
    assert max(versions) <= 9


def test_conversion_says_nothing_on_the_terminal(digits, digits_model, capfd) -> None:
    for name, recipe in MADE.items():
        Workspace(digits, digit_stream(digits, digits_model.calibration)).make(recipe)
        assert capfd.readouterr() == ("", ""), name


def opset_11() -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((6, 3, 3, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((6, 4)).astype(np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Clip", ["c", "", ""], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6).SerializeToString()
