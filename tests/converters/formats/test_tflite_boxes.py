"""A raw head that ends in TensorFlow's four outputs gives the boxes that the contract gives."""

from __future__ import annotations

from dataclasses import replace

import mirrored
import numpy as np
import pytest
import tiny

from edgekit_converters.formats import tflite_edit
from edgekit_converters.formats.tflite_boxes import end_in_boxes
from edgekit_converters.formats.tflite_sides import append
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.detect import candidates
from edgekit_runtime.engines.registry import load_engine

NUMBERS = mirrored.SIDE**2 * 3
RAW = {name: changes for name, changes in mirrored.DETECTORS.items() if "count" not in changes} | {
    "scores and classes apart": {
        "row": "box", "scores": "scores", "classes": "classes", "format": "xyxy", "background": "first",
        "score_threshold": 0.7, "iou_threshold": 0.2,
    },
    "any overlap suppresses": {"iou_threshold": 0.0, "score_threshold": 0.9},
}  # fmt: skip


def network(contract):
    """A TFLite file whose outputs are its input's numbers, in order; classes are whole."""
    model = tflite_edit.read((tiny.MODELS / "tiny_f32.tflite").read_bytes())
    graph = model.subgraphs[0]
    graph.operators, model.signatureDefs, taken = [], [], int(graph.inputs[0])
    graph.tensors[taken].shape = np.int32([1, NUMBERS])
    at, ends = 0, []
    for output in contract.outputs:
        size = int(np.prod(output.shape))
        part = append(model, "SLICE", [taken, [0, at], [1, size]], (1, size))
        if output.name == "classes":
            part = append(model, "FLOOR", [append(model, "MUL", [part, [mirrored.CLASSES + 1.0]])])
        ends.append(append(model, "RESHAPE", [part, [1, *output.shape]], (1, *output.shape)))
        at += size
    graph.outputs = ends
    return model


def answers(model, numbers):
    with load_engine("tflite", tflite_edit.write(model)) as engine:
        return engine.run([numbers])


@pytest.mark.parametrize("kind", RAW)
def test_the_boxes_are_those_of_the_contract(tmp_path, kind):
    changes = RAW[kind]
    path = mirrored.detector(tmp_path, mirrored.image(resize="stretch"), stated="classes" in changes, **changes)
    contract = read_bundle(path).manifest.contract
    names = [output.name for output in contract.outputs]
    raw, model = network(contract), network(contract)
    end_in_boxes(model, contract.detection, names, mirrored.CLASSES)
    found = 0
    for seed in range(4):
        numbers = np.random.default_rng(seed).random((1, NUMBERS), np.float32)
        wanted = candidates(dict(zip(names, answers(raw, numbers), strict=True)), contract)
        boxes, classes, scores, count = answers(model, numbers)
        many = int(count[0])
        corners = boxes[0, :many][:, [1, 0, 3, 2]] * mirrored.SIDE
        seen = (wanted.corners[:, 2:] > wanted.corners[:, :2]).all(axis=1)  # `detect.boxes` shows no others
        assert classes[0, :many].tolist() == wanted.classes[seen].tolist()
        np.testing.assert_allclose(scores[0, :many], wanted.scores[seen], rtol=1e-5)
        np.testing.assert_allclose(corners, wanted.corners[seen].clip(0, mirrored.SIDE), atol=1e-3)
        found += many
    assert found > 3


def test_another_threshold_gives_other_boxes(tmp_path):
    contract = read_bundle(mirrored.detector(tmp_path, score_threshold=0.5)).manifest.contract
    numbers = np.random.default_rng(1).random((1, NUMBERS), np.float32)
    counts = []
    for threshold in (0.5, 0.9):
        model = network(contract)
        end_in_boxes(model, replace(contract.detection, score_threshold=threshold), ["out"], mirrored.CLASSES)
        counts.append(int(answers(model, numbers)[3][0]))
    assert counts[0] > counts[1] > 0
