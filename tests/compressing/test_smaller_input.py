"""`input_size` and `features`: a student of smaller pictures that learns the teacher's last map; then a build."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import run_edgekit
from recipes import recipe

import edgekit
from edgekit_runtime import open_bundle
from edgekit_runtime.system.errors import EdgekitError

pytestmark = pytest.mark.convert
COMMAND = (
    "compress", "net.keras", "--train", "train.npz", "--evaluation", "evaluation.npz", "--steps", "distill", "--epochs",
    "20", "--profile", "raspberry-pi-4", "--max-drop", "10%", "--recipe", "recipe.toml",
)  # fmt: skip


def _network(last):
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((32, 32, 1), name="image")
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(image)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="map")(x)
    x = last(layers)(x)
    return keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(x))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits four times as large, uint8, as pictures with labels in a file beside the contract."""
    import keras
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    small = (pixels * 15.9).astype(np.uint8).reshape(-1, 8, 8, 1)[order]
    x, y = np.kron(small, np.ones((1, 4, 4, 1), np.uint8)), labels.astype(np.int64)[order]
    folder = tmp_path_factory.mktemp("smaller")
    net = _network(lambda layers: layers.GlobalAveragePooling2D())
    net.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
    net.fit(x[:1200].astype(np.float32) / 255, y[:1200], batch_size=32, epochs=8, verbose=0)
    net.save(folder / "net.keras")
    contract = 'task = "classification"\nlabels = "names.txt"\nscores = "probabilities"\n\n[input]\nkind = "image"\n'
    (folder / "net.contract.toml").write_text(contract + "mean = 0\nstd = 255\n")
    (folder / "names.txt").write_text("".join(f"digit {kind}\n" for kind in range(10)))
    np.savez(folder / "train.npz", x=x[:1200], y=y[:1200])
    np.savez(folder / "evaluation.npz", x=x[1200:], y=y[1200:])
    recipe(folder, rate=1e-2, batch=32, input_size=[16, 16], features="map")
    return folder


@pytest.fixture(scope="module")
def made(folder):
    return run_edgekit(*COMMAND, "-o", "out", "--json", cwd=folder)


def test_a_student_of_half_the_side_has_a_quarter_of_the_products(made):
    rows = {(row["step"], row["recipe"]): row for row in made.json["rows"]}
    plain, small = (rows[step, "tflite-int8"] for step in ("plain INT8", "distill"))
    print(f"{plain['score']:.4f} of {plain['macs']} products, {small['score']:.4f} of {small['macs']}")
    assert small["macs"] == pytest.approx(plain["macs"] / 4, rel=0.1)
    assert small["high_ms"] < plain["high_ms"]
    assert small["drop"] < 0.1
    assert small["here_ms"] > 0
    (step,) = made.json["steps"]
    assert (step["kept"], step["input"], step["features"]) == (True, [16, 16], "map")


def test_an_ordinary_build_takes_pictures_of_any_size_for_it(made, folder):
    """Its contract file holds the labels, which were in a file beside the original."""
    built = run_edgekit(
        "build", "out/net.keras", "--profile", "raspberry-pi-4", "--calibration", "train.npz", "--evaluation",
        "evaluation.npz", "--max-drop", "5%", "--recipe", "tflite-int8", "--cache", "cache", "--json", "-o", "bundles",
        cwd=folder,
    ).json  # fmt: skip
    (bundle,) = built["bundles"]
    data = np.load(folder / "evaluation.npz")
    right = 0
    with open_bundle(folder / bundle["path"], allow_unsigned=True) as model:
        for image, label in zip(data["x"][:100], data["y"][:100], strict=True):
            right += model.predict(image).top(1)[0].label == f"digit {label}"
    assert right > 80


def test_the_same_command_again_makes_nothing_and_leaves_nothing_behind(made, folder):
    again = run_edgekit(*COMMAND, "-o", "out", "--json", cwd=folder)
    assert "nothing to do" in again.err
    assert {path.name for path in (folder / "out").iterdir()} == {
        "net.keras", "net.contract.toml", "net-compress.json", "net-compress.html"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_size": (32, 32)}, "pictures have 32x32 pixels already"),
        ({"input_size": (0, 16)}, r"input_size is \[0, 16\]"),
        ({"width": 0.5, "features": "nowhere"}, "there is no layer 'nowhere'"),
        ({"steps": ["qat"], "input_size": (16, 16)}, "are for the step distill"),
        ({"steps": ["qat"], "features": "map"}, "features is for the step distill"),
    ],
)
def test_a_size_or_a_layer_that_cannot_be_is_refused(folder, tmp_path, options, says):
    given = {"steps": ["distill"], "cache": folder / "cache", "say": lambda line: None} | options
    with pytest.raises(EdgekitError, match=says) as error:
        edgekit.compress(
            folder / "net.keras", train=folder / "train.npz", evaluation=folder / "evaluation.npz", output=tmp_path,
            **given,
        )  # fmt: skip
    assert error.value.do


@pytest.mark.parametrize(
    ("last", "contract", "says"),
    [
        (lambda layers: layers.Flatten(), True, "fits its own size alone"),
        (lambda layers: layers.GlobalAveragePooling2D(), False, "needs a model with one picture input"),
    ],
)
def test_a_network_that_needs_its_size_or_takes_no_picture_is_refused(folder, tmp_path, last, contract, says):
    _network(last).save(tmp_path / "net.keras")
    sets = {name: dict(np.load(folder / f"{name}.npz")) for name in ("train", "evaluation")}
    if contract:
        (tmp_path / "net.contract.toml").write_text((folder / "net.contract.toml").read_text())
        (tmp_path / "names.txt").write_text((folder / "names.txt").read_text())
    given = {
        name: (one["x"] if contract else one["x"].astype(np.float32) / 255, one["y"]) for name, one in sets.items()
    }
    with pytest.raises(EdgekitError, match=says):
        edgekit.compress(
            tmp_path / "net.keras", **given, output=tmp_path / "out", steps=["distill"], input_size=(16, 16),
            cache=folder / "cache", say=lambda line: None,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
