"""What --shape and --constant make of an ONNX graph, states that go in and out, and weights that are no numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources import float_onnx
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.shapes import state_pairs
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import load_engine

pytestmark = pytest.mark.convert

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def save(folder: Path, nodes, inputs, outputs, weights=(), opset: int = 17) -> Path:
    """inputs, outputs: name -> (dtype, shape)."""
    values = [[helper.make_tensor_value_info(n, *spec) for n, spec in side.items()] for side in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(weights).items()]
    graph = helper.make_graph(nodes, "net", *values, tensors)
    path = folder / "net.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def agree(source) -> None:
    inputs = float_onnx.random_inputs(source.inputs, 3 if source.inputs[0].free_batch else 1, seed=5)
    with load_engine("onnx", source.onnx()) as engine:
        assert [spec.name for spec in engine.inputs] == [spec.name for spec in source.inputs]
        for got, want in zip(engine.run(inputs), source.predict(inputs), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_one_shape_pins_every_input_that_shares_its_axes(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        [helper.make_node("Mul", ["tokens", "mask"], ["y"])],
        {"tokens": (FLOAT, ["batch", "length"]), "mask": (FLOAT, ["batch", "length"])},
        {"y": (FLOAT, ["batch", "length"])},
    )
    with pytest.raises(SourceError, match=r"'tokens' \[\?, \?\].*Pin them.*: --shape tokens=1,128 --shape mask=1,128"):
        load(path)
    source = load(path, LoadOptions(shapes={"tokens": (1, 9)}))
    assert [spec.shape for spec in (*source.inputs, *source.outputs)] == [(-1, 9)] * 3
    assert source.sha256 != load(path, LoadOptions(shapes={"tokens": (1, 8)})).sha256
    agree(source)


def test_a_fixed_batch_is_pinned_to_one_only_where_the_answers_stay(tmp_path: Path) -> None:
    inputs, outputs = {"x": (FLOAT, [4, 3])}, {"y": (FLOAT, [4, 3])}
    one = LoadOptions(shapes={"x": (1, 3)})
    path = save(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], inputs, outputs)
    with pytest.raises(SourceError, match=r"a fixed batch of 4\. Try --shape x=1,3"):
        load(path)
    source = load(path, one)
    assert source.inputs[0].shape == (1, 3)
    agree(source)
    mixed = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    with pytest.raises(SourceError, match="its batch of 4 is built into the graph"):
        load(save(tmp_path, mixed, inputs, outputs), one)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            LoadOptions(shapes={"y": (1, 3)}),
            "--shape names the input 'y', which the model does not have. Its inputs: x, rate",
        ),
        (LoadOptions(shapes={"x": (1, 4)}), "in the model it is fixed at 3"),
        (LoadOptions(constants={"speed": 1}), "--constant names the input 'speed'"),
        (LoadOptions(constants={"rate": 0.5}), "to 0.5, which is not a valid int64"),
        (LoadOptions(), "'rate' is a scalar: it has no batch axis. Fix its value with --constant rate=NUMBER"),
        (LoadOptions(signature="serve"), "--signature is for SavedModel folders, and this is an onnx model"),
    ],
)
def test_options_that_do_not_fit_say_what_would(tmp_path: Path, options: LoadOptions, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        load(branching(tmp_path), options)
    assert says in str(caught.value)


def branching(folder: Path) -> Path:
    """y = relu(x) where rate is 16000, else -x."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [f"{op}_y"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_y", FLOAT, ["N", 3])],
        )
        for op in ("Relu", "Neg")
    ]
    nodes = [
        helper.make_node("Equal", ["rate", "fast"], ["is_fast"]),
        helper.make_node("If", ["is_fast"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = {"x": (FLOAT, ["N", 3]), "rate": (INT64, [])}
    return save(folder, nodes, inputs, {"y": (FLOAT, ["N", 3])}, {"fast": np.int64(16000)})


@pytest.mark.parametrize(("rate", "answer"), [(16000, [[0, 2, 0]]), (8000, [[1, -2, 3]])])
def test_a_constant_decides_the_branches_and_is_gone(tmp_path: Path, rate: int, answer: list[list[float]]) -> None:
    source = load(branching(tmp_path), LoadOptions(constants={"rate": rate}))
    assert [spec.name for spec in source.inputs] == ["x"]
    assert source.predict([np.array([[-1, 2, -3]], np.float32)])[0].tolist() == answer
    assert "If" not in {node.op_type for node in onnx.load_model_from_string(source.onnx()).graph.node}
    agree(source)


def test_a_state_with_its_layers_first_gets_a_batch_and_its_pair_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"W": (2, 12, 4), "R": (2, 12, 3), "B": (2, 24)}
    nodes = [
        helper.make_node(
            "GRU", ["x", "W", "R", "B", "", "state"], ["all", "stateN"], hidden_size=3, direction="bidirectional"
        ),
        helper.make_node("ReduceMean", ["all"], ["y"], axes=[0, 1, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["y", "last"], ["score"]),
    ]
    arrays = {
        name: rng.standard_normal((2, *(9 if n == 12 else 18 if n == 24 else n for n in shape[1:]))).astype(np.float32)
        for name, shape in weights.items()
    }
    path = save(
        tmp_path,
        [helper.make_node("Transpose", ["sound"], ["x"], perm=[1, 0, 2]), *nodes],
        {"sound": (FLOAT, ["N", 5, 4]), "state": (FLOAT, [2, "N", 3])},
        {"score": (FLOAT, ["N", 1]), "stateN": (FLOAT, [2, "N", 3])},
        {**arrays, "last": np.array([1])},
    )
    source = load(path)
    assert (source.state, source.state_pairs) == ("explicit", (("state", "stateN"),))
    assert {spec.name: spec.shape for spec in (*source.inputs, *source.outputs)} == {
        "sound": (1, 5, 4), "state": (1, 2, 1, 3), "score": (1, 1), "stateN": (1, 2, 1, 3),
    }  # fmt: skip
    assert [note.code for note in source.notes] == ["explicit-state"]
    sound, state = float_onnx.random_inputs(source.inputs, 1)
    with load_engine("onnx", path.read_bytes()) as engine:
        score, after = engine.run([sound, state[0]])
    got = source.predict([sound, state])
    np.testing.assert_allclose(got[0], score, atol=1e-6)
    np.testing.assert_allclose(got[1], after[None], atol=1e-6)
    agree(source)


@pytest.mark.parametrize(
    ("name", "output", "found"),
    [
        ("state", "stateN", True),
        ("state_in", "state_out", True),
        ("h0", "hn", True),
        ("prev_cache", "new_cache", True),
        ("HiddenState", "hidden_state_out", True),
        ("image", "image_out", False),
        ("h0", "cn", False),
        ("state_1a", "output", False),
    ],
)
def test_a_state_is_known_by_its_name_and_shape(name: str, output: str, found: bool) -> None:
    spec = lambda called: TensorSpec(called, called, "float32", (-1, 8))
    inputs, outputs = [spec("x"), spec(name)], [TensorSpec("y", "y", "float32", (-1, 1)), spec(output)]
    assert state_pairs(inputs, outputs) == (((name, output),) if found else ())


def test_damaged_weights_are_refused_by_name_and_masks_are_not(tmp_path: Path) -> None:
    ends = {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, ["N", 3])}
    kernel = np.eye(3, dtype=np.float32)
    kernel[0, 1] = np.nan
    with pytest.raises(SourceError, match="the weights 'kernel' are damaged: 1 of 9 values are NaN"):
        load(save(tmp_path, [helper.make_node("MatMul", ["x", "kernel"], ["y"])], *ends, {"kernel": kernel}))
    kernel[0, 1] = np.inf
    with pytest.raises(SourceError, match="1 of 9 values are infinite"):
        load(save(tmp_path, [helper.make_node("MatMul", ["x", "kernel"], ["y"])], *ends, {"kernel": kernel}))
    mask = np.array([0, 0, -np.inf], np.float32)
    nodes = [helper.make_node("Add", ["x", "mask"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])]
    agree(load(save(tmp_path, nodes, *ends, {"mask": mask})))


def test_a_constant_node_is_a_weight_like_any_other(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.array([[np.nan]], np.float32), "")
    nodes = [helper.make_node("Constant", [], ["k"], value=value), helper.make_node("MatMul", ["x", "k"], ["y"])]
    with pytest.raises(SourceError, match="the weights 'k' are damaged"):
        load(save(tmp_path, nodes, {"x": (FLOAT, ["N", 1])}, {"y": (FLOAT, ["N", 1])}, opset=11))


def test_an_already_quantized_graph_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    ends = {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, ["N", 3])}
    with pytest.raises(SourceError, match="already quantized"):
        load(save(tmp_path, nodes, *ends, {"s": np.float32(0.1)}))


def test_an_output_that_is_called_as_a_layer_says_how_to_export_it_again(tmp_path: Path) -> None:
    """As torch.onnx writes it where output_names has the name of an nn.Embedding."""
    nodes = [helper.make_node("Relu", ["x"], ["embedding"]), helper.make_node("Neg", ["embedding"], ["embedding"])]
    path = save(tmp_path, nodes, {"x": (FLOAT, [1, 4])}, {"embedding": (FLOAT, [1, 4])})
    with pytest.raises(SourceError, match="two of its values share the name 'embedding'") as caught:
        load(path)
    assert "output_names" in caught.value.do
