"""What a training run learns from: items, a teacher's answers, and the losses between.

    data = TrainingData(x, y, "classes")
    data.loss(answers, y)                        # a TensorFlow scalar
    data.loss_of_teacher(answers, teacher, 4.0)
    loss = box_layout(contract).loss(answers, teacher)        # both float32 [N, numbers]: all outputs in a row

Rules:
- of classes the loss is the cross entropy, of numbers the squared error; of boxes, and of items without labels, it is
  the teacher's alone;
- a teacher's classes count at a temperature T, times T^2 so that gradients keep their size (arXiv 1503.02531);
- a box, as a share of the picture, counts as much as the teacher is sure of it: background has boxes too;
- scores of boxes are compared as probabilities, by the student's excess cost (Kullback and Leibler).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_runtime.contract.detect import rows_of
from edgekit_runtime.contract.spec import Contract

_LEAST = 1 / 512
"""Of a probability: half a step of 8 bits."""
_BOX_WEIGHT = 10.0
"""A box that is a tenth of the picture off costs as much as a score that is 1 off."""

_BOX_NOISE = 0.05
"""Of the picture."""
_SURE_LOGIT = 6.0

Places = NDArray[np.int64]


@dataclass(frozen=True)
class BoxLayout:
    """Places of a detector's boxes and scores in an answer.

    boxes: [rows, 4].
    scores: [rows, classes].
    sure: of objectness, [rows], or None.
    span: a box as large as the picture, [4].
    activation: as of the contract.
    """

    boxes: Places
    scores: Places
    sure: Places | None
    span: NDArray[np.float32]
    activation: str

    def loss(self, answers: Any, teacher: Any) -> Any:
        """A TensorFlow scalar, 0 if they are the same."""
        import tensorflow as tf

        answers, teacher = (tf.reshape(one, [tf.shape(one)[0], -1]) for one in (answers, teacher))
        sure = tf.reduce_max(self._probabilities(teacher), axis=-1)
        if self.sure is not None:
            sure *= self._activated(tf.gather(teacher, self.sure, axis=1))
        away = [tf.gather(one, self.boxes, axis=1) / self.span for one in (answers, teacher)]
        off = tf.reduce_sum(tf.abs(away[0] - away[1]), axis=-1)
        boxes = tf.reduce_sum(sure * off) / (tf.reduce_sum(sure) + _LEAST)
        lost = tf.reduce_sum(self._lost(self._probabilities(answers), self._probabilities(teacher)), axis=-1)
        if self.sure is not None:
            lost += self._lost(*(self._activated(tf.gather(one, self.sure, axis=1)) for one in (answers, teacher)))
        scores = tf.reduce_sum(lost) / (tf.reduce_sum(sure) + _LEAST)
        return _BOX_WEIGHT * boxes + scores

    def drawn(self, answers: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        """Labels drawn as likely as the answers say, [N, numbers]: the answers have no gradient."""
        found = np.array(answers.reshape(len(answers), -1))
        low, high = (-_SURE_LOGIT, _SURE_LOGIT) if self.activation != "none" else (0.0, 1.0)
        for places in (self.scores, self.sure):
            if places is not None:
                values = found[:, places]
                odds = values if self.activation == "none" else 1 / (1 + np.exp(-values))
                found[:, places] = np.where(random.random(values.shape) < odds, high, low)
        found[:, self.boxes] += random.normal(0, _BOX_NOISE, (len(found), *self.boxes.shape)) * self.span
        return found

    def _activated(self, values: Any) -> Any:
        import tensorflow as tf

        return tf.sigmoid(values) if self.activation == "sigmoid" else values

    def _probabilities(self, answers: Any) -> Any:
        """[N, rows, classes]"""
        import tensorflow as tf

        values = tf.gather(answers, self.scores, axis=1)
        return tf.nn.softmax(values) if self.activation == "softmax" else self._activated(values)

    def _lost(self, own: Any, wanted: Any) -> Any:
        """Of each probability, 0 if both are the same; finite and with a slope at 0 and 1."""
        import tensorflow as tf

        p, q = (_LEAST + (1 - 2 * _LEAST) * tf.clip_by_value(one, 0.0, 1.0) for one in (own, wanted))
        p += own - tf.stop_gradient(own) - (p - tf.stop_gradient(p))  # the slope of what was clipped, too
        return q * tf.math.log(q / p) + (1 - q) * tf.math.log((1 - q) / (1 - p))


def box_layout(contract: Contract) -> BoxLayout:
    """Raises CompressError for answers that a suppression has made."""
    spec = contract.detection
    assert spec is not None
    if spec.suppressed or spec.count or spec.classes or spec.row == "box score class":
        raise CompressError(
            "the detector numbers its classes, or ends in a suppression of its own, and no gradient passes that",
            do="Give the network that ends in boxes and a score for each class; the contract does the rest",
        )
    places, start = {}, 0
    for output in contract.outputs:
        size = int(np.prod(output.shape, dtype=np.int64))
        places[output.name] = np.arange(start, start + size, dtype=np.int64).reshape(output.shape)
        start += size
    rows = rows_of(places[spec.boxes], spec)
    sure = None
    if spec.row == "box":
        assert spec.scores is not None
        scores = places[spec.scores]
        table = scores.reshape(-1, 1) if scores.size == len(rows) else rows_of(scores, spec)
    elif spec.row == "box objectness scores":
        sure, table = rows[:, 4], rows[:, 5:]
    else:
        table = rows[:, 4:]
    sides = spec.span[::-1] if spec.format == "yxyx" else spec.span
    return BoxLayout(rows[:, :4], table, sure, np.array([*sides, *sides], np.float32), spec.activation)


@dataclass(frozen=True)
class TrainingData:
    """Items to train on.

    x: float32 [N, ...], as the network takes it.
    y: int64 [N] for classes, float32 [N, outputs] for numbers, None without labels.
    layout: of boxes.
    """

    x: NDArray[np.float32]
    y: NDArray[Any] | None
    kind: Literal["classes", "numbers", "boxes"]
    layout: BoxLayout | None = None

    def labels(self, answers: NDArray[np.float32]) -> NDArray[Any]:
        """y, or a teacher's answers, [N, outputs], in its place."""
        if self.y is not None:
            return self.y
        if self.kind != "classes":
            return answers
        return answers.argmax(1) if answers.shape[1] > 1 else (answers[:, 0] > 0).astype(np.int64)

    def loss(self, answers: Any, y: Any) -> Any:
        """The labels' loss, a TensorFlow scalar."""
        if self.layout is not None:
            return self.layout.loss(answers, y)
        return loss_of(self.kind, answers, y)

    def loss_of_teacher(self, answers: Any, teacher: Any, temperature: float) -> Any:
        if self.layout is not None:
            return self.layout.loss(answers, teacher)
        return _loss_of_teacher(self.kind, answers, teacher, temperature)


@dataclass(frozen=True)
class TrainingOptions:
    """How long and how fast to train.

    steps: of `batch` items, at most.
    rate: Adam's first, falling as a cosine.
    patience: rounds without a better one.
    key: of everything else that the run depends on; a state with another key is not resumed.
    """

    steps: int = 2000
    batch: int = 64
    rate: float = 1e-3
    patience: int = 8
    seed: int = 0
    key: str = ""


@dataclass(frozen=True)
class Teaching:
    """A teacher's answers, and how much they count.

    answers: float32 [N, outputs] to each item, of classes before a softmax.
    alpha: their share of the loss, 0..1.
    temperature: divides the answers of both; of numbers it has no effect.
    hints: float32 [N, numbers] of a layer inside it, or None; the trainee appends its own to its answers.
    """

    answers: NDArray[np.float32]
    alpha: float = 0.5
    temperature: float = 1.0
    hints: NDArray[np.float32] | None = None

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """[rows, outputs], followed by hints."""
        found = self.answers[rows]
        return found if self.hints is None else np.concatenate([found, self.hints[rows]], axis=1)


class Trainee(Protocol):
    """What is trained.

    variables: TensorFlow's, which Adam changes.
    others: that a training step changes besides: moving means, seeds.
    """

    @property
    def variables(self) -> Sequence[Any]: ...
    @property
    def others(self) -> Sequence[Any]: ...
    def answer(self, x: Any, *, training: bool) -> Any:
        """float32 [N, outputs], of classes before a softmax. x: float32 [N, ...]."""
        ...


def loss_of(kind: str, logits: Any, y: Any) -> Any:
    """The labels' loss, a TensorFlow scalar.

    logits: [N, outputs].
    kind, y: as of TrainingData.
    """
    import tensorflow as tf

    if kind == "numbers":
        return tf.reduce_mean(tf.square(tf.reshape(logits, tf.shape(y)) - y))
    if logits.shape[-1] == 1:
        label = tf.cast(y[:, None], tf.float32)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, logits))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def _loss_of_teacher(kind: str, logits: Any, teacher: Any, heat: float) -> Any:
    import tensorflow as tf

    if kind == "numbers":
        return tf.reduce_mean(tf.square(tf.reshape(logits, tf.shape(teacher)) - teacher))
    wanted, own = teacher / heat, logits / heat
    if logits.shape[-1] == 1:
        found = tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(wanted), own)
    else:
        found = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(wanted), own)
    return heat**2 * tf.reduce_mean(found)
