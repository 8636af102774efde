"""What a layer inside the teacher gives, learnt through a 1x1 adapter that no file keeps."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.float_training import FloatRun, train_float
from edgekit_converters.compress.hints import Hints, open_teacher, parse_layers, standardize
from edgekit_converters.compress.losses import Teaching, TrainingData, TrainingOptions
from edgekit_converters.compress.network import read_network
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.sources.load import load

pytestmark = pytest.mark.convert
ITEMS = np.random.default_rng(0).random((200, 16, 16, 1), np.float32)


def _model(width, seed, side=16):
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    image = keras.Input((side, side, 1), name="image")
    x = layers.ReLU(name="early")(layers.Conv2D(width, 3, strides=2, padding="same", name="first")(image))
    x = layers.ReLU(name="late")(layers.Conv2D(width, 3, padding="same", name="second")(x))
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(image, layers.Dense(3, activation="softmax", name="probs")(x))


@pytest.fixture(scope="module")
def teacher():
    return read_network(_model(24, 1))


def _student(width=8, side=16):
    network = read_network(_model(width, 2, side))
    return network, without(network, trace(network), np.zeros(0, np.int64))


def _items():
    return (one[None] for one in ITEMS)


def test_a_layer_has_the_same_name_in_both_unless_two_are_given():
    assert parse_layers("late") == ("late", "late")
    assert parse_layers("late = block5") == ("late", "block5")


def test_the_students_layer_learns_the_teachers_and_the_adapter_stays_out_of_the_file(teacher, tmp_path):
    import keras

    network, student = _student()
    hints = Hints(teacher, "late", "late")
    wanted = hints.wanted(_items(), len(ITEMS), student, tmp_path / "hints.npy")
    assert wanted.shape == (200, 8 * 8 * 24)
    channels = wanted.reshape(-1, 24)
    np.testing.assert_allclose(channels.mean(0), 0.0, atol=1e-3)
    alive = channels.std(0) > 0.5
    assert alive.sum() > 12
    adapters = []

    def adapted(model):
        adapters.append(keras.Model(model.inputs[0], hints.adapted(model)))
        return adapters[0].output

    def far():
        return float(np.square(np.asarray(adapters[0](ITEMS)) - wanted).mean())

    answers = np.zeros((200, 3), np.float32)
    data = TrainingData(ITEMS, np.arange(200) % 3, "classes")
    options = TrainingOptions(steps=100, batch=16, rate=1e-2)  # the last batch held out is smaller
    before = []
    run = FloatRun("distill", options, tmp_path, say=lambda line: before.append(far()), adapted=adapted)
    made = train_float(network, student, data, Teaching(answers, 1.0, 1.0, wanted), run)
    assert before[-1] < 0.6 * before[0], "the student's layer did not come nearer to the teacher's"
    with zipfile.ZipFile(io.BytesIO(made.data)) as archive:
        archive.extractall(tmp_path / "made")
    (tmp_path / "made.keras").write_bytes(made.data)
    kept = keras.models.load_model(tmp_path / "made.keras", compile=False)
    assert [layer.name for layer in kept.layers] == [layer.name for layer in student.layers]


def test_hints_decide_nothing_about_which_round_is_best(teacher, tmp_path):
    """The score of a round is of the answers alone."""
    network, student = _student()
    hints = Hints(teacher, "late", "late")
    wanted = hints.wanted(_items(), len(ITEMS), student, tmp_path / "hints.npy")
    data = TrainingData(ITEMS, np.arange(200) % 3, "classes")
    options = TrainingOptions(steps=1, batch=20)
    losses = []
    for given, adapted in ((wanted, hints.adapted), (1e3 * wanted, hints.adapted), (None, None)):
        folder = tmp_path / str(len(losses))
        folder.mkdir()
        network, student = _student()
        run = FloatRun("distill", options, folder, adapted=adapted)
        answers = np.zeros((200, 3), np.float32)
        made = train_float(network, student, data, Teaching(answers, 1.0, 1.0, given), run)
        losses.append(made.record["history"][0]["loss"])
    assert losses[0] == pytest.approx(losses[1]) == pytest.approx(losses[2])


def test_a_larger_map_of_the_teacher_is_averaged_to_the_students(teacher, tmp_path):
    import keras

    _, student = _student(side=8)
    wanted = Hints(teacher, "early", "early").wanted(_items(), len(ITEMS), student, tmp_path / "hints.npy")
    assert wanted.shape == (200, 4 * 4 * 24)
    full = _model(24, 1)
    maps = np.asarray(keras.Model(full.inputs[0], full.get_layer("early").output)(ITEMS))
    small = maps.reshape(200, 4, 2, 4, 2, 24).mean(axis=(2, 4))
    for channel in range(24):
        found, meant = wanted.reshape(200, 4, 4, 24)[..., channel], small[..., channel]
        if meant.std() > 1e-3:
            np.testing.assert_allclose(found, (meant - meant.mean()) / meant.std(), atol=1e-2)


def test_a_teacher_of_another_format_gives_hints_too(tmp_path):
    """A PyTorch or ONNX teacher is read as the Keras model that its graph becomes; its pictures stay channels first."""
    _model(24, 1).save(tmp_path / "teacher.keras")
    (tmp_path / "teacher.onnx").write_bytes(load(tmp_path / "teacher.keras").onnx())
    network = open_teacher(tmp_path / "teacher.onnx")
    _, student = _student()
    model = without(network, trace(network), np.zeros(0, np.int64))
    layer = [layer.name for layer in model.layers if "relu" in str(layer.get_config().get("activation", ""))][-1]
    items = (item.reshape(1, 1, 16, 16) for item in ITEMS)
    found = Hints(network, layer, "late").wanted(items, len(ITEMS), student, tmp_path / "found.npy")
    own = Hints(open_teacher(tmp_path / "teacher.keras"), "late", "late")
    np.testing.assert_allclose(found, own.wanted(_items(), len(ITEMS), student, tmp_path / "own.npy"), atol=1e-2)


@pytest.mark.parametrize(
    ("student", "of_teacher", "says"),
    [
        ("late", "nowhere", "there is no layer 'nowhere'.*late"),
        ("nowhere", "late", "there is no layer 'nowhere'.*late"),
        ("late", "mean", "gives 8x8x8, and the teacher's 'mean' 24.*two maps"),
    ],
)
def test_layers_that_cannot_be_compared_are_refused(teacher, student, of_teacher, says, tmp_path):
    with pytest.raises(CompressError, match=f"(?s){says}"):
        Hints(teacher, of_teacher, student).wanted(_items(), len(ITEMS), _student()[1], tmp_path / "hints.npy")


def test_channels_have_mean_0_and_deviation_1_whatever_their_number():
    """Added up in float32 one after the other, the rows' sum of a channel stays behind from 2 to the power of 24."""
    values = np.full((33, 1024, 512, 2), 4.0, np.float32)
    values[::2] += 1.0
    standardize(values)
    assert abs(float(values.mean(dtype=np.float64))) < 1e-6
    assert float(values.std(dtype=np.float64)) == pytest.approx(1.0, abs=1e-5)
