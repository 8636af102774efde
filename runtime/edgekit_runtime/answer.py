"""What a request comes back as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from edgekit_runtime.contract.finish import Prediction, top
from edgekit_runtime.contract.geometry import Geometry
from edgekit_runtime.contract.spec import Contract

__all__ = ["Answer", "Source"]

Source = Literal["cache", "similar", "device", "host", "stale"]


@dataclass(frozen=True, slots=True)
class Answer:
    """outputs: contract name -> read-only array without a batch axis, in the original model's dtypes.

    source: where it came from. timings: stage -> milliseconds, with `total` from call to answer. met_budget: None when
    no budget was given. distance: of a `similar` answer, between its request and this one; None otherwise. geometry:
    where the network's picture lies in the caller's, for a detector.
    """

    outputs: Mapping[str, NDArray[Any]]
    source: Source
    timings: Mapping[str, float]
    met_budget: bool | None
    contract: Contract
    distance: float | None = None
    geometry: Geometry | None = None

    def top(self, k: int = 5) -> list[Prediction]:
        """The k best classes, best first. Raises ContractError when the model is no classifier."""
        return top(self.outputs, self.contract, k)
