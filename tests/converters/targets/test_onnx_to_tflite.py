"""TFLite from ONNX, where onnx2tf is installed; where it is not, the command that adds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import worded
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.fidelity.compare import rank_agreement
from edgekit_converters.recipe.artifact import Artifact, recipe, transposed_pixels
from edgekit_converters.recipe.conversion_errors import ConversionError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.load import load
from edgekit_converters.sources.source_model import SourceModel
from edgekit_converters.sources.transformer import read_transformer
from edgekit_converters.targets.onnx_to_tf import available
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.contract.adapt import dequantize
from edgekit_runtime.contract.pixels import quantize
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.system.errors import install_command

pytestmark = pytest.mark.convert
with_onnx2tf = pytest.mark.skipif(not available(), reason="needs the onnx-tflite extra")


def answers(artifact: Artifact, source: SourceModel, inputs: list[Any]) -> dict[str, Any]:
    given = {spec.name: (spec, array) for spec, array in zip(source.inputs, inputs, strict=True)}
    tensors = []
    for tensor in artifact.inputs:
        spec, array = given[tensor.name]
        array = transposed_pixels(array, spec) if tensor.layout != spec.layout else array
        tensors.append(
            array if tensor.quantization is None else quantize(array, tensor.quantization, np.dtype(tensor.dtype))
        )
    with load_engine("tflite", artifact.data) as engine:
        return {
            tensor.name: dequantize(output, tensor, np.dtype("float32"))
            for tensor, output in zip(artifact.outputs, engine.run(tensors), strict=True)
        }


@pytest.mark.skipif(available(), reason="the onnx-tflite extra is installed")
def test_without_onnx2tf_the_error_holds_the_command(digits_onnx: Path) -> None:
    with pytest.raises(ConversionError) as caught:
        Workspace(load(digits_onnx)).make(recipe("tflite-f32"))
    assert install_command("onnx-tflite") in caught.value.do
    assert "onnx-int8-qdq" in caught.value.do


@with_onnx2tf
@pytest.mark.parametrize("name", ["tflite-int8", "tflite-dynamic", "tflite-f32"])
def test_digits_keep_their_accuracy_from_onnx_to_tflite(name: str, digits_onnx: Path, digits_model) -> None:
    source = load(digits_onnx)
    samples = [[item[None]] for item in np.load(digits_model.calibration)["x"].transpose(0, 3, 1, 2)]
    artifact = Workspace(source, samples).make(recipe(name))
    [image] = artifact.inputs
    assert (image.name, image.shape, image.layout) == ("image", (1, 8, 8, 1), "NHWC")
    held_out = np.load(digits_model.evaluation)
    x, y = held_out["x"].transpose(0, 3, 1, 2), held_out["y"]
    best = np.array([answers(artifact, source, [item[None]])["probs"][0].argmax() for item in x])
    assert (source.predict([x])[0].argmax(1) == y).mean() - (best == y).mean() <= 0.005
    assert "onnx2tf" in artifact.tools


@with_onnx2tf
def test_the_same_onnx_file_gives_the_same_tflite_bytes(digits_onnx: Path, digits_model) -> None:
    samples = [[item[None]] for item in np.load(digits_model.calibration)["x"][:20].transpose(0, 3, 1, 2)]
    first, second = (Workspace(load(digits_onnx), samples).make(recipe("tflite-int8")).data for _ in range(2))
    assert first == second


@with_onnx2tf
def test_an_upsampling_that_onnx2tf_rounds_otherwise_is_refused_though_its_answers_are_small(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "Resize", ["x", "", "scales"], ["large"], mode="nearest", nearest_mode="ceil",
            coordinate_transformation_mode="asymmetric",
        ),
        helper.make_node("Conv", ["large", "w"], ["y"]),
    ]  # fmt: skip
    draw = np.random.default_rng(0)
    constants = {"scales": [1, 1, 2, 2], "w": draw.normal(0, 1e-4, (2, 3, 3, 3))}
    weights = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, ["N", 3, 6, 6]), ("y", 1, ["N", 2, 10, 10]))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "net.onnx")
    items = [[draw.uniform(0, 1, (1, 3, 6, 6)).astype(np.float32)] for _ in range(4)]
    with pytest.raises(ConversionError, match="other answers than the original"):
        Workspace(load(tmp_path / "net.onnx"), items).make(recipe("tflite-f32"))


@with_onnx2tf
def test_maps_sequences_and_several_outputs_keep_the_sources_axes(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(maps_and_sequences())
    source = load(tmp_path / "net.onnx")
    artifact = Workspace(source).make(recipe("tflite-f32"))
    inputs = float_onnx.random_inputs(source.inputs, 1, seed=5)
    got = answers(artifact, source, inputs)
    for spec, want in zip(source.outputs, source.predict(inputs), strict=True):
        np.testing.assert_allclose(got[spec.name], want, atol=1e-4, err_msg=spec.name)


@with_onnx2tf
def test_a_model_that_onnx2tf_cannot_express_is_an_error_not_an_exit(tmp_path: Path) -> None:
    value = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 1, size, size]) for n, size in (("x", 4), ("y", 2))
    ]
    node = helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    graph = helper.make_graph([node], "net", *([v] for v in value))
    opsets = [helper.make_opsetid("", 17)]
    (tmp_path / "net.onnx").write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    with pytest.raises(ConversionError, match="onnx2tf"):
        Workspace(load(tmp_path / "net.onnx")).make(recipe("tflite-f32"))


@with_onnx2tf
def test_an_encoder_of_texts_keeps_which_text_is_nearer_in_8_bits(tmp_path: Path) -> None:
    (tmp_path / "mini.onnx").write_bytes(read_transformer(worded.write_folder(tmp_path / "mini"), 12).onnx)
    source = load(tmp_path / "mini.onnx")
    samples = []
    for line in worded.LINES:
        ids = [2, *(worded.WORDS.index(word) for word in line.split()), 3]
        row = np.array([ids + [0] * (12 - len(ids))])
        given = {"input_ids": row, "attention_mask": np.minimum(row, 1), "token_type_ids": 0 * row}
        samples.append([given[spec.name] for spec in source.inputs])
    wanted = [source.predict(one)[0][0] for one in samples]
    for name, least in (("tflite-f32", 0.999), ("tflite-dynamic", 0.98), ("tflite-int8-mixed", 0.9)):
        artifact = Workspace(source, samples).make(recipe(name))
        found = [answers(artifact, source, one)["sentence_embedding"][0] for one in samples]
        assert rank_agreement(wanted, found) >= least, name
    assert artifact.quantized_macs > 0.9


def maps_and_sequences() -> bytes:
    """pixels [N, 3, 6, 10] -> map [N, 5, 6, 10]; steps [N, 7, 4] -> sum [N, 7, 4]: outputs of the picture and of a
    sequence.
    """
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((5, 3, 3, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((4, 4)).astype(np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Conv", ["pixels", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["map"]),
        helper.make_node("MatMul", ["steps", "v"], ["sum"]),
    ]

    def value(name: str, *shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])

    graph = helper.make_graph(
        nodes,
        "net",
        [value("steps", 7, 4), value("pixels", 3, 6, 10)],
        [value("sum", 7, 4), value("map", 5, 6, 10)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
