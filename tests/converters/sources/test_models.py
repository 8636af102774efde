"""What a source answers, and that its ONNX form answers the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.formats.onnx_file import opset_of, rename
from edgekit_converters.recipe.conversion_errors import ConversionError, SourceError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.float_onnx import order, renumber
from edgekit_converters.sources.load import load
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert


def test_a_keras_model_is_described_and_answers_as_it_was_trained(digits_model) -> None:
    source = load(digits_model.model)
    held_out = np.load(digits_model.evaluation)
    assert (source.format, source.path) == ("keras", digits_model.model)
    assert source.sha256 == hashlib.sha256(digits_model.model.read_bytes()).hexdigest()
    [image], [probs] = source.inputs, source.outputs
    assert (image.name, image.shape, image.dtype, image.layout) == ("image", (-1, 8, 8, 1), "float32", "NHWC")
    assert (probs.name, probs.shape, probs.dtype) == ("probs", (-1, 10), "float32")
    [answers] = source.predict([held_out["x"]])
    assert (answers.argmax(1) == held_out["y"]).mean() >= 0.97


def test_the_onnx_form_has_the_contracts_names_a_free_batch_and_the_versions_of_boards(
    digits_model, digits_onnx
) -> None:
    model = onnx.load(digits_onnx)
    assert [value.name for value in model.graph.input] == ["image"]
    assert [value.name for value in model.graph.output] == ["probs"]
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_param == "batch"
    assert [dim.dim_value for dim in dims][1:] == [1, 8, 8]
    assert opset_of(model) == 17
    assert model.ir_version <= 10
    assert float_onnx.nchw_inputs(model) == {"image"}
    assert "Transpose" not in {node.op_type for node in model.graph.node[:-1]} or len(model.graph.node) < 20


def test_an_onnx_model_agrees_with_the_keras_model_it_came_from(digits_model, digits_onnx) -> None:
    x = np.load(digits_model.evaluation)["x"][:64]
    keras_source, onnx_source = load(digits_model.model), load(digits_onnx)
    assert onnx_source.inputs[0].layout == "NCHW"
    np.testing.assert_allclose(
        onnx_source.predict([x.transpose(0, 3, 1, 2)])[0], keras_source.predict([x])[0], atol=1e-5
    )


def test_the_same_file_gives_the_same_onnx_bytes(digits_model, digits_onnx) -> None:
    assert load(digits_model.model).onnx() == digits_onnx.read_bytes()
    assert load(digits_onnx).onnx() == load(digits_onnx).onnx()


def test_several_inputs_and_outputs_keep_their_names_and_order(several) -> None:
    source = load(several)
    assert [spec.name for spec in source.inputs] == ["zebra", "apple", "mid ids"]
    assert [spec.name for spec in source.outputs] == ["yak", "box", "ant"]
    assert [spec.dtype for spec in source.inputs] == ["float32", "float32", "int32"]
    inputs = float_onnx.random_inputs(source.inputs, 4)
    with load_engine("onnx", source.onnx()) as engine:
        assert [spec.name for spec in engine.inputs] == ["zebra", "apple", "mid ids"]
        outputs = engine.run([inputs[0].transpose(0, 3, 1, 2).copy(), inputs[1], inputs[2]])
    for got, want in zip(outputs, source.predict(inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_dict_of_outputs_keeps_its_keys(tmp_path: Path) -> None:
    import keras

    x = keras.Input((4,), name="x")
    outputs = {"score": keras.layers.Dense(2, name="d1")(x), "age": keras.layers.Dense(1, name="d2")(x)}
    keras.Model(x, outputs).save(tmp_path / "net.keras")
    source = load(tmp_path / "net.keras")
    assert {spec.name: spec.shape for spec in source.outputs} == {"score": (-1, 2), "age": (-1, 1)}
    shapes = {
        spec.name: array.shape for spec, array in zip(source.outputs, source.predict([np.zeros((3, 4))]), strict=True)
    }
    assert shapes == {"score": (3, 2), "age": (3, 1)}


def test_a_legacy_hdf5_file_is_read(tmp_path: Path, digits_model) -> None:
    import keras

    path = tmp_path / "old.h5"
    keras.models.load_model(digits_model.model).save(path)
    source = load(path)
    x = np.load(digits_model.evaluation)["x"][:8]
    assert source.format == "keras-h5"
    np.testing.assert_allclose(source.predict([x])[0], load(digits_model.model).predict([x])[0], atol=1e-6)


def test_a_sequential_model_is_read(tmp_path: Path) -> None:
    import keras

    keras.Sequential([keras.Input((6,), name="x"), keras.layers.Dense(3, name="y")]).save(tmp_path / "net.keras")
    source = load(tmp_path / "net.keras")
    assert [spec.shape for spec in (*source.inputs, *source.outputs)] == [(-1, 6), (-1, 3)]


def test_a_fixed_batch_of_one_takes_batches_all_the_same(tmp_path: Path) -> None:
    import keras

    x = keras.Input(batch_shape=(1, 6), name="x")
    keras.Model(x, keras.layers.Dense(3, name="y")(x)).save(tmp_path / "net.keras")
    source = load(tmp_path / "net.keras")
    assert source.inputs[0].shape == (1, 6)
    assert source.predict([np.ones((5, 6), np.float32)])[0].shape == (5, 3)
    (tmp_path / "net.onnx").write_bytes(source.onnx())
    assert load(tmp_path / "net.onnx").predict([np.ones((5, 6), np.float32)])[0].shape == (5, 3)


def test_an_empty_batch_gives_empty_answers(digits_model, digits_onnx) -> None:
    assert load(digits_model.model).predict([np.zeros((0, 8, 8, 1))])[0].shape == (0, 10)
    assert load(digits_onnx).predict([np.zeros((0, 1, 8, 8))])[0].shape == (0, 10)


def test_an_old_opset_is_taken_to_17_with_the_same_answers(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    path.write_bytes(old_opset().SerializeToString())
    source = load(path)
    assert [spec.name for spec in (*source.inputs, *source.outputs)] == ["x", "y"]
    model = onnx.load_model_from_string(source.onnx())
    assert opset_of(model) == 17
    assert [value.name for value in model.graph.input] == ["x"]  # IR 3 lists the weight too
    inputs = float_onnx.random_inputs(source.inputs, 2)
    with load_engine("onnx", source.onnx()) as engine:
        np.testing.assert_allclose(engine.run(inputs)[0], source.predict(inputs)[0], atol=1e-5)


@pytest.mark.parametrize("dead", [False, True], ids=["read by nothing", "read by a dead end"])
def test_an_input_that_no_output_depends_on_is_refused(tmp_path: Path, dead: bool) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xzy"]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), *([helper.make_node("Abs", ["z"], ["lost"])] if dead else [])]
    graph = helper.make_graph(nodes, "net", value[:2], value[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match=r"net\.onnx: its input 'z' is unused\. Export .* without it"):
        load(tmp_path / "net.onnx")


def test_an_input_that_only_a_branch_reads_is_used() -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xzy"]
    flag = numpy_helper.from_array(np.array(True), "flag")
    inner = [
        helper.make_graph([helper.make_node("Relu", [name], [f"{name}2"])], name, [],
                          [helper.make_tensor_value_info(f"{name}2", TensorProto.FLOAT, ["N", 3])])
        for name in "xz"
    ]  # fmt: skip
    node = helper.make_node("If", ["flag"], ["y"], then_branch=inner[0], else_branch=inner[1])
    assert float_onnx.unused_inputs(helper.make_graph([node], "net", value[:2], value[2:], [flag])) == []


def test_a_graph_that_changed_its_answers_says_what_was_done_to_it(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "net.onnx").write_bytes(branches("__1", swap=False).SerializeToString())
    moved = "the output 'y' moved by 0.5"
    monkeypatch.setattr(float_onnx, "disagreement", lambda *_: moved)
    with pytest.raises(ConversionError, match=r"rewriting the graph failed: the output 'y' moved by 0\.5"):
        load(tmp_path / "net.onnx").onnx()


def test_counters_and_order_of_an_exporter_leave_no_trace() -> None:
    first, second = branches("__7", swap=False), branches("__912", swap=True)
    for model in (first, second):
        order(model)
        renumber(model)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    onnx.checker.check_model(first)


def test_renaming_moves_a_value_that_is_in_the_way() -> None:
    model = branches("__1", swap=False)
    rename(model, {"x": "a__1"})  # 'a__1' is a value inside
    assert model.graph.input[0].name == "a__1"
    onnx.checker.check_model(model, full_check=True)


def old_opset() -> onnx.ModelProto:
    """Opset 11, IR 3: the weight is listed as an input, and Squeeze still has its axes as an attribute."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((6, 3, 3, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Squeeze", ["p"], ["y"], axes=[2, 3]),
    ]
    graph = helper.make_graph(
        nodes,
        "old",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 3, 3, 3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 6])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=3)


def branches(counter: str, *, swap: bool) -> onnx.ModelProto:
    """y = relu(x) + (x * 2), its two middle nodes in either order and named with a counter."""
    two = numpy_helper.from_array(np.float32(2), f"const{counter}")
    middle = [
        helper.make_node("Relu", ["x"], [f"a{counter}"], name=f"Relu{counter}"),
        helper.make_node("Mul", ["x", two.name], [f"b{counter}"], name=f"Mul{counter}"),
    ]
    add = helper.make_node("Add", [f"a{counter}", f"b{counter}"], ["y"], name="Add")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    graph = helper.make_graph([*(reversed(middle) if swap else middle), add], "net", value[:1], value[1:], [two])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
