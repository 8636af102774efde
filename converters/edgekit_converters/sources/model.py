"""What every source becomes: a model that can be run as it was trained, and described."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from edgekit_converters.sources.description import Note, State
from edgekit_runtime.tensors import TensorSpec

__all__ = ["FinishedSource", "SourceModel", "TensorFlowSource", "TfliteSource"]


class SourceModel(Protocol):
    """A trained model as its author saved it.

    `inputs` and `outputs` carry the contract's names; shapes have -1 where an axis is free (the batch), `layout` is set
    for image-shaped inputs ([N, H, W, C] or [N, C, H, W] with 1, 3 or 4 channels). `sha256` is of the file, together with
    the options that make another model of it. `state`, `state_pairs`, `notes`: see `Description`.
    """

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def state(self) -> State: ...
    @property
    def state_pairs(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def notes(self) -> tuple[Note, ...]: ...

    def predict(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The original, in float, on a batch: arrays in the order of `inputs`, results in the order of `outputs`."""
        ...

    def reset(self) -> None:
        """The next answer is a first one, where `state` is internal; nothing otherwise."""
        ...

    def onnx(self) -> bytes:
        """The float model as ONNX (opset 17, IR 10, batch axis free where the source's is), made once and kept.

        Raises ConversionError where ONNX cannot express it.
        """
        ...


@runtime_checkable
class TensorFlowSource(SourceModel, Protocol):
    """A source that TensorFlow can trace: Keras 3, tf_keras, a SavedModel."""

    @property
    def variables(self) -> Sequence[Any]:
        """The TensorFlow variables and other tracked resources (tables) that `call` reads."""
        ...

    @property
    def tools(self) -> tuple[str, ...]:
        """Distributions that read the file, besides TensorFlow: `keras`, `tf-keras`."""
        ...

    def call(self, *inputs: Any) -> list[Any]:
        """The network on TensorFlow tensors in inference mode: inputs and results in the contract's order, one batch."""
        ...


@runtime_checkable
class TfliteSource(SourceModel, Protocol):
    """A source that is a float .tflite already."""

    def tflite(self) -> bytes:
        """The file's bytes. The tensors of `inputs` and `outputs` are named by their `tensor`, in the engine's order."""
        ...


@runtime_checkable
class FinishedSource(SourceModel, Protocol):
    """A source that is to be packed as it is: nothing is converted, and it is its own original."""

    @property
    def tensors(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Inputs and outputs as the file has them, in the engine's order, `name` from the contract."""
        ...

    def finished(self) -> bytes:
        """The file's bytes."""
        ...
