"""What a request comes back as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.adapt import Prediction, top
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import Contract

if TYPE_CHECKING:
    from edgekit_runtime.contract.detect import Box

Source = Literal["cache", "similar", "device", "host", "stale", "degraded"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs, and how they were computed.
    outputs: contract name -> read-only array without a batch axis, in the original model's dtypes.

    source: where it came from. timings: stage -> milliseconds, with `total` from call to answer. met_budget: None when
    no budget was given. distance: of a `similar` answer, between its request and this one; None otherwise. geometry:
    where the network's picture lies in the caller's, for a detector. artifact, engine: the recipe that computed it, and
    the engine with its version; None where a host did. It can be copied and pickled, for a queue to another
    process for one: what comes out there is read-only as well.
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

    def __reduce__(self) -> tuple[Any, ...]:
        """A read-only view of a dict cannot be pickled; the dict can."""
        timings = dict(self.timings)
        return _rebuilt, (
            (
                dict(self.outputs),
                self.source,
                timings,
                self.met_budget,
                self.contract,
                self.distance,
                self.geometry,
                self.artifact,
                self.engine,
            ),
        )

    @property
    def degraded(self) -> bool:
        """Whether it came after its deadline, or from the bundle's degraded artifact."""
        return self.source in ("stale", "degraded")

    def top(self, k: int = 5) -> list[Prediction]:
        """The k best classes, best first. Raises ContractError when the model is no classifier."""
        return top(self.outputs, self.contract, k)

    @property
    def boxes(self) -> list[Box]:
        """What a detector found, the surest first, in pixels of the caller's picture.
        Worked out at each call.

        Raises ContractError when the model is no detector.
        """
        from edgekit_runtime.contract.detect import boxes

        return boxes(self.outputs, self.contract, self.geometry)

    @property
    def vector(self) -> NDArray[np.float32]:
        """The vector of a model that embeds, float32 [D], read-only.
        Raises ContractError when it is none."""
        from edgekit_runtime.contract.adapt import vector

        return vector(self.outputs, self.contract)


def _rebuilt(fields: tuple[Any, ...]) -> Answer:
    outputs, *others = fields
    for array in outputs.values():  # a pickle forgets that it was read-only
        array.setflags(write=False)
    return Answer(MappingProxyType({name: array.view() for name, array in outputs.items()}), *others)
