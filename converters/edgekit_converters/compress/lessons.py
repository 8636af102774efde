"""What a training run learns from: items, a teacher's answers, and the losses between.

    data = TrainingData(x, y, "classes")
    data.loss(answers, y)                        # a TensorFlow scalar
    data.loss_of_teacher(answers, teacher, 4.0)

Rules:
- of classes the loss is the cross entropy, of numbers the squared error; of boxes, and of items without labels, it is
  the teacher's alone;
- a teacher's classes count at a temperature T, times T^2 so that gradients keep their size (Hinton et al., arXiv
  1503.02531).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.boxes import BoxLayout


@dataclass(frozen=True)
class TrainingData:
    """Items to train on.

    x: float32 [N, ...], as the network takes it.
    y: int64 [N] for classes, float32 [N, outputs] for numbers, None where there are no labels.
    layout: of boxes, which have none.
    """

    x: NDArray[np.float32]
    y: NDArray[Any] | None
    kind: Literal["classes", "numbers", "boxes"]
    layout: BoxLayout | None = None

    def labels(self, answers: NDArray[np.float32]) -> NDArray[Any]:
        """y; without labels what a teacher's answers, [N, outputs], say in their place."""
        if self.y is not None:
            return self.y
        if self.kind != "classes":
            return answers
        return answers.argmax(1) if answers.shape[1] > 1 else (answers[:, 0] > 0).astype(np.int64)

    def loss(self, answers: Any, y: Any) -> Any:
        """What labels say, a TensorFlow scalar."""
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
    key: of all that the run follows from besides; a state with another one is not resumed.
    """

    steps: int = 2000
    batch: int = 64
    rate: float = 1e-3
    patience: int = 8
    seed: int = 0
    key: str = ""


@dataclass(frozen=True)
class Teaching:
    """What a teacher says, and how much it counts.

    answers: float32 [N, outputs] of the teacher to each item, of classes before a softmax.
    alpha: their share of the loss, 0..1.
    temperature: what the answers of both are divided by; of numbers it has no effect.
    hints: float32 [N, numbers] of a layer inside it, None for none; the trainee gives its own behind its answers.
    """

    answers: NDArray[np.float32]
    alpha: float = 0.5
    temperature: float = 1.0
    hints: NDArray[np.float32] | None = None

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """[rows, outputs], and hints behind them."""
        found = self.answers[rows]
        return found if self.hints is None else np.concatenate([found, self.hints[rows]], axis=1)


class Trainee(Protocol):
    """What is trained.

    variables: TensorFlow's, which Adam moves.
    others: what a training step changes besides: moving means, seeds.
    """

    @property
    def variables(self) -> Sequence[Any]: ...
    @property
    def others(self) -> Sequence[Any]: ...
    def answer(self, x: Any, *, training: bool) -> Any:
        """float32 [N, outputs], of classes before a softmax. x: float32 [N, ...]."""
        ...


def loss_of(kind: str, logits: Any, y: Any) -> Any:
    """What labels say of answers, a TensorFlow scalar.

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
