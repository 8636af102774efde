"""Ctrl-C once in every step: the same command again resumes there, and ends as if it was never interrupted.

No step opens its own model in a process of its own: Keras has it in this one.
"""

from __future__ import annotations

import signal

import numpy as np
import pytest

import edgekit
from edgekit_converters.compress import train
from edgekit_converters.formats.keras_record import read_record
from edgekit_converters.sources import isolated

pytestmark = pytest.mark.convert
TRAINED = ("distill", "prune", "sparse", "qat")
CONTRACT = (
    'task = "detection"\n\n[input]\nkind = "image"\nmean = 0\nstd = 255\n\n[detection]\nrow = "box scores"\n'
    'candidates = "first"\nformat = "cxcywh"\nunit = "pixels"\n'
)


class _Interrupts:
    """What the run says. Raises SIGINT at the first line of each step that begins so; lines: by run."""

    def __init__(self, *begins: str) -> None:
        self._begins, self._step = begins, ""
        self.steps: list[str] = []
        self.lines: list[list[str]] = []

    def __call__(self, line: str) -> None:
        self.lines[-1].append(line)
        if line.startswith("step ") and line.endswith(":"):
            self._step = line[5:-1]
        if line.startswith(self._begins) and self._step not in self.steps:
            self.steps.append(self._step)
            signal.raise_signal(signal.SIGINT)

    def until_done(self, run):
        while True:
            self.lines.append([])
            try:
                return run(self)
            except KeyboardInterrupt:
                assert len(self.lines) <= len(TRAINED)


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    def fail(path, options):
        pytest.fail(f"{path} is opened once more")

    monkeypatch.setenv("EDGEKIT_ISOLATE", "on")
    monkeypatch.setattr(isolated, "open_isolated", fail)


def _rows(report):
    """What was measured, but for this machine's times and bytes: names of layers count on in a process."""
    return [(row.step, row.recipe, row.score, row.drop, row.macs, row.high_ms) for row in report.rows]


def _weights(path):
    import keras

    return keras.models.load_model(path, compile=False).get_weights()


def test_every_step_that_trains_resumes_in_its_own_rounds(tmp_path, monkeypatch):
    import keras
    from keras import layers
    from sklearn.datasets import load_digits

    monkeypatch.setattr(train, "_ROUND", 20)
    keras.utils.set_random_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels.astype(np.int64)
    image = keras.Input((8, 8, 1), name="image")
    t = layers.Conv2D(32, 3, padding="same", activation="relu")(image)
    t = layers.GlobalAveragePooling2D()(layers.Conv2D(160, 3, strides=2, padding="same", activation="relu")(t))
    keras.Model(image, layers.Dense(10, activation="softmax", name="probs")(t)).save(tmp_path / "net.keras")

    def run(folder, say):
        return edgekit.compress(
            tmp_path / "net.keras", train=(x[:320], y[:320]), evaluation=(x[320:420], y[320:420]), steps=TRAINED,
            width=0.5, budget_ms=0.3, sparsity=0.5, profile="raspberry-pi-4", max_drop=1.0, epochs=2, batch=16,
            output=tmp_path / folder, cache=tmp_path / "cache", say=say,
        )  # fmt: skip

    whole = run("whole", lambda line: None)
    interrupts = _Interrupts("step 20 of ")
    again = interrupts.until_done(lambda say: run("again", say))
    assert tuple(interrupts.steps) == tuple(step["step"] for step in whole.steps) == TRAINED
    for step, lines in zip(TRAINED, interrupts.lines[1:], strict=True):
        rounds = lines[lines.index(f"step {step}:") :]
        assert next(line for line in rounds if " of 40: " in line).startswith("step 40 "), step
    assert _rows(again) == _rows(whole)
    assert [step["kept"] for step in again.steps] == [step["kept"] for step in whole.steps]
    for one, other in zip(_weights(again.model), _weights(whole.model), strict=True):
        np.testing.assert_array_equal(one, other)
    for target, ranges in read_record(whole.model).ranges.items():
        assert sorted(read_record(again.model).ranges[target].values()) == sorted(ranges.values())


def test_an_interrupted_split_is_made_by_the_same_command(tmp_path):
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((16, 16, 3), name="image")
    t = layers.Conv2D(8, 3, strides=4, padding="same", activation="relu")(image)
    boxes = layers.Rescaling(16.0)(layers.Conv2D(4, 1, activation="sigmoid")(t))
    scores = layers.Conv2D(2, 1, activation="sigmoid")(t)
    net = keras.Model(image, layers.Reshape((16, 6))(layers.Concatenate()([boxes, scores])))
    net.save(tmp_path / "net.keras")
    (tmp_path / "net.contract.toml").write_text(CONTRACT)
    pictures = np.random.default_rng(0).integers(0, 256, (170, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "train.npz", x=pictures[:150])
    np.savez(tmp_path / "evaluation.npz", x=pictures[150:])

    def run(folder, say):
        return edgekit.compress(
            tmp_path / "net.keras", train=tmp_path / "train.npz", evaluation=tmp_path / "evaluation.npz",
            steps=["split"], output=tmp_path / folder, cache=tmp_path / "cache", say=say,
        )  # fmt: skip

    whole = run("whole", lambda line: None)
    interrupts = _Interrupts("step split:", "split, ")
    again = interrupts.until_done(lambda say: run("again", say))
    assert interrupts.steps == ["split"]
    assert _rows(again) == _rows(whole)
    assert whole.model is not None
    for one, other in zip(_weights(again.model), _weights(whole.model), strict=True):
        np.testing.assert_array_equal(one, other)
    found = {path.name for path in (tmp_path / "again").iterdir()}
    assert found == {path.name for path in (tmp_path / "whole").iterdir()}
