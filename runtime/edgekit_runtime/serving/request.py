"""One request in flight, its intake and its answer.

    intake = Intake(contract, entry.inputs)
    named = intake.take(image)                  # by name; InputError if it cannot fit
    items, geometry = intake.decode(named)      # one canonical item an input, and where its picture lies
    tensors = own(tensors, named)               # no memory of the caller's in them any more

Rules:
- the only input may be passed as it is, one of several by name; a text stands for all that its tokens fill;
- what is far too large is refused before it is hashed, decoded or copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.adapt import Prediction, top
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import Contract, TensorSpec
from edgekit_runtime.contract.text import TEXT, Text, TextInput
from edgekit_runtime.system.errors import InputError

if TYPE_CHECKING:
    from edgekit_runtime.cache.identity import Identity
    from edgekit_runtime.cache.tiered import Look
    from edgekit_runtime.contract.detect import Box

Items = Mapping[str, NDArray[Any]]
"""Contract name -> canonical item, no batch axis."""
Tensors = list[NDArray[Any]]
"""The engine's inputs or outputs, in its own order, with a batch axis of 1."""
Outputs = Mapping[str, NDArray[Any]]
"""Contract name -> read-only array, no batch axis."""
Predict = Callable[[Any, "float | None", float], "Answer"]
"""Takes the inputs, the budget in milliseconds, and when the request began."""


@dataclass(slots=True)
class Request:
    """A request's options and state.

    budget_ms: what the caller can wait, None for as long as it takes.
    priority: higher ones go first.
    stale_ok: an answer past its time is better than none.
    key: of the exact cache, once it is known.
    stale_key: of a request that was not looked up, to find a stale answer.
    leads: identical requests wait for this one; it must then land or crash their flight.
    look: what it was compared with.
    geometry: where the network's picture lies in the caller's, for a detector.
    by_host: a host computed its answer, now or earlier.
    timings: stage -> milliseconds.
    clipped: input values at the limits of the artifact's integers, how many were looked at, and a classifier's top
    score; None if this request is not sampled.
    """

    budget_ms: float | None = None
    priority: int = 0
    stale_ok: bool = False
    start: float = field(default_factory=perf_counter)
    key: Identity | None = None
    stale_key: Identity | None = None
    leads: bool = False
    look: Look | None = None
    geometry: Geometry | None = None
    by_host: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    clipped: tuple[int, int, float | None] | None = None

    @property
    def due(self) -> float:
        """The deadline on the clock of `time.perf_counter`; infinite without a budget."""
        return math.inf if self.budget_ms is None else self.start + self.budget_ms / 1e3

    def left_ms(self) -> float:
        """What is left of the budget; infinite without one."""
        return math.inf if self.budget_ms is None else self.budget_ms - (perf_counter() - self.start) * 1e3


def checked_budget(budget_ms: float) -> float | None:
    """A caller's budget, None if infinite. Raises ValueError unless milliseconds above 0."""
    if not isinstance(budget_ms, (float, int, np.floating, np.integer)) or budget_ms is True or not budget_ms > 0:
        raise ValueError(f"budget_ms must be a number of milliseconds above 0, not {budget_ms!r:.40}")
    return None if budget_ms == math.inf or (type(budget_ms) is int and budget_ms >> 1000) else float(budget_ms)


Source = Literal["cache", "similar", "device", "host", "stale", "degraded"]


@dataclass(slots=True)  # a frozen one takes four times as long to make
class Answer:
    """Outputs, and how they were computed. Can be copied and pickled; outputs stay read-only.

    outputs: contract name -> read-only array without a batch axis, in the original model's dtypes.
    source: where it came from.
    timings: stage -> milliseconds, with `total` from call to answer.
    met_budget: None if no budget was given.
    distance: for a `similar` answer, the distance between its request and this one; else None.
    geometry: for a detector, the position of the network's picture in the caller's.
    artifact, engine: the recipe that computed it, and the engine with its version; None if a host did.
    """

    outputs: Mapping[str, NDArray[Any]]
    source: Source
    timings: Mapping[str, float]
    met_budget: bool | None
    contract: Contract
    distance: float | None = None
    geometry: Geometry | None = None
    artifact: str | None = None
    engine: str | None = None

    def __repr__(self) -> str:
        """What a person asks of an answer, in one line."""
        said = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in self.outputs.items())
        if self.contract.task == "classification":
            said = ", ".join(f"{one.label} {one.score:.3g}" for one in self.top(3))
        elif self.contract.detection is not None:
            said = f"{len(self.boxes)} boxes"
        by = f" with {self.artifact} on {self.engine}" if self.artifact else ""
        return f"<Answer {said}; from the {self.source} in {self.timings.get('total', 0.0):.3g} ms{by}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A read-only view of a dict cannot be pickled; the dict can."""
        outputs, source, timings, *others = (getattr(self, one.name) for one in fields(self))
        return _rebuild_answer, (dict(outputs), source, dict(timings), *others)

    @property
    def degraded(self) -> bool:
        """Whether the answer is stale or comes from the bundle's degraded artifact."""
        return self.source in ("stale", "degraded")

    def top(self, k: int = 5) -> list[Prediction]:
        """The k best classes, best first. Raises ContractError if the model is not a classifier."""
        return top(self.outputs, self.contract, k)

    @property
    def boxes(self) -> list[Box]:
        """A detector's boxes, highest score first, in pixels of the caller's picture.

        Computed at each call. Raises ContractError if the model is not a detector.
        """
        from edgekit_runtime.contract.detect import boxes

        return boxes(self.outputs, self.contract, self.geometry)

    @property
    def vector(self) -> NDArray[np.float32]:
        """The vector of an embedding model, float32 [D], read-only. Raises ContractError for others."""
        from edgekit_runtime.contract.adapt import vector

        return vector(self.outputs, self.contract)


def _rebuild_answer(outputs: dict[str, NDArray[Any]], *others: Any) -> Answer:
    for array in outputs.values():  # a pickle forgets that it was read-only
        array.setflags(write=False)
    return Answer(MappingProxyType({name: array.view() for name, array in outputs.items()}), *others)


IdentifiedInput = Mapping[str, Any]
"""Contract name -> the value passed for it, or its replacement."""


class Intake:
    """Takes and decodes a caller's inputs. Thread-safe.

    contract: of the inputs that a caller passes.
    tensors: those of the artifact.
    placed: whether it matters where a picture lies, as for a detector.
    as_it_is: dtypes of the first input's items that need no `decode`.
    """

    def __init__(self, contract: Contract, tensors: Sequence[TensorSpec]) -> None:
        ready = {tensor.name: np.dtype(tensor.dtype) for tensor in tensors if tensor.quantization is not None}
        self._decoders = {
            spec.name: Decoder(spec, [ready[spec.name]] if spec.name in ready else ()) for spec in contract.inputs
        }
        self._shapes = {spec.name: spec.shape for spec in contract.inputs}
        self._text = None if contract.text is None else TextInput(contract)
        self.as_it_is = self._decoders[contract.inputs[0].name].as_it_is
        self.placed = contract.task == "detection"

    def take(self, inputs: Any) -> IdentifiedInput:
        """By name, with values replaced as `Decoder.admit` does. Raises InputError."""
        if self._text is not None and isinstance(inputs, (str, bytes, bytearray, Text)):
            return {TEXT: self._text.admit(inputs)}
        names = self._decoders.keys()
        if isinstance(inputs, Mapping) and inputs.keys() != names:
            unknown, missing = sorted(map(str, inputs.keys() - names)), sorted(names - inputs.keys())
            what = f"unknown input '{unknown[0]}'" if unknown else f"the input '{missing[0]}' is missing"
            raise InputError(what, do=f"Inputs: {', '.join(names)}")
        if not isinstance(inputs, Mapping) and len(names) != 1:
            text = "" if self._text is None else "a text, or "
            raise InputError(f"the model has {len(names)} inputs", do=f"Pass {text}a dict with {', '.join(names)}")
        named = inputs if isinstance(inputs, Mapping) else {next(iter(names)): inputs}
        for name, value in named.items():
            if type(value) is not np.ndarray or value.shape != self._shapes[name]:
                return {name: self._decoders[name].admit(value) for name, value in named.items()}
        return named

    def decode(self, named: IdentifiedInput) -> tuple[dict[str, NDArray[Any]], Geometry | None]:
        """The items, and for a detector where the first picture lies. Raises InputError."""
        if self._text is not None and TEXT in named and isinstance(named[TEXT], Text):
            return self._text(named[TEXT]), None
        items, first = {}, None
        for name, value in named.items():
            items[name], geometry = self._decoders[name].place(value)
            first = first or geometry
        return items, first if self.placed else None

    def locate(self, named: IdentifiedInput) -> Geometry | None:
        """The geometry that `decode` gives, read from the picture's head without decoding."""
        found = (self._decoders[name].locate(value) for name, value in named.items() if name in self._decoders)
        return next((geometry for geometry in found if geometry is not None), None)


def own(arrays: Sequence[NDArray[Any]], named: IdentifiedInput) -> list[NDArray[Any]]:
    """The arrays, copied if they share the caller's memory, which may change meanwhile."""
    given = [value for value in named.values() if isinstance(value, np.ndarray)]
    return [array.copy() if any(np.may_share_memory(array, one) for one in given) else array for array in arrays]
