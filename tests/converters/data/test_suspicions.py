"""Mistakes in how pictures are handed over: told where they are made, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgekit_converters.data.open import open_dataset
from edgekit_converters.data.suspicions import guess_pixels, suspicions
from edgekit_converters.sources.load import load
from edgekit_runtime.contract.spec import Contract, ImageSpec, InputContract, OutputContract, TensorSpec

RNG = np.random.default_rng(3)
CLASSES = 4


def contract(mean: float = 0.0, std: float = 255.0, color: Any = "rgb", side: int = 16) -> Contract:
    spec = ImageSpec(side, side, (mean,) * 3, (std,) * 3, color=color)
    return Contract(
        "classification",
        (InputContract("image", (side, side, 3), "float32", spec),),
        (OutputContract("probs", (CLASSES,), "float32"),),
        scores="probabilities",
    )


@dataclass
class ByColour:
    """A made-up original: red, green, blue or grey, from the mean of pixels 0..1; anything larger looks white to it."""

    inputs = (TensorSpec("image", "image", "float32", (-1, 16, 16, 3), "NHWC"),)
    outputs = (TensorSpec("probs", "probs", "float32", (-1, CLASSES)),)

    def predict(self, arrays: Any) -> Any:
        means = np.tanh(2 * arrays[0].mean((1, 2)))
        level = means.mean(1, keepdims=True)
        logits = np.concatenate([means - level - 0.1, np.zeros_like(level)], 1) * 40
        logits[:, 0] += 5 * means[:, 0]  # red it knows best
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return [odds / odds.sum(1, keepdims=True)]


def coloured(count: int = 40) -> tuple[Any, Any]:
    labels = np.arange(count) % 3
    pictures = RNG.integers(20, 60, (count, 16, 16, 3))
    pictures[np.arange(count), :, :, labels] += 120
    return pictures.astype(np.uint8), labels


@pytest.fixture
def give(tmp_path):
    def write(x: Any, given: Contract, **labels: Any) -> Any:
        np.savez(tmp_path / "set.npz", x=x, **labels)
        return open_dataset(tmp_path / "set.npz", given)

    return write


def codes(found: Any) -> set[str]:
    return {finding.code for finding in found}


def test_what_is_right_raises_no_suspicion(give) -> None:
    x, y = coloured()
    for labels in ({}, {"y": y}):
        assert suspicions(ByColour(), contract(), give(x, contract(), **labels)) == ()


def test_exchanged_colours_are_told_with_labels(give) -> None:
    x, y = coloured()
    (finding,) = suspicions(ByColour(), contract(), give(x[..., ::-1], contract(), y=y))
    assert (finding.code, finding.level) == ("colour-order", "warning")
    assert 'color = "bgr"' in finding.do


def test_pixels_of_another_scale_are_told_with_labels_and_without(give) -> None:
    x, y = coloured()
    wrong = contract(0.0, 1.0)
    for labels in ({}, {"y": y}):
        found = suspicions(ByColour(), wrong, give(x, wrong, **labels))
        assert "normalisation" in codes(found), labels
        assert all("mean = " in f.do for f in found if f.code == "normalisation")


@dataclass
class OfMinusOneToOne(ByColour):
    def predict(self, arrays: Any) -> Any:
        return super().predict([arrays[0] / 2 + 0.5])


@dataclass
class OfBytes(ByColour):
    def predict(self, arrays: Any) -> Any:
        return super().predict([arrays[0] / 255])


@pytest.mark.parametrize(
    ("original", "name", "mean", "std"),
    [
        (ByColour(), "0 to 1", 0.0, 255.0),
        (OfMinusOneToOne(), "-1 to 1", 127.5, 127.5),
        (OfBytes(), "0 to 255", 0.0, 1.0),
    ],
)
def test_the_scale_of_pixels_is_guessed_from_how_well_answers_tell_pictures_apart(
    give, original, name, mean, std
) -> None:
    x, _ = coloured()
    for said in (contract(), contract(127.5, 127.5), contract(0.0, 1.0)):  # what the draft says changes nothing
        guess = guess_pixels(original, said, give(x, said))
        assert (guess.name, set(guess.image.mean), set(guess.image.std)) == (name, {mean}, {std})
        assert name not in guess.rivals


def test_nothing_is_guessed_of_a_few_pictures(give) -> None:
    x, _ = coloured(8)
    assert guess_pixels(ByColour(), contract(), give(x, contract())) is None


@dataclass
class WithoutNormalisation:
    """A made-up original of one layer and a bias: red or green, from pixels 0..1; surer of both at any larger scale."""

    inputs = ByColour.inputs
    outputs = ByColour.outputs

    def predict(self, arrays: Any) -> Any:
        red, green = arrays[0].mean((1, 2))[:, 0], arrays[0].mean((1, 2))[:, 1]
        none = np.full_like(red, -3.0)
        logits = np.stack([10 * red + 1.0, 10 * green, none, none], 1)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return [odds / odds.sum(1, keepdims=True)]


def red_or_green(mistakes: int = 0) -> tuple[Any, Any]:
    """200 pictures, about a tenth of which only the bias makes red; and labels, some of them wrong."""
    pictures = np.zeros((200, 16, 16, 3), np.uint8)
    reds, greens = np.random.default_rng(5).integers(60, 200, (2, 200))
    pictures[..., 0], pictures[..., 1] = reds[:, None, None], greens[:, None, None]
    labels = np.where(reds / 255 + 0.1 > greens / 255, 0, 1)
    labels[1 : 1 + 11 * mistakes : 11] ^= 1
    return pictures, labels


@pytest.mark.parametrize("labelled", [False, True])
def test_a_small_network_that_is_surer_at_a_larger_scale_raises_no_suspicion(give, labelled) -> None:
    x, y = red_or_green(mistakes=8)
    right = contract(0.0, 255.0)
    given = give(x, right, **({"y": y} if labelled else {}))
    assert "normalisation" not in codes(suspicions(WithoutNormalisation(), right, given))


def test_a_scale_that_costs_a_few_right_answers_is_told_with_labels(give) -> None:
    x, y = red_or_green(mistakes=8)
    wrong = contract(0.0, 1.0)
    (finding,) = suspicions(WithoutNormalisation(), wrong, give(x, wrong, y=y))
    assert finding.code == "normalisation"
    assert "of 200 items are recognised then that are not now" in finding.what
    assert finding.do.endswith("write mean = 0 and std = 255 in the contract file")


def test_the_evidence_without_labels_is_in_plain_words(give) -> None:
    x, _ = coloured()
    wrong = contract(0.0, 1.0)
    (finding,) = (f for f in suspicions(ByColour(), wrong, give(x, wrong)) if f.code == "normalisation")
    assert "kinds of picture, not" in finding.what
    assert "nats" not in finding.what


def test_bytes_of_the_other_layout_are_told_and_flat_ones_are_not(give) -> None:
    from PIL import Image

    small = RNG.integers(0, 256, (20, 4, 4, 3), np.uint8)
    x = np.stack([np.asarray(Image.fromarray(picture).resize((16, 16), Image.Resampling.BICUBIC)) for picture in small])
    grey = np.repeat(x[..., :1], 3, -1)
    raw = Contract("raw", contract().inputs, contract().outputs)
    for right in (x, grey, RNG.integers(0, 256, x.shape, np.uint8)):
        assert suspicions(ByColour(), raw, give(right, raw)) == ()
    for picture in (x, grey):
        mixed = np.ascontiguousarray(picture.transpose(0, 3, 1, 2)).reshape(x.shape)
        assert codes(suspicions(ByColour(), raw, give(mixed, raw))) == {"layout"}


def test_a_handful_of_items_says_nothing(give) -> None:
    x, y = coloured(11)
    assert suspicions(ByColour(), contract(), give(x[..., ::-1], contract(), y=y)) == ()


@pytest.mark.convert
def test_digits_raise_no_suspicion(digits_model, give) -> None:
    source = load(digits_model.model)
    held_out = np.load(digits_model.evaluation)
    pixels = (held_out["x"] * 255).astype(np.uint8)
    spec = ImageSpec(8, 8, (0.0,), (255.0,), color="gray")
    given = Contract(
        "classification",
        (InputContract("image", (8, 8, 1), "float32", spec),),
        (OutputContract("probs", (10,), "float32"),),
        scores="probabilities",
    )
    for labels in ({}, {"y": held_out["y"]}):
        assert suspicions(source, given, give(pixels, given, **labels)) == ()
