"""Colour order, normalisation and layout that do not fit the network, found by running it.

    for finding in suspicions(source, contract, dataset):
        print(finding.what, finding.do)          # "with red and blue exchanged the original is surer, 41 of 48 ..."

Codes: `colour-order`, `normalisation`, `layout`. All are suspicions, never errors.

Rules:
- the original itself judges, on up to 32 items spread over the set (12 at least), each prepared as the contract says
  and otherwise;
- with labels, the other way must be right where the contract's is wrong, beyond chance. A normalisation is also
  reported if it is right more often and gives the right classes better odds; in doubt up to 200 items are tried;
- without labels only a classifier can be judged. Colour order: its entropy must fall, beyond chance, item by item;
- normalisation without labels: the answers must distinguish the items 1.3 times as well and by 0.3 more (entropy of the
  mean answer less the mean entropy), with pixels not spread wider than the contract's: at a larger scale a network
  without normalisation layers is surer, right or wrong;
- layout: arrays that are far smoother when their bytes are read as [channels, height, width].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Dataset, Example
from edgekit_converters.data.lint import Finding
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract, ImageSpec

_ITEMS, _FEWEST, _BATCH = 32, 12, 8
_MOST_ITEMS = 200
_CHANCE, _SURELY = 2.5, 3.5  # standard errors: of counts, and of the odds of the right classes
_TIMES, _MORE = 1.3, 0.3
_SMOOTHER, _MOST = 0.75, 0.8
_NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "0 to 255": ((0.0,), (1.0,)),
    "0 to 1": ((0.0,), (255.0,)),
    "-1 to 1": ((127.5,), (127.5,)),
    "ImageNet's mean and deviation": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
}

Scores = NDArray[np.float64]


def suspicions(
    source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent
) -> tuple[Finding, ...]:
    """Findings of level `warning`.
    Runs the original some 150 times on up to 32 items, or up to 200 if labels leave a doubt; skips unreadable items."""
    if len(contract.inputs) != 1 or not pictures(contract.inputs) or contract.state != "none":
        return ()
    examples = list(_readable(dataset, _ITEMS))
    if len(examples) < _FEWEST:
        return ()
    found = list(_layout(examples, contract, dataset.name))
    if contract.task == "classification":
        trial = _Trial(source, contract, examples, progress)
        found += [*_colour(trial, dataset.name), *_normalisation(trial, dataset)]
    return tuple(found)


@dataclass(frozen=True)
class PixelGuess:
    """name: of the normalisation.
    image: as the contract takes it.
    rivals: names of others that do about as well.
    """

    name: str
    image: ImageSpec
    rivals: tuple[str, ...]


def guess_pixels(
    source: SourceModel, contract: Contract, dataset: Dataset, progress: Progress = silent
) -> PixelGuess | None:
    """The usual normalisation with which the original's answers distinguish the items best.

    None if the contract is not a classifier of pictures, or if there are too few items. Larger numbers must do much
    better than smaller ones, since they make a network surer, right or wrong.
    """
    if len(contract.inputs) != 1 or not pictures(contract.inputs) or contract.task != "classification":
        return None
    trial = _Trial(source, contract, list(_readable(dataset, _ITEMS)), progress)
    if len(trial.examples) < _FEWEST:
        return None
    images = {
        label: replace(trial.image, mean=_each(mean, trial.image), std=_each(std, trial.image))
        for label, (mean, std) in _NORMALISATIONS.items()
        if len(mean) <= trial.image.channels
    }
    found = {label: _mutual_information(trial.scores(image)) for label, image in images.items()}
    best = min(images, key=lambda label: _spread(images[label]))
    for label in sorted(images, key=lambda label: _spread(images[label])):
        if found[label] > max(_TIMES * found[best], found[best] + _MORE):
            best = label
    rivals = tuple(label for label in images if label != best and found[label] > found[best] / _TIMES)
    return PixelGuess(best, images[best], rivals)


def _readable(dataset: Dataset, most: int) -> Iterator[Example]:
    wanted = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int))
    for index in wanted.tolist():
        try:
            yield from dataset.pick([index])
        except CalibrationError:
            continue


@dataclass
class _Trial:
    """The original's answers to the same items, prepared in several ways."""

    source: SourceModel
    contract: Contract
    examples: Sequence[Example]
    progress: Progress
    done: int = 0

    @property
    def image(self) -> ImageSpec:
        return pictures(self.contract.inputs)[0]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        labels = [example.label for example in self.examples]
        if not all(isinstance(label, int | np.integer) for label in labels):
            return None
        return np.array(labels, np.int64)

    @cached_property
    def given(self) -> Scores:
        """The answers to items prepared as the contract says."""
        return self.scores()

    def scores(self, image: ImageSpec | None = None, *, exchanged: bool = False) -> Scores:
        """[items, classes], each row a distribution. exchanged: the first channel for the last."""
        given = replace(self.contract.inputs[0], image=image) if image else self.contract.inputs[0]
        spec = next(spec for spec in self.source.inputs if spec.name == given.name)
        adapter = Adapter(given, spec)
        pictures = [example.inputs[given.name] for example in self.examples]
        if exchanged:
            pictures = [np.ascontiguousarray(picture[..., ::-1]) for picture in pictures]
        rows = []
        for start in range(0, len(pictures), _BATCH):
            batch = np.concatenate([adapter(picture) for picture in pictures[start : start + _BATCH]])
            rows.append(np.asarray(self.source.predict([batch])[0], np.float64).reshape(len(batch), -1))
            self.done += len(batch)
            self.progress("checking how pictures are read", self.done, None)
        answers = np.concatenate(rows)
        if self.contract.scores == "logits":
            answers = np.exp(answers - answers.max(1, keepdims=True))
        answers = np.maximum(answers, 1e-9)
        return np.asarray(answers / answers.sum(1, keepdims=True))


def _colour(trial: _Trial, name: str) -> Iterator[Finding]:
    if trial.image.channels != 3:
        return
    given, other = trial.given, trial.scores(exchanged=True)
    gained = _more_right(given, other, trial.labels)
    if trial.labels is not None:
        evidence = (
            f"{gained[0]} of {len(given)} items are recognised then that are not now, and {gained[1]} the reverse"
        )
        suspicious = _beyond_chance(*gained)
    else:
        fall = _entropy(given) - _entropy(other)
        spread = float(fall.std(ddof=1)) / len(fall) ** 0.5
        suspicious = spread > 0 and float(fall.mean()) > _CHANCE * spread
        evidence = f"it is surer of {int((fall > 0).sum())} of {len(fall)} items"
    if suspicious:
        order = "bgr" if trial.image.color == "rgb" else "rgb"
        what = f"{name}: with red and blue exchanged the original does better: {evidence}"
        do = f'If it was trained on {order.upper()}, write color = "{order}" in the contract file'
        yield Finding("colour-order", "warning", what, do)


def _normalisation(trial: _Trial, dataset: Dataset) -> Iterator[Finding]:
    if any(example.inputs[trial.contract.inputs[0].name].dtype != np.uint8 for example in trial.examples):
        return  # floats are taken as normalised already
    if np.dtype(trial.contract.inputs[0].dtype).kind != "f":
        return
    more: list[_Trial] = []  # made once, where an answer is in doubt

    def longer() -> _Trial:
        if not more:
            examples = list(_readable(dataset, _MOST_ITEMS))
            more.append(_Trial(trial.source, trial.contract, examples, trial.progress, trial.done))
        return more[0]

    best: tuple[float, str, ImageSpec, str] | None = None
    for label, (mean, std) in _NORMALISATIONS.items():
        if len(mean) > trial.image.channels or _alike(trial.image, mean, std):
            continue
        image = replace(trial.image, mean=_each(mean, trial.image), std=_each(std, trial.image))
        if trial.labels is not None:
            better = _better_by_labels(trial, image, longer if len(dataset) > len(trial.examples) else None)
        else:
            better, now = None, _mutual_information(trial.given)
            then = _mutual_information(trial.scores(image)) if _spread(image) <= _spread(trial.image) else 0.0
            if then > max(_TIMES * now, now + _MORE):
                evidence = f"its answers distinguish about {np.exp(then):.1f} kinds of picture, not {np.exp(now):.1f}"
                better = then - now, evidence
        if better is not None and (best is None or better[0] > best[0]):
            best = better[0], label, image, better[1]
    if best is not None:
        _, label, image, evidence = best
        what = f"{dataset.name}: with pixels of {label} the original does better: {evidence}"
        pixels = f"mean = {_written(image.mean)} and std = {_written(image.std)}"
        yield Finding("normalisation", "warning", what, f"If it was trained so, write {pixels} in the contract file")


def _better_by_labels(trial: _Trial, image: ImageSpec, longer: Callable[[], _Trial] | None) -> tuple[float, str] | None:
    """(how much better, the evidence) or None.
    longer: makes the same trial on more items, None if there are no more."""
    labels = trial.labels
    if labels is None:
        return None
    given, other = trial.given, trial.scores(image)
    won, lost = _more_right(given, other, labels)
    decided = _beyond_chance(won, lost)
    surer = False
    # Odds are asked of a network that is right on most items only: one that another fault misleads does better the
    # less it says. A scale that is too large makes mistakes certain.
    if not decided and won > lost and float((other.argmax(1) == labels).mean()) > 0.5:
        rows = np.arange(len(labels))
        gain = np.log(other[rows, labels]) - np.log(given[rows, labels])
        spread = float(gain.std(ddof=1)) / len(gain) ** 0.5
        surer = bool(spread > 0 and float(gain.mean()) > _SURELY * spread)
    if decided or surer:
        odds = "" if decided else "; and it gives the right classes better odds"
        evidence = f"{won} of {len(given)} items are recognised then that are not now, and {lost} the reverse{odds}"
        return (won - lost) / len(given), evidence
    if won > lost and longer is not None:
        return _better_by_labels(longer(), image, None)
    return None


def _layout(examples: Sequence[Example], contract: Contract, name: str) -> Iterator[Finding]:
    """The layout finding: [3, H, W] bytes taken for [H, W, 3], a `reshape` for a `transpose`."""
    arrays = [example.inputs[contract.inputs[0].name] for example in examples]
    if arrays[0].shape[-1] != 3 or min(arrays[0].shape[:2]) < 8:
        return
    height, width, channels = arrays[0].shape
    ratios = []
    for array in arrays:
        values = array.astype(np.float64)
        rough = _roughness(values)
        if rough > 0:
            ratios.append(_roughness(values.reshape(channels, height, width).transpose(1, 2, 0)) / rough)
    if len(ratios) >= _FEWEST and float(np.mean(np.array(ratios) < _SMOOTHER)) >= _MOST:
        what = f"{name}: its pictures are far smoother when their bytes are read as [channels, height, width]"
        do = "Give [height, width, channels]: transpose(0, 2, 3, 1), and not reshape"
        yield Finding("layout", "warning", what, do)


def _roughness(picture: Scores) -> float:
    """The mean step between neighbours, down and across."""
    return float(np.abs(np.diff(picture, axis=0)).mean() + np.abs(np.diff(picture, axis=1)).mean())


def _entropy(scores: Scores) -> Scores:
    return np.asarray(-(scores * np.log(scores)).sum(-1))


def _mutual_information(scores: Scores) -> float:
    """Of item and answer: 0 if every item gets the same answer.
    Its exponential is the number of kinds of item that answers without doubt would distinguish as well."""
    return float(_entropy(scores.mean(0)) - _entropy(scores).mean())


def _more_right(given: Scores, other: Scores, labels: NDArray[np.int64] | None) -> tuple[int, int]:
    """Items that only the other way recognises, and those that only the given way does."""
    if labels is None:
        return 0, 0
    first, second = given.argmax(1) == labels, other.argmax(1) == labels
    return int((second & ~first).sum()), int((first & ~second).sum())


def _beyond_chance(won: int, lost: int) -> bool:
    return bool(won - lost >= max(3.0, _CHANCE * (won + lost) ** 0.5))


def _alike(image: ImageSpec, mean: Sequence[float], std: Sequence[float]) -> bool:
    """Whether two normalisations send mid-range pixels to nearly the same numbers."""
    ends = np.array([32.0, 224.0])
    for m, s, own_m, own_s in zip(_each(mean, image), _each(std, image), image.mean, image.std, strict=True):
        own, other = (ends - own_m) / own_s, (ends - m) / s
        if np.abs(own - other).max() > 0.35 * max(np.ptp(own), np.ptp(other)):
            return False
    return True


def _spread(image: ImageSpec) -> float:
    """How far apart the numbers of a black and of a white pixel are."""
    return max(255 / abs(s) for s in image.std)


def _each(values: Sequence[float], image: ImageSpec) -> tuple[float, ...]:
    """One value a channel, in the order of the network's channels."""
    whole = tuple(values) * (image.channels // len(values))
    return whole[::-1] if image.color == "bgr" else whole


def _written(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "[" + ", ".join(f"{value:g}" for value in values) + "]"
