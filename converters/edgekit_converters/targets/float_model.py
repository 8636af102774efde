"""A source written in a target's format, in float: what every recipe of that format starts from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from edgekit_converters.progress import Progress
from edgekit_converters.targets.samples import Samples, checked_samples, turn
from edgekit_runtime.tensors import TensorSpec

__all__ = ["FloatModel", "feeds"]


@dataclass(frozen=True)
class FloatModel:
    """inputs, outputs: contract names in the engine's order. turned: picture inputs whose layout is the other one here.

    transposes: layout transpositions left in the graph. tools: distribution -> version.
    """

    format: Literal["tflite", "onnx"]
    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tools: Mapping[str, str]
    turned: frozenset[str] = field(default_factory=frozenset)
    transposes: int = 0


def feeds(
    model: FloatModel, specs: Sequence[TensorSpec], samples: Samples, progress: Progress
) -> Iterator[list[NDArray[Any]]]:
    """Calibration samples as the float model takes them: arrays in the engine's order. specs: the source's inputs."""
    order = [next(i for i, spec in enumerate(specs) if spec.name == name) for name in model.inputs]
    for arrays in checked_samples(samples, [spec.shape[1:] for spec in specs], progress):
        yield [
            (turn(arrays[i], specs[i]) if specs[i].name in model.turned else arrays[i]).astype(
                specs[i].dtype, copy=False
            )
            for i in order
        ]
