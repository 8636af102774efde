"""What a caller passed -> one canonical item an input, and where its picture lies.

    intake = Intake(contract, entry.inputs)
    named = intake.take(image)                  # by name, and refused where it cannot fit
    items, geometry = intake.decode(named)
    tensors = own(tensors, named)               # no memory of the caller's in them any more

Rules:
- the only input may be passed as it is, one of several by name;
- what is far too large is refused before it is hashed, decoded or copied;
- an array of the right shape takes the shortest way: around a network of milliseconds every line of code that is
  touched has to come from memory again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.errors import InputError
from edgekit_runtime.tensors import TensorSpec

if TYPE_CHECKING:
    from edgekit_runtime.contract.geometry import Geometry

IdentifiedInput = Mapping[str, Any]
"""Contract name -> what was passed for it, or what that stands for."""


class Intake:
    """contract: of the inputs that a caller passes.
    tensors: those of the artifact.
    placed: whether it matters where a picture lies, as for a detector. Thread-safe.

    only, only_shape: the one input, an array of which needs no `take`; None of several. only_as_it_is: dtypes of which
    it needs no `decode` either. only_geometry: where such a picture lies.
    """

    def __init__(self, contract: Contract, tensors: Sequence[TensorSpec]) -> None:
        ready = {tensor.name: np.dtype(tensor.dtype) for tensor in tensors if tensor.quantization is not None}
        self._decoders = {
            spec.name: Decoder(spec, [ready[spec.name]] if spec.name in ready else ()) for spec in contract.inputs
        }
        self._shapes = {spec.name: spec.shape for spec in contract.inputs}
        only = contract.inputs[0] if len(contract.inputs) == 1 else None
        self.only = only.name if only is not None else ""
        self.only_shape = only.shape if only is not None else None
        self.only_as_it_is = self._decoders[self.only].as_it_is if only is not None else ()
        self.placed = contract.task == "detection"
        self.only_geometry = self._decoders[self.only].own if only is not None and self.placed else None

    def take(self, inputs: Any) -> IdentifiedInput:
        """By name, with what stands for something else replaced by that (`Decoder.admit`).
        Raises InputError."""
        names = self._decoders.keys()
        if isinstance(inputs, Mapping) and inputs.keys() != names:
            unknown, missing = sorted(map(str, inputs.keys() - names)), sorted(names - inputs.keys())
            what = f"there is no input '{unknown[0]}'" if unknown else f"the input '{missing[0]}' is missing"
            raise InputError(what, do=f"Inputs: {', '.join(names)}")
        if not isinstance(inputs, Mapping) and len(names) != 1:
            raise InputError(f"the model has {len(names)} inputs", do=f"Pass a dict with {', '.join(names)}")
        named = inputs if isinstance(inputs, Mapping) else {next(iter(names)): inputs}
        for name, value in named.items():
            if type(value) is not np.ndarray or value.shape != self._shapes[name]:
                return {name: self._decoders[name].admit(value) for name, value in named.items()}
        return named

    def decode(self, named: IdentifiedInput) -> tuple[dict[str, NDArray[Any]], Geometry | None]:
        """The items, and, where that matters, where the first picture lies in the caller's.
        Raises InputError."""
        items, first = {}, None
        for name, value in named.items():
            items[name], geometry = self._decoders[name].place(value)
            first = first or geometry
        return items, first if self.placed else None

    def locate(self, named: IdentifiedInput) -> Geometry | None:
        """The geometry that `decode` gives, read from the picture's head without decoding."""
        found = (self._decoders[name].locate(value) for name, value in named.items())
        return next((geometry for geometry in found if geometry is not None), None)


def own(arrays: Sequence[NDArray[Any]], named: IdentifiedInput) -> list[NDArray[Any]]:
    """Those that are still the caller's memory, which may change before they are read, copied."""
    given = [value for value in named.values() if isinstance(value, np.ndarray)]
    return [array.copy() if any(np.may_share_memory(array, one) for one in given) else array for array in arrays]
