"""An output whose size depends on what is in the input: a contract's sizes are fixed, so the model is refused."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.data.open import open_dataset
from edgekit_converters.fidelity.reference import reference
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources.isolated import open_isolated
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions

pytestmark = pytest.mark.convert

SIDE = 8
CELLS = SIDE * SIDE


def node(op: str, inputs: str, output: str, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


def saved(path: Path, nodes, constants: dict, *, batch: str | int, output: list, shape=(3, SIDE, SIDE)) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, *shape])],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def detector(path: Path, form: str) -> Path:
    """A box in every cell, whose score is the cell's grey: of zeros the suppression keeps exactly one box."""
    rows, columns = (axis.reshape(-1) * 10 for axis in np.mgrid[:SIDE, :SIDE])
    grid = np.stack([rows, columns, rows + 5, columns + 5], axis=1).astype(np.float32)
    bias = np.array([0.6, *[-5] * (CELLS - 1)], np.float32)
    constants = {
        "mean": np.full((1, 3, 1, 1), 1 / 3, np.float32),
        "flat": np.array([1, 1, CELLS]),
        "bias": bias,
        "boxes": grid[None],
        "grid": grid,
        "many": np.array([100]),
        "half": np.array([0.5], np.float32),
        "two": np.array([2]),
        "three": np.array([3]),
        "one": np.array([1]),
        "all": np.array([-1]),
        "zero": np.array([0]),
        "ten": np.array([10]),
        "nothing": np.zeros((10, 5), np.float32),
    }
    nodes = [
        node("Conv", "image mean", "map"),
        node("Reshape", "map flat", "grey"),
        node("Add", "grey bias", "scores"),
        node("NonMaxSuppression", "boxes scores many half half", "kept"),
        node("Slice", "kept two three one", "column"),
        node("Reshape", "column all", "places"),
        node("Gather", "grid places", "best"),
        node("Reshape", "scores all", "every"),
        node("Gather", "every places", "score"),
        node("Unsqueeze", "score one", "scored"),
        node("Concat", "best scored", "rows", axis=1),
    ]
    if form == "rows":
        nodes[-1].output[0] = "found"
        return saved(path, nodes, constants, batch=1, output=["n", 5])
    if form == "padded":
        nodes += [node("Concat", "rows nothing", "padded", axis=0), node("Slice", "padded zero ten", "ten_rows")]
        nodes += [node("Unsqueeze", "ten_rows zero", "found")]
    else:
        nodes += [node("Unsqueeze", "rows zero", "found")]
    return saved(path, nodes, constants, batch=1 if form != "batch" else "batch", output=[1, "n", 5])


@pytest.mark.parametrize("form", ["rows", "item", "batch"])
def test_a_graph_with_suppression_is_refused_with_the_command_that_makes_it_without(tmp_path: Path, form: str) -> None:
    path = detector(tmp_path / "it's a net.onnx", form)
    with pytest.raises(SourceError, match="the size of its output 'found' depends on the input") as caught:
        load(path)
    said, command = caught.value.do.split(": ", 1)
    assert said == "Export it without NonMaxSuppression, which edgekit does itself"
    program, *arguments = shlex.split(command)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
    source = load(tmp_path / "it's a net-no-nms.onnx")
    assert [spec.name for spec in source.outputs] == ["scores"]
    image = np.random.default_rng(0).uniform(0, 1, (1, 3, SIDE, SIDE)).astype(np.float32)
    [scores] = source.predict([image])
    np.testing.assert_allclose(scores[0, 0, 1:], image.mean(axis=1).reshape(-1)[1:] - 5, atol=1e-5)


def test_of_ultralytics_the_command_is_its_own(tmp_path: Path) -> None:
    model = onnx.load(detector(tmp_path / "yolo11n.onnx", "rows"))
    onnx.helper.set_model_props(model, {"names": "{0: 'spot'}", "stride": "32", "task": "detect"})
    onnx.save(model, tmp_path / "yolo11n.onnx")
    with pytest.raises(SourceError) as caught:
        load(tmp_path / "yolo11n.onnx")
    assert "yolo export model=yolo11n.pt format=onnx nms=False" in caught.value.do


def test_a_suppression_that_is_padded_to_a_fixed_size_is_taken(tmp_path: Path) -> None:
    source = load(detector(tmp_path / "net.onnx", "padded"))
    assert [spec.shape for spec in source.outputs] == [(1, 10, 5)]


def choice(path: Path, threshold: float) -> Path:
    """The numbers above the threshold, and one that is always there: no suppression, and none is needed to vary."""
    constants = {"limit": np.array(threshold, np.float32), "row": np.array([-1]), "zero": np.array([0])}
    constants["always"] = np.array([7], np.float32)
    nodes = [
        node("Reshape", "image row", "numbers"),
        node("Greater", "numbers limit", "above"),
        node("Compress", "numbers above", "chosen"),
        node("Concat", "always chosen", "row_of", axis=0),
        node("Unsqueeze", "row_of zero", "found"),
    ]
    return saved(path, nodes, constants, batch=1, output=[1, "n"], shape=(6,))


def test_noise_shows_what_zeros_do_not(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"depends on the input: \[1, \d\] for one, \[1, 1\] for another"):
        load(choice(tmp_path / "net.onnx", 0.5))


def test_items_of_the_evaluation_set_show_what_no_noise_does(tmp_path: Path) -> None:
    source = load(choice(tmp_path / "net.onnx", 1000.0))
    items = np.zeros((5, 6), np.float32)
    items[3, 2:4] = 2000
    np.save(tmp_path / "items.npy", items)
    contract = describe(source, None)
    with pytest.raises(SourceError, match=r"'found' depends on the input: \[1, 3\] for one, \[1, 1\] for another"):
        reference(source, contract, open_dataset(tmp_path / "items.npy", contract))


@pytest.mark.slow
def test_a_saved_model_that_chooses_is_refused_behind_the_wall(tmp_path: Path) -> None:
    import tensorflow as tf

    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([1, 6], tf.float32, name="x")])
        def __call__(self, x):
            kept = tf.boolean_mask(x[0], x[0] > 0.5)
            return {"found": tf.concat([[7.0], kept], axis=0)[None]}

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), signatures=net.__call__)
    with pytest.raises(SourceError, match="the size of its output 'found' depends on the input"):
        open_isolated(tmp_path / "net", LoadOptions())
