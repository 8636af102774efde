"""Quantization-aware training from file to file: `edgekit compress --steps qat`.

made = train_for_8_bits(path, data, TrainingOptions(steps=2000), folder)
made.data, made.ranges                          # a .keras file, and format -> tensor -> (low, high)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit_converters.compress.losses import TrainingData, TrainingOptions
from edgekit_converters.compress.network import Network, read_network, to_keras
from edgekit_converters.compress.train import train
from edgekit_converters.compress.twin import tensor_names
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.foreign_code import import_keras, quiet
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.recipe.store import NO_STORE, StageStore
from edgekit_converters.sources.load import load
from edgekit_converters.targets.workspace import Workspace

_PROBES = 4


@dataclass(frozen=True)
class TrainedFile:
    """A trained model and its learnt ranges.

    data: a `.keras` file.
    ranges: format -> tensor of its float graph -> (low, high).
    record: the run as JSON.
    """

    data: bytes
    ranges: dict[str, dict[str, tuple[float, float]]]
    record: dict[str, Any]


def open_network(path: Path) -> Network:
    """Open a model as a network that can be trained.

    Raises SourceError for a file with code, CompressError for a layer that is not simulated and for a network that
    Keras cannot make again.
    """
    keras = import_keras()
    load(path)  # refuses code
    with quiet():
        model = keras.models.load_model(path, compile=False, safe_mode=True)
        network = read_network(model, path.name)
        try:
            to_keras(network, network.weights)
        except (ValueError, TypeError, RuntimeError) as error:
            raise CompressError(
                f"Keras cannot make its network again with other weights: {error}",
                where=path.name,
                do="Build without compress",
            ) from error
    return network


def train_for_8_bits(
    path: Path,
    data: TrainingData,
    options: TrainingOptions,
    folder: Path,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
    *,
    store: StageStore = NO_STORE,
    hold_zeros: bool = False,
) -> TrainedFile:
    """Train a model in 8 bits, with its float answers as the teacher.

    path: a `.keras` file that `sources.load` takes.
    folder: where an interrupted run resumes from.
    hold_zeros: keep the zeros of a sparse network.

    Raises CompressError for a layer that is not simulated.
    """
    network = open_network(path)
    trained = train(network, data, options, folder, progress, say, hold_zeros=hold_zeros)
    simulation, values = trained.simulation, trained.simulation.rounded(trained.values)
    with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
        file = Path(scratch) / path.name
        with quiet():
            to_keras(network, simulation.weights(values)).save(file)
        workspace = Workspace(load(file), None, progress, store=store)
        ranges = simulation.ranges(values)
        probes = np.asarray(data.x[:: max(1, len(data.x) // _PROBES)][:_PROBES])
        named = {}
        for form in ("tflite", "onnx"):
            names = tensor_names(trained.network, simulation, values, workspace, form, probes)
            named[form] = {name: ranges[place] for name, place in names.items()}
        return TrainedFile(file.read_bytes(), named, trained.record(options))
