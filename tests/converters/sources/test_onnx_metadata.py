"""What Ultralytics and others write into an ONNX file becomes a contract; what does not fit is not used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit_converters.data.describe_contract import describe
from edgekit_converters.recipe.conversion_errors import SourceError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_runtime.contract.spec import DetectionSpec, ImageSpec

pytestmark = pytest.mark.convert

SAID = {
    "description": "Ultralytics YOLO11n model trained on spots.yaml",
    "stride": "32",
    "task": "detect",
    "batch": "1",
    "imgsz": "[64, 96]",
    "names": "{0: 'red', 1: \"it's green\", 2: 'blue (dark)'}",
    "args": "{'batch': 1, 'nms': False}",
}
NAMES = ("red", "it's green", "blue (dark)")


def detector(folder: Path, rows: int, columns: int, said: dict[str, str], sides=(64, 96), classes: int = 0) -> Path:
    """One output [1, rows, columns], or [1, classes]: the picture's mean times a weight."""
    shape = [1, classes] if classes else [1, rows, columns]
    weights = np.random.default_rng(0).uniform(1, 9, shape).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "weights"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, *sides])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, said)
    path = folder / "yolo.onnx"
    path.write_bytes(model.SerializeToString())
    return path


HEADS = [
    ("yolov8", 7, 126, SAID, DetectionSpec("output0", "box scores", "cxcywh", (96, 64), candidates="last")),
    ("yolov8 turned", 126, 7, SAID, DetectionSpec("output0", "box scores", "cxcywh", (96, 64))),
    (
        "yolov5",
        378,
        8,
        {key: SAID[key] for key in ("stride", "names")},
        DetectionSpec("output0", "box objectness scores", "cxcywh", (96, 64)),
    ),
    ("yolov10", 300, 6, SAID, DetectionSpec("output0", "box score class", "xyxy", (96, 64), suppressed=True)),
    (
        "yolov8, two classes",
        6,
        126,
        {**SAID, "names": "{0: 'a', 1: 'b'}"},
        DetectionSpec("output0", "box scores", "cxcywh", (96, 64), candidates="last"),
    ),
]


@pytest.mark.parametrize(("rows", "columns", "said", "head"), [row[1:] for row in HEADS], ids=[row[0] for row in HEADS])
def test_a_detectors_metadata_is_its_contract(tmp_path: Path, rows: int, columns: int, said, head) -> None:
    source = load(detector(tmp_path, rows, columns, said))
    contract = describe(source, None)
    assert contract.inputs[0].image == ImageSpec(64, 96, (0.0,) * 3, (255.0,) * 3, resize="letterbox")
    assert (contract.task, contract.detection) == ("detection", head)
    assert contract.labels == (("a", "b") if "'a'" in said["names"] else NAMES)
    assert source.notes == ()


def test_a_contract_file_beside_the_model_always_wins(tmp_path: Path) -> None:
    source = load(detector(tmp_path, 7, 126, SAID))
    file = tmp_path / "yolo.contract.toml"
    file.write_text('task = "raw"\n')
    contract = describe(source, file)
    assert (contract.task, contract.labels, contract.inputs[0].image) == ("raw", None, None)


def test_a_classifier_is_cut_out_of_the_middle(tmp_path: Path) -> None:
    source = load(detector(tmp_path, 0, 0, {**SAID, "task": "classify"}, classes=3))
    contract = describe(source, None)
    assert (contract.task, contract.labels) == ("classification", NAMES)
    assert contract.inputs[0].image == ImageSpec(64, 96, (0.0,) * 3, (255.0,) * 3, resize="center-crop")


def test_masks_and_poses_are_raw_and_their_pictures_are_known(tmp_path: Path) -> None:
    contract = describe(load(detector(tmp_path, 56, 126, {**SAID, "task": "pose"})), None)
    assert (contract.task, contract.labels) == ("raw", None)
    assert contract.inputs[0].image.resize == "letterbox"


@pytest.mark.parametrize("names", ["['cat', 'dog', 'newt']", "cat, dog, newt", "cat\ndog\nnewt\n"])
def test_classes_alone_are_the_labels_of_a_classifier_and_no_more(tmp_path: Path, names: str) -> None:
    contract = describe(load(detector(tmp_path, 0, 0, {"classes": names}, classes=3)), None)
    assert (contract.task, contract.labels) == ("classification", ("cat", "dog", "newt"))
    assert contract.inputs[0].image is None


@pytest.mark.parametrize(
    "names",
    [
        "{0: 'a', 2: 'b', 3: 'c'}",
        "{0: __import__('os').system('true'), 1: 'b', 2: 'c'}",
        "{0: 'a', 1: 'b', 2: 'c'",
        "[" * 50_000,
        "[" + "0, " * 50_000 + "]",
        "{0: {0: 'a'}, 1: 'b', 2: 'c'}",
        "{0: 'a', 1: 'b', 2: 9" + "9" * 5000 + "}",
        "{0: 'a', 1: 'b', 2: 'c\x07'}",
        "{0: 'a', 1: 'b', 2: ' '}",
        "{0: 'a' 'b', 1: 'b', 1: 'c'}",
        "{0: 'a', 1: 'b', 2: '" + "c" * 300_000 + "'}",
    ],
    ids=lambda text: text[:24],
)
def test_names_that_are_no_names_are_not_used_and_why_is_said(tmp_path: Path, names: str) -> None:
    source = load(detector(tmp_path, 7, 126, {**SAID, "names": names}))
    assert source.stated == ""
    assert [note.code for note in source.notes] == ["metadata-unused"]
    assert describe(source, None).task == "raw"


def test_names_of_another_number_of_classes_are_not_used(tmp_path: Path) -> None:
    source = load(detector(tmp_path, 84, 126, SAID))
    assert source.stated == ""
    assert "names 3 classes, and no output has boxes of so many: 'output0' [84, 126]" in source.notes[0].what


def test_the_error_for_a_free_axis_proposes_the_size_that_the_file_names(tmp_path: Path) -> None:
    path = detector(tmp_path, 7, 126, SAID, sides=("height", "width"))
    with pytest.raises(SourceError, match="such as --shape images=1,3,64,96") as caught:
        load(path)
    assert "224" not in str(caught.value)
    source = load(path, LoadOptions(shapes={"images": (1, 3, 64, 96)}))
    assert describe(source, None).detection is not None


@pytest.mark.parametrize("imgsz", ["640", "[320]", "[9999999, 640]", "[640, 640, 3]", "nothing", "[0, 0]"])
def test_sizes_that_are_none_propose_nothing(tmp_path: Path, imgsz: str) -> None:
    path = detector(tmp_path, 7, 126, {**SAID, "imgsz": imgsz}, sides=("height", "width"))
    sides = {"640": "640,640", "[320]": "320,320"}.get(imgsz, "224,224")
    with pytest.raises(SourceError, match=f"such as --shape images=1,3,{sides}"):
        load(path)
