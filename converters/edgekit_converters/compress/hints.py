"""Hints: the output of a layer inside the teacher, which a student's layer learns to give.

    hints = Hints(open_teacher(path), "relu_3", "relu_2")       # the teacher's layer, the student's
    wanted = hints.wanted(items, student)                       # float32 [N, numbers], in a file of the folder
    answers = hints.adapted(student)                            # a Keras tensor, [N, numbers]: of the same shape

Rules (Romero et al., arXiv 1412.6550):
- a 1x1 convolution, or a dense layer after the last map, adapts the student's layer; it is trained, but not saved;
- a larger map of the teacher is averaged to the student's size; each channel has mean 0 and deviation 1 over the items,
  so that a student that knows only the means has a loss of 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.channels import trace, without
from edgekit_converters.compress.network import Network, read_network
from edgekit_converters.compress.qat import open_network
from edgekit_converters.compress.train import array_on_disk
from edgekit_converters.compress.twin import keras_twin
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.sources.load import load

_BATCH = 64
_NAME = "edgekit_adapter"
"""Not one of Keras' own, which a loaded model may have."""
_LEAST_HINTS = 1e-6
_SHOWN = 8


def parse_layers(text: str) -> tuple[str, str]:
    """(the student's layer, the teacher's) of "LAYER", or of "STUDENT=TEACHER"."""
    student, _, teacher = text.partition("=")
    return student.strip(), (teacher or student).strip()


def open_teacher(path: Path) -> Network:
    """Raises CompressError for a teacher whose layers cannot be read."""
    return open_network(path) if path.suffix == ".keras" else read_network(keras_twin(load(path)), path.name)


@dataclass
class Hints:
    """layer, student_layer: names.
    where: of the teacher, for errors.
    """

    teacher: Network
    layer: str
    student_layer: str
    where: str = ""
    _shape: tuple[int, ...] = field(default=(), init=False)

    def wanted(self, items: Iterable[NDArray[np.float32]], count: int, student: Any, file: Path) -> NDArray[np.float32]:
        """Write the hints of each item, [count, numbers], into that file.

        items: as the teacher takes them, each with a batch axis of 1.

        Raises CompressError if a layer is missing, or gives no map.
        """
        import tensorflow as tf

        model = without(self.teacher, trace(self.teacher), np.zeros(0, np.int64))
        inner = type(model)(model.inputs[0], _layer(model, self.layer, self.where).output)
        own = tuple(map(int, _layer(student, self.student_layer, "the student").output.shape[1:]))
        theirs = tuple(map(int, inner.output_shape[1:]))
        if len(own) != len(theirs) or len(own) not in (1, 3):
            raise CompressError(
                f"the student's '{self.student_layer}' gives {_size(own)}, and the teacher's '{self.layer}' "
                f"{_size(theirs)}",
                do="Give features two maps, or two rows of numbers",
            )
        self._shape = (*own[:-1], theirs[-1])
        answer = tf.function(lambda x: inner(x, training=False), reduce_retracing=True)
        made = array_on_disk(file, (count, *self._shape))
        at, given = 0, iter(items)
        while some := list(islice(given, _BATCH)):
            value = answer(tf.constant(np.concatenate(some)))
            if len(own) == 3 and own[:2] != theirs[:2]:
                value = tf.image.resize(value, own[:2], "area")
            made[at : at + len(some)] = value
            at += len(some)
        standardize(made)
        return made.reshape(count, -1)

    def adapted(self, student: Any) -> Any:
        """student: a Keras model; call `wanted` first."""
        import keras

        found = _layer(student, self.student_layer, "the student").output
        layers, channels = keras.layers, self._shape[-1]
        adapter = (
            layers.Conv2D(channels, 1, name=_NAME) if len(self._shape) == 3 else layers.Dense(channels, name=_NAME)
        )
        return layers.Flatten(name=f"{_NAME}_numbers")(adapter(found))


def standardize(values: NDArray[np.float32]) -> None:
    """Give each channel, the last axis, mean 0 and deviation 1 in place, a few items at a time."""
    parts = [values[at : at + _BATCH].reshape(-1, values.shape[-1]) for at in range(0, len(values), _BATCH)]
    rows = sum(map(len, parts))
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in parts) / rows
    for part in parts:
        part -= mean
    variance = sum(np.square(part, dtype=np.float64).sum(axis=0) for part in parts) / rows
    for part in parts:
        part /= np.maximum(np.sqrt(variance), _LEAST_HINTS)


def _layer(model: Any, name: str, where: str) -> Any:
    layers = {layer.name: layer for layer in model.layers}
    if name not in layers:
        raise _missing(name, where, layers)
    return layers[name]


def check_layer(network: Network, name: str, where: str) -> None:
    """Raises CompressError if the network has no layer of that name."""
    names = [call.name for call in network.calls if call.is_layer]
    if name not in names:
        raise _missing(name, where, names)


def _missing(name: str, where: str, known: Iterable[str]) -> CompressError:
    return CompressError(
        f"there is no layer '{name}'", where=where, do=f"Its last layers: {', '.join(list(known)[-_SHOWN:])}"
    )


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
