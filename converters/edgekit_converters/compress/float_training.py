"""Train a Keras model as it is, in float, with its batch norm and dropout.

    run = FloatRun("distill", TrainingOptions(steps=2000), folder)
    made = train_float(network, model, data, Teaching(answers), run)
    made.data                                   # a .keras file, without ranges: a build calibrates it

Rules: the loss reads the input of a last softmax or sigmoid; frozen layers stay frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit_converters.compress.channels import batch_norms
from edgekit_converters.compress.losses import Teaching, TrainingData, TrainingOptions
from edgekit_converters.compress.network import Network, keras_file
from edgekit_converters.compress.pruning import Sparsity, kernels_of
from edgekit_converters.compress.qat import TrainedFile
from edgekit_converters.compress.simulation import joined
from edgekit_converters.compress.train import fit
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.progress import Progress, silent


@dataclass(frozen=True)
class FloatRun:
    """How a step trains in float.

    name: of the step.
    folder: where an interrupted run resumes from.
    say: as of `fit`.
    sparsity: the share of each kernel that becomes zero, or None.
    adapted: makes of the model a Keras tensor [N, numbers] that learns the hints, or None.
    """

    name: str
    options: TrainingOptions
    folder: Path
    progress: Progress = silent
    say: Callable[[str], None] = lambda line: None
    sparsity: float | None = None
    adapted: Callable[[Any], Any] | None = None


def check_batch(network: Network, batch: int, where: str) -> None:
    """Raises CompressError for a batch norm that would have nothing to normalize over."""
    found = batch_norms(network)
    if batch == 1 and found:
        raise CompressError(
            f"a batch of 1 leaves the batch norm '{found[0]}' nothing to take a mean of",
            where=where,
            do="Write batch = 8 or more in a --recipe file",
        )


class _KerasTrainee:
    """variables: that the layers train; others: that they change themselves. Both TensorFlow's."""

    def __init__(self, model: Any) -> None:
        trained = list(model.trainable_variables)
        known = set(map(id, trained))
        self._model = model
        self.variables = [one.value for one in trained]
        self.others = [one.value for one in model.variables if id(one) not in known]

    def answer(self, x: Any, *, training: bool) -> Any:
        answers = self._model(x, training=training)
        return joined(answers) if isinstance(answers, (list, tuple)) else answers


def train_float(network: Network, model: Any, data: TrainingData, teaching: Teaching, run: FloatRun) -> TrainedFile:
    """Train a model in place.

    model: Keras', of the network's layers, with all their channels or fewer.

    Raises CompressError for a batch norm and a batch of 1, and for a model in which nothing can be trained.
    """
    import keras

    check_batch(network, run.options.batch, "batch")
    if not model.trainable_variables:
        raise CompressError("all its layers are frozen", do="Set trainable = True on those to train, and save it again")
    softmax = network.nodes[network.output].op in ("softmax", "sigmoid") and data.kind == "classes"
    inner = model
    if softmax:
        last = model.get_layer(next(call.name for call in network.calls if call.output == network.results[0]))
    if softmax and last.weights:
        activation, last.activation = last.activation, keras.activations.linear
    elif softmax:
        inner = keras.Model(model.inputs, last.input)
    if run.adapted is not None:
        inner = keras.Model(inner.inputs[0], [*inner.outputs, run.adapted(model)])
    trainee = _KerasTrainee(inner)
    sparsity = None
    if run.sparsity is not None:
        sparsity = Sparsity(kernels_of(model, trainee.variables), run.sparsity)
        if not sparsity.places:
            raise CompressError(
                "no convolution and no dense layer of it is trained, so no weight can become zero",
                do="Leave --steps sparse out",
            )
    found = fit(trainee, data, teaching, run.options, run.folder, run.name, run.progress, run.say, sparsity=sparsity)
    for variable, value in zip([*trainee.variables, *trainee.others], found.values, strict=True):
        variable.assign(value)
    if softmax and last.weights:
        last.activation = activation
    return TrainedFile(keras_file(model), {}, found.record(run.options))
