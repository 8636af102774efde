"""What a contract file may say, and how it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from linear import linear

from edgekit_converters.data.describe_contract import describe, detect_scores, find_contract_file, settle, stated_keys
from edgekit_converters.recipe.conversion_errors import ContractFileError
from edgekit_runtime.contract.spec import (
    Contract,
    DetectionSpec,
    EmbeddingSpec,
    ImageSpec,
    InputContract,
    OutputContract,
    TensorSpec,
)
from edgekit_runtime.system.strict_json import to_json

PICTURES = linear((-1, 8, 6, 3), layout="NHWC")
IMAGE = '[input]\nkind = "image"\nmean = 0\nstd = 255\n'


def write(folder: Path, text: str, name: str = "model.contract.toml") -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def two_inputs():
    one = linear()
    return replace(
        one, inputs=(TensorSpec("left", "l", "float32", (-1, 4)), TensorSpec("right", "r", "float32", (-1, 2)))
    )


def test_a_complete_file_says_everything(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\ndog\nnewt\n", encoding="utf-8")
    file = write(
        tmp_path,
        'task = "classification"\nlabels = "labels.txt"\nscores = "logits"\n[input]\nkind = "image"\ncolor = "bgr"\n'
        'resize = "center-crop"\ncrop = 0.875\ninterpolation = "bicubic"\nmean = [1, 2.5, 3]\nstd = 128\n',
    )
    image = ImageSpec(8, 6, (1.0, 2.5, 3.0), (128.0,) * 3, "bgr", "center-crop", 0.875, "bicubic")
    assert describe(PICTURES, file) == Contract(
        task="classification",
        inputs=(InputContract("x", (8, 6, 3), "float32", image),),
        outputs=(OutputContract("scores", (3,), "float32"),),
        labels=("cat", "dog", "newt"),
        scores="logits",
    )


def test_size_and_grey_come_from_the_model_whatever_its_layout(tmp_path):
    contract = describe(linear((-1, 1, 8, 6), layout="NCHW"), write(tmp_path, IMAGE))
    assert contract.inputs[0].shape == (8, 6, 1)
    assert contract.inputs[0].image == ImageSpec(8, 6, (0.0,), (255.0,), "gray")


def test_without_a_file_an_image_shaped_input_stays_a_tensor():
    contract = describe(PICTURES, None)
    assert contract.inputs == (InputContract("x", (8, 6, 3), "float32"),)
    assert (contract.task, contract.labels, contract.scores) == ("classification", None, None)


@pytest.mark.parametrize(
    ("outputs", "task"),
    [
        ([("float32", (-1, 3))], "classification"),
        ([("float32", (-1, 1))], "raw"),
        ([("int64", (-1, 3))], "raw"),
        ([("float32", (-1, 7, 3))], "raw"),
        ([("float32", (-1, -1))], "raw"),
        ([("float32", (-1, 3)), ("float32", (-1, 3))], "raw"),
    ],
)
def test_one_float_vector_is_a_classifier_and_all_else_is_raw(outputs, task):
    specs = tuple(TensorSpec(f"out{i}", "t", dtype, shape) for i, (dtype, shape) in enumerate(outputs))
    assert describe(replace(linear(), outputs=specs), None).task == task


def test_a_classifier_with_axes_of_one_beside_the_classes_can_be_declared(tmp_path):
    source = replace(linear(), outputs=(TensorSpec("scores", "t", "float32", (-1, 1, 1, 3)),))
    assert describe(source, None).task == "raw"
    contract = describe(source, write(tmp_path, 'task = "classification"\nlabels = ["a", "b", "c"]\n'))
    assert contract.labels == ("a", "b", "c")


def test_several_inputs_are_described_by_name_and_the_rest_stay_tensors(tmp_path):
    contract = describe(two_inputs(), write(tmp_path, '[inputs.right]\nkind = "tensor"\n'))
    assert [spec.shape for spec in contract.inputs] == [(4,), (2,)]


def test_labels_may_have_a_byte_order_mark_and_windows_line_ends(tmp_path):
    (tmp_path / "labels.txt").write_bytes("\ufeffcat\r\nÄffchen\r\nnewt\r\n\r\n".encode())
    assert describe(linear(), write(tmp_path, 'labels = "labels.txt"')).labels == ("cat", "Äffchen", "newt")


def test_a_uint8_model_needs_no_mean_and_std(tmp_path):
    source = replace(PICTURES, inputs=(replace(PICTURES.inputs[0], dtype="uint8"),))
    image = describe(source, write(tmp_path, '[input]\nkind = "image"\n')).inputs[0].image
    assert (image.mean, image.std) == ((0.0,) * 3, (1.0,) * 3)


REFUSED = {
    "unknown key": ('tsk = "raw"', "tsk: is not a key of the format. Did you mean 'task'?"),
    "unknown key of an input": (IMAGE + "meen = 1", "[input] meen: is not a key of the format. Did you mean 'mean'?"),
    "labels below a table": (
        IMAGE + "labels = ['a', 'b', 'c']",
        "[input] labels: is not a key of the format. Write it above the first [table]",
    ),
    "a detector that says nothing of its boxes": ('task = "detection"', "detection: is missing"),
    "a detector's table for a classifier": (
        '[detection]\nformat = "xyxy"',
        "detection: has no meaning for a model whose",
    ),
    "scores of a detector": ('task = "detection"\nscores = "logits"', "Write activation in [detection]"),
    "a vector's table for a raw model": ('task = "raw"\n[embedding]', "embedding: has no meaning for a model whose"),
    "a vector that is not there": ('task = "embedding"\n[embedding]\noutput = "vec"', "has no output 'vec'"),
    "a truth value that is text": (
        'task = "embedding"\n[embedding]\nnormalize = "yes"',
        "normalize: is a string, not true or false",
    ),
    "a wrong task": ("task = 3", "task: is a whole number, not a string"),
    "a list where a word belongs": ("task = ['raw']", "task: is a list, not a string"),
    "labels of another type": ("labels = 3", "labels: is neither a file's name nor a list of names"),
    "labels of mixed types": ("labels = ['a', 2, 'c']", "labels: is neither a file's name nor a list of names"),
    "too few labels": ("labels = ['a', 'b']", "labels: the list has 2 labels and the output 'scores' has 3 classes"),
    "one label too many": ("labels = ['a', 'b', 'c', 'd']", "background class"),
    "labels of a raw model": ("task = 'raw'\nlabels = ['a', 'b', 'c']", "labels: a model whose task is raw"),
    "scores of a raw model": ("task = 'raw'\nscores = 'logits'", "scores: a model whose task is raw"),
    "a label file that is not there": ("labels = 'nowhere.txt'", "nowhere.txt: the label file named by"),
    "a label file that no system allows": ('labels = "a\\u0000b"', "cannot be read"),
    "a label file that is a folder": ("labels = '.'", "cannot be read: Is a directory"),
    "brackets without end": ("task = " + "[" * 5000, "not valid TOML"),
    "a table that is a number": ("input = 3", "input: is a whole number, not a table"),
    "no kind": ("[input]\nmean = 0", '[input] kind: is missing. Write kind = "image" or kind = "tensor"'),
    "image keys of a tensor": ('[input]\nkind = "tensor"\nmean = 0', "[input] mean: has no meaning"),
    "no mean": ('[input]\nkind = "image"\nstd = 1', "[input] mean: is missing. Say what the model was trained on"),
    "no std": ('[input]\nkind = "image"\nmean = 1', "[input] std: is missing"),
    "std 0": ('[input]\nkind = "image"\nmean = 1\nstd = [1, 0, 1]', "[input] std: 0 would divide by zero"),
    "two means for three channels": (
        IMAGE.replace("mean = 0", "mean = [0, 1]"),
        "mean: has 2 numbers, not 3. Write 3 numbers, or one for all",
    ),
    "mean that is text": (IMAGE.replace("mean = 0", 'mean = "0"'), "[input] mean: is a string, not a number"),
    "mean that is a truth value": (
        IMAGE.replace("mean = 0", "mean = true"),
        "[input] mean: is a boolean, not a number",
    ),
    "mean that is not finite": (IMAGE.replace("mean = 0", "mean = nan"), "[input] mean: is not a finite number"),
    "a negative std": (IMAGE.replace("std = 255", "std = -1"), "[input] std: -1 is not a standard deviation of pixels"),
    "a std of nearly nothing": (
        IMAGE.replace("std = 255", "std = 1e-300"),
        "std: 1e-300 is not a standard deviation of pixels",
    ),
    "a std beyond measure": (IMAGE.replace("std = 255", "std = [1, 1, 1e7]"), "use 1e-06 to 1e+06"),
    "a mean beyond any pixel": (IMAGE.replace("mean = 0", "mean = 1e300"), "mean: 1e+300 is beyond any pixel"),
    "a mean of 400 digits": (IMAGE.replace("mean = 0", "mean = " + "9" * 400), "mean: is not a finite number"),
    "a mean of 5000 digits": (IMAGE.replace("mean = 0", "mean = " + "9" * 5000), "not valid TOML"),
    "a crop that is text": (IMAGE + 'crop = "big"', "[input] crop: is a string, not a number"),
    "no name of a label file": ('labels = ""', "labels: is empty. Write labels"),
    "grey for three channels": (IMAGE + 'color = "gray"', '[input] color: "gray" does not fit'),
    "an unknown colour": (IMAGE + 'color = "cmyk"', "[input] color: is 'cmyk', not one of rgb, bgr, gray"),
    "a crop above 1": (IMAGE + 'resize = "center-crop"\ncrop = 87.5', "[input] crop: 87.5 is not a fraction"),
    "a crop of nothing": (IMAGE + "crop = 0.8", '[input] crop: has no meaning with resize = "stretch"'),
    "input and inputs": (IMAGE + "[inputs.x]\nkind = 'tensor'", "inputs: stands beside [input]"),
    "an input the model lacks": (
        "[inputs.y]\nkind = 'tensor'",
        "[inputs] y: the model has no input 'y'. Its inputs: x",
    ),
    "bad TOML": ("task = ", "not valid TOML"),
    "not UTF-8": (b"task = '\xff'", "the contract file is not UTF-8 (byte 8)"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_bad_file_is_an_error_that_names_file_key_and_remedy(tmp_path, text, message):
    file = write(tmp_path, text)
    with pytest.raises(ContractFileError) as caught:
        describe(PICTURES, file)
    assert message in str(caught.value)
    assert str(tmp_path) in caught.value.where


def test_every_mistake_of_a_file_is_told_at_once_and_none_that_follows_from_another(tmp_path):
    text = 'tsk = "raw"\nlabels = 3\n[input]\nkind = "image"\ncolor = "cmyk"\ncrop = "big"\nmean = 0\nstd = [1, 0, 1]\n'
    file = write(tmp_path, text)
    with pytest.raises(ContractFileError, match="5 mistakes: tsk: is not a key") as caught:
        describe(PICTURES, file)
    told = sorted(str(one).removeprefix(f"{file}: ").split(": ")[0] for one in caught.value.mistakes)
    assert told == ["[input] color", "[input] crop", "[input] std", "labels", "tsk"]


def test_one_number_is_asked_for_in_the_singular(tmp_path):
    grey = linear((-1, 8, 6, 1), layout="NHWC")
    with pytest.raises(ContractFileError, match=r"mean: has 2 numbers, not 1\. Write one number$"):
        describe(grey, write(tmp_path, IMAGE.replace("mean = 0", "mean = [0, 1]")))


def test_a_missing_file_and_an_empty_label_line_are_named(tmp_path):
    with pytest.raises(ContractFileError, match="does not exist"):
        describe(PICTURES, tmp_path / "none.contract.toml")
    (tmp_path / "labels.txt").write_text("cat\n\nnewt\n")
    with pytest.raises(ContractFileError, match="line 2 is empty"):
        describe(PICTURES, write(tmp_path, 'labels = "labels.txt"'))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (linear((-1, 4)), "has shape [?, 4], which is not a picture's"),
        (linear((-1, 8, 8, 4), layout="NHWC"), "has 4 channels"),
        (replace(PICTURES, inputs=(TensorSpec("x", "x", "float32", (-1, -1, -1, 3), "NHWC"),)), "leaves its size free"),
    ],
)
def test_an_image_must_fit_the_models_input(tmp_path, source, message):
    with pytest.raises(ContractFileError) as caught:
        describe(source, write(tmp_path, IMAGE))
    assert message in str(caught.value)


def test_a_uint8_model_refuses_a_normalisation_it_cannot_have(tmp_path):
    source = replace(PICTURES, inputs=(replace(PICTURES.inputs[0], dtype="uint8"),))
    with pytest.raises(ContractFileError, match="takes uint8 pixels as they are"):
        describe(source, write(tmp_path, IMAGE))


@pytest.mark.parametrize("shape", [(-1, -1), ()])
def test_an_input_without_a_fixed_item_shape_is_refused(shape):
    source = replace(linear(), inputs=(TensorSpec("x", "x", "float32", shape),))
    with pytest.raises(ContractFileError, match="'x'"):
        describe(source, None)


def test_single_table_for_a_model_with_two_inputs_is_refused(tmp_path):
    with pytest.raises(ContractFileError, match=r"Write \[inputs.left\]"):
        describe(two_inputs(), write(tmp_path, '[input]\nkind = "tensor"\n'))


def test_the_file_is_found_beside_the_model(tmp_path):
    model = tmp_path / "net.v2.keras"
    assert find_contract_file(model) is None
    whole = write(tmp_path, "", "net.v2.keras.contract.toml")
    assert find_contract_file(model) == whole
    short = write(tmp_path, "", "net.v2.contract.toml")
    assert find_contract_file(model) == short


def test_a_name_that_leaves_no_room_for_a_contract_s_has_none_beside_it(tmp_path):
    assert find_contract_file(tmp_path / f"{'m' * 240}.tflite") is None
    folder = tmp_path / "saved.v2"
    folder.mkdir()
    assert find_contract_file(folder) is None
    assert find_contract_file(folder) != write(tmp_path, "", "saved.contract.toml")
    beside = write(tmp_path, "", "saved.v2.contract.toml")
    assert find_contract_file(folder) == beside


@pytest.mark.parametrize(
    ("rows", "scores"),
    [
        ([[0.25, 0.75], [1, 0]], "probabilities"),
        ([[0.2505, 0.75]], "probabilities"),
        ([[0.26, 0.75]], "logits"),
        ([[0.25, 0.75], [2, -1]], "logits"),
        ([[-0.1, 1.1]], "logits"),
    ],
)
def test_rows_that_are_distributions_are_probabilities(rows, scores):
    assert detect_scores(rows) == scores


def guessed(rows, stated=(), contract=None, **changes):
    """What becomes of a classifier whose original answered these rows: task, scores and the notes' codes."""
    answers = [{"scores": np.array(row, np.float32)} for row in rows]
    contract, notes = settle(contract or describe(linear(), None), answers, stated, **changes)
    return contract.task, contract.scores, [(note.code, note.level) for note in notes]


@pytest.mark.parametrize(
    ("rows", "stated", "task", "scores", "code"),
    [
        ([[0.5, 0.25, 0.25]], {"input"}, "classification", "probabilities", "guessed-task"),
        ([[3, -1, 0.5]], (), "classification", "logits", "guessed-task"),
        ([[0.9, 0.8, 0.1], [0.1, 0.1, 0.0]], (), "raw", None, "guessed-task"),
        ([[0.6, -0.8, 0.0], [0.0, 0.6, 0.8]], (), "raw", None, "guessed-task"),
        ([[0.9, 0.8, 0.1]], {"task"}, "classification", "logits", "guessed-scores"),
        ([[0.5, 0.25, 0.25]], {"labels"}, "classification", "probabilities", "guessed-scores"),
    ],
    ids=["softmax", "logits", "one sigmoid each", "length 1", "a stated task is kept", "labels state the task"],
)
def test_a_guess_from_the_originals_answers_is_made_with_a_note(rows, stated, task, scores, code):
    assert guessed(rows, stated) == (task, scores, [(code, "note")])


DRAW = np.random.default_rng(3)
VECTORS = DRAW.normal(size=(40, 64))
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
LOGITS = DRAW.normal(size=(40, 64)) + 9 * np.eye(64)[DRAW.integers(0, 64, 40)]
HOURS = np.cumsum(DRAW.normal(size=(40, 24)), axis=1) + DRAW.normal(size=(40, 1))
OUTLIER = VECTORS / 3 + 12 * np.eye(64)[5]  # as many encoders have one value that is always large


@pytest.mark.parametrize(
    ("rows", "stated", "labelled", "task", "code"),
    [
        (UNIT, (), False, "embedding", ("guessed-task", "note")),
        (UNIT, {"task"}, False, "embedding", ("task-doubted", "warning")),
        (UNIT, {"task", "scores"}, False, "embedding", ("task-doubted", "warning")),
        (UNIT, {"task", "labels"}, False, "classification", ("task-doubted", "warning")),
        (UNIT, {"task"}, True, "classification", ("task-doubted", "warning")),
        (VECTORS / 8, (), False, "raw", ("guessed-task", "note")),
        (OUTLIER, (), False, "raw", ("guessed-task", "note")),
        (HOURS, (), False, "raw", ("guessed-task", "note")),
        (300 + HOURS, (), False, "raw", ("guessed-task", "note")),
        (LOGITS, (), False, "classification", ("guessed-task", "note")),
        (LOGITS + 50 * DRAW.normal(size=(40, 1)), (), False, "classification", ("guessed-task", "note")),
        (LOGITS, {"task"}, False, "classification", ("guessed-scores", "note")),
    ],
    ids=[
        "length 1", "length 1, said to be scores", "and logits", "classes with names", "classes in the labels",
        "a flat vector", "one value always wins", "a forecast", "a forecast in kelvin", "scores",
        "scores with an offset each", "a stated classifier",
    ],
)  # fmt: skip
def test_vectors_and_forecasts_are_no_scores_of_classes(rows, stated, labelled, task, code):
    contract = describe(linear(classes=rows.shape[1]), None)
    contract = replace(contract, scores="logits" if "scores" in stated else None)
    found = guessed(rows, stated, contract, labelled=labelled)
    assert (found[0], found[2]) == (task, [code])


def test_a_stated_embedding_that_answers_probabilities_is_doubted():
    contract = replace(describe(linear(), None), task="embedding", embedding=EmbeddingSpec("scores"))
    assert guessed([[0.5, 0.25, 0.25]] * 2, {"task"}, contract)[2] == [("task-doubted", "warning")]
    assert guessed([[0.5, -0.25, 0.25]] * 2, {"task"}, contract)[2] == []


def test_a_note_on_a_guess_names_the_key_that_settles_it():
    answers = [{"scores": np.array([0.9, 0.8, 0.1], np.float32)}]
    (note,) = settle(describe(linear(), None), answers)[1]
    assert "do not sum to 1" in note.what
    assert 'task = "classification"' in note.do


def test_zeros_are_not_called_values_between_0_and_1():
    (note,) = settle(describe(linear(), None), [{"scores": np.zeros(3, np.float32)}] * 4)[1]
    assert "answers zeros only" in note.what
    assert "sum to 1" not in note.what


def test_what_a_person_said_is_neither_guessed_nor_noted():
    contract = describe(linear(), None)
    assert guessed([[3, -1, 0.5]], (), replace(contract, scores="logits")) == ("classification", "logits", [])
    assert guessed([[0.9, 0.8, 0.1]], (), replace(contract, scores="probabilities"))[1:] == ("probabilities", [])
    assert guessed([[0.5, 0.25, 0.25]], (), replace(contract, task="raw")) == ("raw", None, [])


@pytest.mark.parametrize(
    ("rows", "stated", "doubted"),
    [
        ([[0.5, 0.25, 0.25], [1, 0, 0]], "logits", True),
        ([[0.5, 0.25, 0.2505]], "logits", True),
        ([[0.5, 0.25, 0.25], [0.9, 0.8, 0.1]], "logits", False),
        ([[0.5, 0.25, 0.25], [3, -1, 0.5]], "probabilities", True),
        ([[1.0004, -0.0004, 0]], "probabilities", False),
        ([[0.9, 0.8, 0.1]], "probabilities", False),
        ([[np.nan, 0.5, 0.5]], "probabilities", True),
    ],
    ids=["softmax said to be logits", "rounded", "sigmoids", "logits said to be softmax", "noise", "one each", "NaN"],
)
def test_stated_scores_that_the_answers_contradict_are_kept_with_a_warning(rows, stated, doubted):
    contract = replace(describe(linear(), None), scores=stated)
    warned = [("scores-normalised", "warning")] if doubted else []
    assert guessed(rows, {"task", "scores"}, contract) == ("classification", stated, warned)


def test_the_warning_names_the_output_and_the_line_to_write():
    contract = replace(describe(linear(), None), scores="logits")
    (warning,) = settle(contract, [{"scores": np.array([0.5, 0.25, 0.25])}], {"scores"})[1]
    assert "'scores' answers logits, but its values lie in 0..1 and sum to 1" in warning.what
    assert 'write scores = "probabilities"' in warning.do


def two_outputs():
    outputs = (TensorSpec("box", "b", "float32", (-1, 2, 2)), TensorSpec("scores", "s", "float32", (-1, 3)))
    return replace(linear(), outputs=(*outputs, TensorSpec("features", "f", "float32", (-1, 8))))


def test_one_of_several_outputs_is_picked_as_the_classifiers(tmp_path):
    text = 'labels = ["cat", "dog", "newt"]\n[classification]\noutput = "scores"\n'
    contract = describe(two_outputs(), write(tmp_path, text))
    assert (contract.task, contract.labels) == ("classification", ("cat", "dog", "newt"))
    assert [output.name for output in contract.outputs] == ["scores", "box", "features"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('task = "classification"\n', "first output 'box' is float32 [2, 2]; a classifier's is one float a class"),
        ('task = "classification"\n', 'Write output = "scores" in [classification]'),
        ('[classification]\noutput = "score"\n', "the model has no output 'score'. Name one of them: box, scores"),
        ('[classification]\noutput = "box"\n', "the model's output 'box' is float32 [2, 2]"),
        ('task = "raw"\n[classification]\noutput = "scores"\n', "has no meaning for a model whose task is raw"),
        ("[classification]\n", "output: is missing"),
    ],
)
def test_an_output_that_cannot_be_the_classifiers_says_which_could(tmp_path, text, says):
    with pytest.raises(ContractFileError) as caught:
        describe(two_outputs(), write(tmp_path, text))
    assert says in str(caught.value)


def test_the_stated_keys_are_those_of_the_file(tmp_path):
    assert stated_keys(None) == frozenset()
    assert stated_keys(write(tmp_path, IMAGE)) == {"input"}
    said = replace(linear(), stated='task = "classification"\n')
    assert stated_keys(None, said) == {"task"}
    assert stated_keys(write(tmp_path, IMAGE), said) == {"input"}


def detector(*outputs: tuple[str, tuple[int, ...]]):
    """A model of one picture, 8 x 6, with these outputs (without the batch axis)."""
    specs = tuple(TensorSpec(name, name, "float32", (-1, *shape)) for name, shape in outputs)
    return replace(PICTURES, outputs=specs)


YOLO = detector(("output0", (84, 8400)))
SSD = detector(("boxes", (10, 4)), ("classes", (10,)), ("scores", (10,)), ("count", (1,)))
DETECTION = 'task = "detection"\n' + IMAGE + "[detection]\n"


def test_a_detector_says_how_its_rows_become_boxes(tmp_path):
    text = DETECTION + 'format = "cxcywh"\nunit = "pixels"\ncandidates = "last"\niou_threshold = 0.7\nmax_boxes = 300\n'
    assert describe(YOLO, write(tmp_path, text)).detection == DetectionSpec(
        "output0", "box scores", "cxcywh", (6.0, 8.0), candidates="last", iou_threshold=0.7, max_boxes=300
    )


def test_a_detector_with_a_suppression_of_its_own_names_its_outputs(tmp_path):
    text = DETECTION + (
        'boxes = "boxes"\nscores = "scores"\nclasses = "classes"\ncount = "count"\nformat = "yxyx"\nunit = "fraction"\n'
        "suppressed = true\n"
    )
    contract = describe(SSD, write(tmp_path, 'labels = ["cat", "dog"]\n' + text))
    assert contract.detection == DetectionSpec(
        "boxes", "box", "yxyx", (1.0, 1.0), scores="scores", classes="classes", count="count", suppressed=True
    )
    assert contract.labels == ("cat", "dog")


def test_the_unit_of_boxes_may_be_that_of_another_picture(tmp_path):
    text = DETECTION + 'format = "xyxy"\nunit = [640, 480]\ncandidates = "last"\n'
    assert describe(YOLO, write(tmp_path, text)).detection.span == (640.0, 480.0)


NO_DETECTOR = {
    "no format": (
        YOLO,
        'unit = "pixels"\ncandidates = "last"',
        "[detection] format: is missing. Say what a box's four",
    ),
    "no unit": (
        YOLO,
        'format = "xyxy"\ncandidates = "last"',
        "[detection] unit: is missing. Say what boxes are measured",
    ),
    "a unit that is none": (
        YOLO,
        'format = "xyxy"\nunit = [0, 1]\ncandidates = "last"',
        "[0, 1] is not a picture size",
    ),
    "either axis": (
        YOLO,
        'format = "xyxy"\nunit = "pixels"',
        "could be 84 numbers of 8400 candidates or 8400 numbers of",
    ),
    "which output": (
        SSD,
        'format = "xyxy"\nunit = "pixels"',
        "[detection] boxes: is missing, and the model has 4 outputs",
    ),
    "no scores": (SSD, 'boxes = "boxes"\nformat = "xyxy"\nunit = "pixels"', "[detection] scores: is missing"),
    "no such output": (
        SSD,
        'boxes = "boxes"\nscores = "score"\nformat = "xyxy"\nunit = "pixels"',
        "[detection] scores: the model has no output 'score'. Its outputs: boxes, classes, scores, count",
    ),
    "unknown key": (YOLO, 'fromat = "xyxy"', "[detection] fromat: is not a key of the format. Did you mean 'format'?"),
    "half a box": (
        YOLO,
        'format = "xyxy"\nunit = "pixels"\ncandidates = "last"\nmax_boxes = 0.5',
        "not a whole number",
    ),
    "a percentage": (
        YOLO,
        'format = "xyxy"\nunit = "pixels"\ncandidates = "last"\nscore_threshold = 25',
        "score_threshold: 25 is not from 0 to 1",
    ),
}


@pytest.mark.parametrize("case", NO_DETECTOR)
def test_what_a_detectors_table_lacks_is_named(case, tmp_path):
    source, text, why = NO_DETECTOR[case]
    with pytest.raises(ContractFileError) as caught:
        describe(source, write(tmp_path, DETECTION + text))
    assert why in str(caught.value)


def test_labels_of_a_detector_are_counted_without_the_background(tmp_path):
    text = DETECTION + 'format = "cxcywh"\nunit = "pixels"\ncandidates = "last"\nbackground = "first"\n'
    with pytest.raises(ContractFileError, match="labels: 2 labels, and the outputs have 79 classes"):
        describe(YOLO, write(tmp_path, 'labels = ["a", "b"]\n' + text))


def test_boxes_are_of_a_picture(tmp_path):
    text = 'task = "detection"\n[detection]\nformat = "xyxy"\nunit = "fraction"\ncandidates = "last"\n'
    with pytest.raises(ContractFileError, match="boxes need a picture, and no input is one"):
        describe(YOLO, write(tmp_path, text))


def test_a_model_with_one_output_embeds_with_a_word(tmp_path):
    source = detector(("features", (128,)))
    assert describe(source, write(tmp_path, 'task = "embedding"\n')).embedding == EmbeddingSpec("features")
    text = 'task = "embedding"\n[embedding]\nnormalize = true\n'
    assert describe(source, write(tmp_path, text)).embedding == EmbeddingSpec("features", normalize=True)


def test_what_a_contract_does_not_say_is_no_part_of_it():
    """Digests of contracts from before detection and embedding stay what they were."""
    assert set(to_json(describe(linear(), None))) == {"task", "inputs", "outputs", "state"}
