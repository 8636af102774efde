"""A detector's boxes and scores taken apart: the same numbers, each part made by layers of its own."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit_converters.compress.losses import box_layout
from edgekit_converters.compress.network import read_network, to_keras
from edgekit_converters.compress.split import can_split, detection_keys, joining, split, split_answer
from edgekit_converters.data.describe_contract import describe
from edgekit_converters.formats.keras_record import JoinedOutput, Record, read_record, with_record
from edgekit_converters.recipe.artifact import recipe
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.sources.load import load
from edgekit_converters.sources.source_model import toml_text
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.contract.detect import candidates

pytestmark = pytest.mark.convert
ITEMS = np.random.default_rng(0).random((4, 16, 16, 3), np.float32)
GRID = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)


def _dense(layers, ops, x):
    """One row a picture, boxes in pixels of a camera."""
    x = layers.Flatten()(x)
    box = layers.Rescaling([640.0, 480.0, 640.0, 480.0], name="box")(layers.Dense(4, activation="sigmoid")(x))
    return layers.Concatenate(name="answer")([box, layers.Dense(3, activation="sigmoid", name="scores")(x)])


def _one_convolution(layers, ops, x):
    """As YOLOv5's: one convolution makes all, slices of its sigmoid are decoded; objectness, then scores."""
    y = ops.sigmoid(layers.Conv2D(8, 1, name="head")(x))
    parts = [(y[..., :2] * 2 - 0.5 + GRID) * 4, ops.square(y[..., 2:4] * 2) * 16.0, y[..., 4:]]
    return layers.Reshape((16, 8), name="rows")(layers.Concatenate()(parts))


def _joined_before(layers, ops, x):
    """As YOLOX's: joined, then cut again and decoded."""
    parts = [layers.Conv2D(size, 1, name=f"head{size}")(x) for size in (4, 1, 3)]
    joined = layers.Concatenate()([parts[0], ops.sigmoid(parts[1] - 1.0), ops.sigmoid(parts[2])])
    parts = [(joined[..., :2] + GRID) * 4, ops.exp(ops.minimum(joined[..., 2:4], 3.0)) / 2, joined[..., 4:]]
    return layers.Reshape((16, 8))(layers.Concatenate()(parts))


def _columns_first(layers, ops, x):
    """As YOLOv8's as it is exported: [4 + classes, candidates]."""
    boxes = layers.Reshape((16, 4))(layers.Conv2D(4, 1, activation="relu")(x))
    scores = layers.Reshape((16, 3))(layers.Conv2D(3, 1, activation="sigmoid")(x))
    both = [layers.Permute((2, 1))(layers.Rescaling(8.0)(boxes)), layers.Permute((2, 1))(scores)]
    return layers.Concatenate(axis=1)(both)


def _not_followed(layers, ops, x):
    """A pooling along the rows is not looked through: both parts are cut of what it answers."""
    y = layers.Conv2D(7, 1, activation="sigmoid")(x)
    return layers.Reshape((4, 7))(layers.MaxPooling2D(2)(y))


def _squared_by_hand(layers, ops, x):
    """The arithmetic before the head has the names that Keras gives to arithmetic of the head, too."""
    y = layers.Conv2D(8, 1, activation="sigmoid")(x * 0.5 + 0.25)
    size = y[..., 2:4] * 2.0
    return layers.Reshape((16, 8))(layers.Concatenate()([y[..., :2] * 4.0, size * size, y[..., 4:]]))


HEADS = {
    "dense": (_dense, "box scores", "first", ("boxes", "scores")),
    "one convolution": (_one_convolution, "box objectness scores", "first", ("boxes", "scores")),
    "joined before": (_joined_before, "box objectness scores", "first", ("boxes", "scores")),
    "columns first": (_columns_first, "box scores", "last", ("boxes", "scores")),
    "squared by hand": (_squared_by_hand, "box objectness scores", "first", ("boxes", "scores")),
    "not followed": (_not_followed, "box scores", "first", ("boxes", "scores")),
}


def _saved(model, folder, name, **detection):
    """A SourceModel, and what its contract file says."""
    model.save(folder / f"{name}.keras")
    said = {
        "task": "detection",
        "input": {"kind": "image", "mean": 0, "std": 255},
        "detection": {"format": "cxcywh", "unit": "pixels", "score_threshold": 0.2, **detection},
    }
    (folder / f"{name}.contract.toml").write_text(toml_text(said))
    source = load(folder / f"{name}.keras")
    return source, describe(source, folder / f"{name}.contract.toml")


def _network(head, folder, name="net", **detection):
    import keras
    from keras import layers, ops

    keras.utils.set_random_seed(3)
    image = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(8, 3, strides=4, padding="same", use_bias=False)(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    model = keras.Model(image, head(layers, ops, x))
    return model, *_saved(model, folder, name, **detection)


@pytest.mark.parametrize("name", HEADS)
def test_both_outputs_are_the_parts_of_the_answer_and_decode_to_the_same_boxes(name, tmp_path):
    import keras

    head, row, axis, names = HEADS[name]
    model, source, before = _network(head, tmp_path, row=row, candidates=axis)
    assert can_split(before)
    keras.utils.clear_session()  # names are numbered from the start again, as in another process
    network = read_network(keras.models.load_model(tmp_path / "net.keras", compile=False))
    made = split(network, before)
    assert tuple(made.output_names) == names
    (output,) = before.outputs
    _, after = _saved(made, tmp_path, "split", **detection_keys(before, names))
    boxes = 0
    for item, answer, parts in zip(ITEMS, np.asarray(model(ITEMS)), zip(*made(ITEMS), strict=True), strict=True):
        wanted = split_answer({output.name: answer}, before, names)
        found = {name: np.asarray(part) for name, part in zip(names, parts, strict=True)}
        for part in names:
            np.testing.assert_allclose(found[part], wanted[part], atol=1e-4)
        one, other = candidates({output.name: answer}, before), candidates(found, after)
        np.testing.assert_allclose(other.corners, one.corners, atol=1e-2)
        np.testing.assert_array_equal(other.classes, one.classes)
        boxes += len(one.scores)
        assert item.shape == source.inputs[0].shape[1:]
    assert boxes > 0
    again = read_network(made)  # what is trained next
    for one, other in zip(to_keras(again, again.weights)(ITEMS), made(ITEMS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert tuple(to_keras(again, again.weights).output_names) == names


def test_a_convolution_that_makes_boxes_and_scores_is_cut_in_two(tmp_path):
    model, _, contract = _network(_one_convolution, tmp_path, row="box objectness scores", candidates="first")
    made = split(read_network(model), contract)
    kernel = model.get_layer("head").get_weights()[0]
    heads = [layer for layer in made.layers if type(layer).__name__ == "Conv2D" and layer.name.startswith("head")]
    assert sorted(layer.filters for layer in heads) == [1, 2, 2, 3]
    cut = np.concatenate([layer.get_weights()[0] for layer in sorted(heads, key=lambda one: one.name)], -1)
    assert sorted(cut.ravel()) == sorted(kernel.ravel())


def test_a_square_becomes_a_product_which_8_bits_can_do(tmp_path):
    model, _, before = _network(_one_convolution, tmp_path, row="box objectness scores", candidates="first")
    made = split(read_network(model), before)
    _saved(made, tmp_path, "split", **detection_keys(before, made.output_names))
    workspace = Workspace(load(tmp_path / "split.keras"), [[item[None]] for item in ITEMS])
    assert workspace.make(recipe("tflite-int8")).data


@pytest.mark.parametrize(
    ("detection", "can"),
    [
        ({"row": "box scores"}, True),
        ({"row": "box objectness scores"}, True),
        ({"row": "box scores", "activation": "sigmoid"}, True),
        ({"row": "box objectness scores", "activation": "sigmoid"}, False),
        ({"row": "box scores", "activation": "softmax"}, True),
        ({"row": "box scores", "suppressed": True}, False),
    ],
)
def test_only_an_answer_that_decodes_to_the_same_boxes_apart_is_split(detection, can, tmp_path):
    _, _, contract = _network(_joined_before, tmp_path, candidates="first", **detection)
    assert can_split(contract) == can


def test_a_metric_function_goes_on_reading_the_old_answer(tmp_path):
    model, _, contract = _network(_columns_first, tmp_path, row="box scores", candidates="last")
    (output,) = contract.outputs
    join = joining(contract, ("boxes", "scores"))
    answer = np.asarray(model(ITEMS))[0]
    found = join(split_answer({output.name: answer}, contract, ("boxes", "scores")))
    np.testing.assert_array_equal(found[output.name], answer)
    path = tmp_path / "net.keras"
    path.write_bytes(with_record(path.read_bytes(), Record(joined=join)))
    assert read_record(path).joined == JoinedOutput(output.name, ("boxes", "scores"), 0)
    _, _, sure = _network(_joined_before, tmp_path, row="box objectness scores", candidates="first")
    assert joining(sure, ("boxes", "scores")) is None


def test_a_box_is_off_by_its_share_of_the_picture_and_as_much_as_the_teacher_is_sure(tmp_path):
    import tensorflow as tf

    _, _, contract = _network(_dense, tmp_path, row="box scores", candidates="first", unit=[640, 480])
    layout = box_layout(contract)
    np.testing.assert_array_equal(layout.boxes, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(layout.scores, [[4, 5, 6]])
    teacher = np.array([[320, 240, 64, 48, 1.0, 0, 0]], np.float32)
    assert layout.loss(teacher, teacher).numpy() == pytest.approx(0.0, abs=1e-6)

    def away(by, sure=1.0):
        given = teacher.copy()
        given[:, 4] = sure
        answer = tf.Variable(given + np.array(by, np.float32))
        with tf.GradientTape() as tape:
            loss = layout.loss(answer, given)
        assert np.isfinite(tape.gradient(loss, answer)).all()
        return float(loss)

    wide, high = away([64, 0, 0, 0, 0, 0, 0]), away([0, 48, 0, 0, 0, 0, 0])
    assert wide == pytest.approx(high, rel=1e-3) == pytest.approx(1.0, rel=0.02)
    assert away([0, 0, 0, 0, -1, 1, 0]) > away([0, 0, 0, 0, -0.5, 0, 0]) > 0
    two = box_layout(contract_of_rows(tmp_path))
    background = np.array([[8, 8, 4, 4, 0.0, 1.0, 1.0, 1.0], [1, 1, 1, 1, 1.0, 1.0, 0.0, 0.0]] * 8, np.float32).reshape(
        1, -1
    )
    other = background.copy()
    other.reshape(16, 8)[::2, :4] += 5  # where the teacher sees nothing
    assert two.loss(other, background).numpy() == pytest.approx(0.0, abs=0.02)


def contract_of_rows(folder):
    return _network(_joined_before, folder, "rows", row="box objectness scores", candidates="first")[2]


def test_boxes_whose_numbers_begin_with_y_are_shares_of_the_height_first(tmp_path):
    _, _, contract = _network(_dense, tmp_path, row="box scores", candidates="first", unit=[640, 480], format="yxyx")
    np.testing.assert_array_equal(box_layout(contract).span, [480, 640, 480, 640])


def test_outputs_of_their_own_stand_one_after_the_other(tmp_path):
    model, _, contract = _network(_dense, tmp_path, row="box scores", candidates="first")
    made = split(read_network(model), contract)
    _, after = _saved(made, tmp_path, "split", **detection_keys(contract, made.output_names))
    layout = box_layout(after)
    np.testing.assert_array_equal(layout.boxes, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(layout.scores, [[4, 5, 6]])


def test_what_a_suppression_has_made_is_refused(tmp_path):
    _, _, contract = _network(_dense, tmp_path, row="box scores", candidates="first", suppressed=True)
    with pytest.raises(CompressError, match="no gradient passes") as error:
        box_layout(contract)
    assert error.value.do


def test_labels_drawn_of_the_answers_are_as_likely_as_they_say(tmp_path):
    layout = box_layout(contract_of_rows(tmp_path))
    answers = np.tile(np.array([8, 8, 4, 4, 0.8, 0.3, 0.0, 1.0], np.float32), (500, 16))
    drawn = layout.drawn(answers, np.random.default_rng(0)).reshape(-1, 8)
    np.testing.assert_allclose(drawn[:, 4:].mean(0), [0.8, 0.3, 0.0, 1.0], atol=0.02)
    assert set(np.unique(drawn[:, 4:])) == {0.0, 1.0}
    np.testing.assert_allclose(drawn[:, :4].mean(0), [8, 8, 4, 4], atol=0.05)
