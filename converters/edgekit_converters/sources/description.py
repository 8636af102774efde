"""What every source says of itself; each reader adds how it answers.

@dataclass(frozen=True, eq=False, kw_only=True)
class NewSource(Description): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.tensors import TensorSpec

__all__ = ["Description", "Note", "State"]

State = Literal["none", "explicit", "internal"]
"""Whether an answer depends on earlier ones. explicit: what is remembered goes in and comes out, so the caller carries it.
internal: the model keeps it to itself."""


@dataclass(frozen=True)
class Note:
    """Something that a person should know of a model that was read all the same. code: stable, for scripts."""

    code: str
    what: str
    do: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Description:
    """path: the file, the folder, or `module:function`. sha256: of the file, together with the options that make another
    model of it (shapes, constants, signature). state_pairs: (input, output), where state is explicit. Two sources are
    equal only if they are one.
    """

    path: Path
    format: str
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: State = "none"
    state_pairs: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def free_batch(self) -> bool:
        """True when any number of items may be asked at once."""
        return all(spec.free_batch for spec in (*self.inputs, *self.outputs))

    def reset(self) -> None:
        """Forget what earlier answers left inside. A source whose state is not internal has nothing to forget."""

    def answered(
        self,
        inputs: Sequence[NDArray[Any]],
        run: Callable[[list[NDArray[Any]]], list[NDArray[Any]]],
        *,
        at_once: bool,
    ) -> list[NDArray[Any]]:
        """What `run` answers to a batch of any size, in the inputs' dtypes: all items at once, or one after the other. An
        empty batch is not run."""
        arrays = [np.ascontiguousarray(array, spec.dtype) for array, spec in zip(inputs, self.inputs, strict=True)]
        count = len(arrays[0])
        if count == 0:
            return [np.zeros((0, *spec.shape[1:]), spec.dtype) for spec in self.outputs]
        if at_once:
            return run(arrays)
        items = [run([array[i : i + 1] for array in arrays]) for i in range(count)]
        return [np.concatenate(parts) for parts in zip(*items, strict=True)]
