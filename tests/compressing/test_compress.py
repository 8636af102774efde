"""`edgekit compress`: what it refuses, what it does not train, and one whole run on scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import edgekit
from edgekit import compressing
from edgekit.cli.compress import compress as compress_command
from edgekit.compressing import CompressRequest
from edgekit_converters.compress.record import Record, with_record
from edgekit_runtime.errors import EdgekitError

pytestmark = pytest.mark.convert


@dataclass(frozen=True)
class Sets:
    model: Path
    train: tuple[np.ndarray, np.ndarray]
    evaluation: tuple[np.ndarray, np.ndarray]
    cache: Path


@pytest.fixture(scope="module")
def sets(digits_model, tmp_path_factory):
    """The digits that the network was trained on, and those that it was not."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    held = np.load(digits_model.evaluation)
    return Sets(
        digits_model.model, (x[order[:1200]], y[order[:1200]]), (held["x"], held["y"]), tmp_path_factory.mktemp("c")
    )


@pytest.fixture(scope="module")
def opened(sets, tmp_path_factory):
    """The original's answers, so that a refusal that comes after them costs nothing."""
    with pytest.raises(EdgekitError, match="fewer than two batches"):
        _compress(sets, tmp_path_factory.mktemp("opened"), train=(sets.train[0][:20], sets.train[1][:20]))
    return sets


def _compress(sets, output, **options):
    given = {"train": sets.train, "evaluation": sets.evaluation, "steps": ["qat"], "cache": sets.cache, **options}
    given.setdefault("say", lambda line: None)
    return edgekit.compress(given.pop("model", sets.model), output=output, **given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": ["squeeze"]}, "there is no step 'squeeze'.*Steps: qat"),
        ({"steps": []}, "neither steps nor a limit"),
        ({"model": "net.tflite"}, "ends in .tflite cannot be trained.*that it was made from"),
        ({"model": "net.h5"}, "ends in .h5 cannot be trained.*save an .h5 file again"),
        ({"epochs": 0}, "--epochs is 0.*a number above 0"),
        ({"budget_ms": 5.0}, "a budget needs a board.*--profile"),
        ({"profile": "raspberry-pie"}, "raspberry-pie"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_loaded(sets, tmp_path, options, says):
    with pytest.raises(EdgekitError, match=f"(?s){says}") as error:
        _compress(sets, tmp_path / "out", **options)
    assert error.value.do
    assert not (tmp_path / "out").exists()


def test_a_damaged_result_is_made_again(sets, tmp_path):
    result, said = tmp_path / sets.model.name, []
    request = CompressRequest(sets.model, "train/", "labelled/", tmp_path, steps=("qat",))
    journey = compressing._Journey(request, None, said.append)
    assert journey._made() is None
    assert not said
    result.write_bytes(sets.model.read_bytes()[:500])
    assert journey._made() is None
    assert said == [f"{result} is damaged: it is made again"]
    result.write_bytes(with_record(sets.model.read_bytes(), Record(key="a")))
    assert journey._made().key == "a"


def test_a_cache_and_none_contradict_each_other(tmp_path):
    command = ["net.keras", "--train", "a", "--evaluation", "b", "--cache", str(tmp_path), "--no-cache"]
    found = CliRunner().invoke(compress_command, command)
    assert found.exit_code == 2
    assert "--cache and --no-cache" in found.output


def test_the_model_itself_is_never_the_result(sets, tmp_path):
    with pytest.raises(EdgekitError, match="would replace the model"):
        _compress(sets, sets.model.parent)


def _labels(change):
    def changed(sets):
        x, y = sets.train
        return {"train": (x, change(y.copy()))}

    return changed


def _one_wrong(y):
    y[7] = 10
    return y


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_labels(_one_wrong), r"y\[7\]: 10 is no class: they run from 0 to 9"),
        (_labels(np.zeros_like), "all its 1200 items have one label, 0"),
        (lambda sets: {"train": sets.train[0]}, "1200 of its 1200 items have no label"),
        (lambda sets: {"evaluation": sets.evaluation[0]}, "597 of its 597 items have no label"),
        (
            lambda sets: {
                "train": tuple(np.concatenate([a, b[:3]]) for a, b in zip(sets.train, sets.evaluation, strict=True))
            },
            "3 of its 1203 items are in the evaluation set too",
        ),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused_and_counted(opened, tmp_path, change, says):
    with pytest.raises(EdgekitError, match=says) as error:
        _compress(opened, tmp_path / "out", **change(opened))
    assert error.value.do
    assert not (tmp_path / "out").exists()


def test_a_layer_that_is_not_simulated_is_refused_before_anything_is_measured(opened, tmp_path):
    import keras

    image = keras.Input((8, 8, 1), name="image")
    deep = keras.layers.Conv2DTranspose(2, 2, name="up")(image)
    out = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(deep))
    keras.Model(image, out).save(tmp_path / "net.keras")
    with pytest.raises(EdgekitError, match=r"'up' is a Conv2DTranspose.*not simulated"):
        _compress(opened, tmp_path / "out", model=tmp_path / "net.keras")
    assert not (tmp_path / "out").exists()


def test_a_lambda_layer_is_refused_by_name(opened, tmp_path):
    import keras

    image = keras.Input((8, 8, 1), name="image")
    doubled = keras.layers.Lambda(lambda t: t * 2, name="double", output_shape=(8, 8, 1))(image)
    keras.Model(image, keras.layers.Dense(10)(keras.layers.Flatten()(doubled))).save(tmp_path / "net.keras")
    with pytest.raises(EdgekitError, match="'double' is a Lambda"):
        _compress(opened, tmp_path / "out", model=tmp_path / "net.keras")


def test_an_onnx_model_is_trained_as_keras_and_the_same_command_again_makes_nothing(sets, tmp_path):
    """Its pictures stay channels first, and its contract file is taken along."""
    import keras

    from edgekit_converters.sources import load

    image = keras.Input((1, 8, 8), name="image")
    first = keras.Model(image, keras.models.load_model(sets.model)(keras.layers.Permute((2, 3, 1))(image)))
    first.save(tmp_path / "first.keras")
    model = tmp_path / "net.onnx"
    model.write_bytes(load(tmp_path / "first.keras").onnx())
    (tmp_path / "net.contract.toml").write_text('task = "classification"\nscores = "probabilities"\n')
    changed = {
        name: (np.transpose(x, (0, 3, 1, 2)), y) for name in ("train", "evaluation") for x, y in [getattr(sets, name)]
    }
    said: list[str] = []
    made = _compress(sets, tmp_path / "out", model=model, epochs=1, say=said.append, **changed)
    assert said[0].startswith("net.onnx is trained as ")
    assert {row.step for row in made.rows} == {"plain INT8", "qat"}
    twin = load(tmp_path / "out" / "original" / "net.keras")
    x = changed["evaluation"][0][:16]
    np.testing.assert_allclose(twin.predict([x])[0], load(model).predict([x])[0], atol=1e-5)
    before = (tmp_path / "out" / "original" / "net.keras").read_bytes()
    again = _compress(sets, tmp_path / "out", model=model, epochs=1, say=said.append, **changed)
    assert (tmp_path / "out" / "original" / "net.keras").read_bytes() == before
    assert again.rows == made.rows
    if made.model is not None:
        assert made.model == tmp_path / "out" / "net.keras"
        assert (tmp_path / "out" / "net.contract.toml").exists()
        assert "nothing to do" in said[-1]
