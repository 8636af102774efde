"""A drafted contract file is read back as it is, and says what the family's models take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from linear import linear
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.data.describe_contract import describe, stated_keys
from edgekit_converters.data.draft_contract import draft, families, left_to_say
from edgekit_converters.recipe.conversion_errors import ContractFileError
from edgekit_converters.sources.load import load
from edgekit_runtime.contract.spec import DetectionSpec, TensorSpec


def spec(name, *shape, dtype="float32", layout=None):
    return TensorSpec(name, name, dtype, (-1, *shape), layout)


PHOTO = spec("images", 3, 64, 96, layout="NCHW")
GRAY = spec("gray", 32, 32, 1, layout="NHWC")
BYTES = spec("bytes", 32, 32, 3, dtype="uint8", layout="NHWC")
SCORES, BOXES = spec("scores", 5), spec("boxes", 10, 4)
SSD = (BOXES, spec("classes", 10), spec("scores", 10), spec("count"))
SHAPES = {
    "a classifier of photos": ((PHOTO,), (SCORES,)),
    "of gray pictures": ((GRAY,), (SCORES,)),
    "of bytes": ((BYTES,), (SCORES,)),
    "with features beside it": ((PHOTO,), (spec("map", 8, 8), SCORES)),
    "with two vectors": ((PHOTO,), (spec("features", 8), SCORES)),
    "with another input": ((PHOTO, spec("age in years", 1)), (SCORES,)),
    "yolov8": ((PHOTO,), (spec("output0", 7, 126),)),
    "yolov10": ((PHOTO,), (spec("output0", 300, 6),)),
    "a detector": ((PHOTO,), SSD),
    "a detector of bytes": ((BYTES,), SSD),
    "boxes and scores": ((PHOTO,), (BOXES, spec("scores", 10, 3))),
    "a table": ((spec("x", 4),), (SCORES,)),
    "nothing that is known": ((PHOTO,), (spec("a", 3, 3, 3), spec("b", 2, 2))),
}


def model(name):
    inputs, outputs = SHAPES[name]
    return replace(linear(), inputs=inputs, outputs=outputs)


def read(source, like, folder):
    file = folder / "net.contract.toml"
    file.write_text(draft(source, like), encoding="utf-8")
    return describe(source, file)


def test_a_vector_that_is_called_an_embedding_is_no_classifier_s(tmp_path):
    ids, vector = spec("input_ids", 32, dtype="int64"), spec("sentence_embedding", 64)
    contract = read(replace(linear(), inputs=(ids,), outputs=(vector,)), None, tmp_path)
    assert (contract.task, contract.embedding.output) == ("embedding", "sentence_embedding")


@pytest.mark.parametrize("score", [(896, 1), (896,)])
def test_a_score_beside_each_box_is_no_class(tmp_path, score):
    """BlazeFace: 896 anchors with 16 numbers each, and one score. Its best anchor is not a class."""
    anchors, scores = spec("regressors", 896, 16), spec("classificators", *score)
    for outputs in ((anchors, scores), (scores, anchors)):
        source = replace(linear(), inputs=(PHOTO,), outputs=outputs)
        assert read(source, None, tmp_path).task == "raw"
        assert "class" not in " ".join(left_to_say(source, draft(source)))


IDS = [("Gather", ["words", "x"], ["embedded"], {}), ("MatMul", ["embedded", "square"], ["mixed"], {})]
TOKENS = [*IDS, ("Relu", ["mixed"], ["tokens"], {})]
MEAN = [("ReduceMean", ["tokens"], ["mean"], {"axes": [1], "keepdims": 0})]
NETWORKS = {
    "the mean of tokens": ([*TOKENS, *MEAN, ("Identity", ["mean"], ["y"], {})], "embedding"),
    "their sum over a count": (
        [
            *TOKENS,
            ("ReduceSum", ["tokens", "one"], ["sum"], {"keepdims": 0}),
            ("Cast", ["x"], ["mask"], {"to": 1}),
            ("ReduceSum", ["mask", "one"], ["count"], {"keepdims": 1}),
            ("Add", ["count", "tiny"], ["counted"], {}),
            ("Div", ["sum", "counted"], ["y"], {}),
        ],
        "embedding",
    ),
    "the first token": ([*TOKENS, ("Gather", ["tokens", "zero"], ["y"], {"axis": 1})], "embedding"),
    "a projection to length 1": (
        [*TOKENS, *MEAN, ("MatMul", ["mean", "square"], ["v"], {}), ("LpNormalization", ["v"], ["y"], {"axis": -1})],
        "embedding",
    ),
    "scores of the mean": ([*TOKENS, *MEAN, ("Gemm", ["mean", "square"], ["y"], {})], None),
    "a softmax of the mean": ([*TOKENS, *MEAN, ("Softmax", ["mean"], ["y"], {})], None),
    "the mean of each token's scores": (
        [*IDS, ("Add", ["mixed", "bias"], ["tokens"], {}), *MEAN, ("Identity", ["mean"], ["y"], {})],
        None,
    ),
}


def encoder(file, nodes, *, more=()):
    """A network of words, 16 numbers each, to one vector, saved. more: outputs beside it."""
    draw = np.random.default_rng(0)
    constants = {
        "words": draw.normal(size=(2, 16)).astype(np.float32), "square": draw.normal(size=(16, 16)).astype(np.float32),
        "bias": draw.normal(size=16).astype(np.float32), "one": np.array([1]), "zero": np.array(0),
        "tiny": np.array(1e-3, np.float32),
    }  # fmt: skip
    read = {name for _, inputs, _, _ in nodes for name in inputs}
    made = helper.make_graph(
        [helper.make_node(op, inputs, outputs, **attributes) for op, inputs, outputs, attributes in nodes],
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", 6])],
        [
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 6, 16]) for name in more),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in read],
    )
    opset = [helper.make_opsetid("", 17)]
    file.write_bytes(helper.make_model(made, opset_imports=opset, ir_version=9).SerializeToString())
    return file


@pytest.mark.parametrize("case", NETWORKS)
def test_an_encoder_is_known_by_what_its_graph_ends_in(tmp_path, case):
    nodes, task = NETWORKS[case]
    source = load(encoder(tmp_path / "net.onnx", nodes))
    contract = read(source, None, tmp_path)
    stated = stated_keys(tmp_path / "net.contract.toml")
    assert (contract.task if "task" in stated else None) == task
    if task == "embedding":
        assert contract.embedding.output == "y"


def test_the_vector_beside_the_tokens_is_named(tmp_path):
    source = load(encoder(tmp_path / "net.onnx", NETWORKS["the first token"][0], more=("tokens",)))
    contract = read(source, None, tmp_path)
    assert (contract.task, contract.embedding.output) == ("embedding", "y")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("like", [None, *families()])
def test_a_draft_is_accepted_as_it_is(tmp_path, like, name):
    source = model(name)
    if like is not None and name == "a table":
        with pytest.raises(ContractFileError, match="no input of the model is a picture"):
            draft(source, like)
        return
    contract = read(source, like, tmp_path)
    assert (contract.inputs[0].image is not None) == (like is not None)


def test_a_family_is_what_its_exporters_write(tmp_path):
    yolo = read(model("yolov8"), "yolo", tmp_path)
    assert yolo.detection == DetectionSpec("output0", "box scores", "cxcywh", (96, 64), candidates="last")
    assert (yolo.inputs[0].image.resize, yolo.inputs[0].image.std) == ("letterbox", (255.0,) * 3)
    ssd = read(model("a detector"), "ssd", tmp_path).detection
    assert (ssd.boxes, ssd.scores, ssd.classes, ssd.count) == ("boxes", "scores", "classes", "count")
    assert (ssd.format, ssd.span, ssd.suppressed) == ("yxyx", (1.0, 1.0), True)
    torchvision = read(model("a classifier of photos"), "torchvision", tmp_path)
    assert (torchvision.scores, torchvision.inputs[0].image.mean) == ("logits", (123.675, 116.28, 103.53))
    keras = read(model("a classifier of photos"), "keras-app", tmp_path)
    assert (keras.scores, keras.inputs[0].image.mean) == ("probabilities", (127.5,) * 3)


@pytest.mark.parametrize(
    ("name", "offered"), {"boxes and scores": True, "a detector": True, "nothing that is known": False}.items()
)
def test_a_draft_that_cannot_know_boxes_says_which_family_does(name, offered):
    source = model(name)
    text = draft(source)
    assert "raw" in text
    assert any("--like ssd" in hint for hint in left_to_say(source, text)) == offered
    assert not any("--like" in hint for hint in left_to_say(source, draft(source, "ssd")))


def test_a_sequence_that_comes_out_as_it_went_in_is_no_row_of_scores():
    signal = spec("signal", 64, 1)
    source = replace(linear(), inputs=(signal,), outputs=(spec("again", 64, 1),))
    assert 'task = "raw"' in draft(source)
    assert 'task = "classification"' in draft(replace(source, outputs=(spec("scores", 64),)))


def test_a_draft_of_two_heads_says_how_one_is_chosen(tmp_path):
    source = replace(model("a table"), outputs=(spec("topic", 3), spec("tone", 2)))
    text = draft(source)
    (hint,) = left_to_say(source, text)
    assert "'topic' or 'tone'" in hint
    text = text.replace("raw", "classification") + '[classification]\noutput = "tone"\n'
    (tmp_path / "net.contract.toml").write_text(text)
    assert describe(source, tmp_path / "net.contract.toml").outputs[0].name == "tone"


def test_the_output_with_the_classes_is_named(tmp_path):
    contract = read(model("with features beside it"), "torchvision", tmp_path)
    assert [output.name for output in contract.outputs] == ["scores", "map"]


def test_what_the_model_file_says_is_the_draft(tmp_path):
    stated = 'task = "classification"\nlabels = ["a", "b", "c", "d", "e"]\n'
    source = replace(model("a classifier of photos"), stated=stated)
    assert read(source, None, tmp_path) == describe(source, None)
    assert read(source, "torchvision", tmp_path).labels == ("a", "b", "c", "d", "e")
