"""Examples -> what the original model takes: the original is just another destination of `adapt`.

for arrays in source_samples(dataset, contract, source):       # [float32 [1, 224, 224, 3]]
    source.predict(arrays)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Dataset, Example
from edgekit_converters.calibration.observe import visiting_order
from edgekit_converters.sources.model import SourceModel
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.spec import Contract

__all__ = ["SourceSamples", "source_samples"]


class SourceSamples:
    """Re-iterable, with a length; each item is one array a source input, in order, with a batch axis of 1.

    shuffled: items come in a random order that is the same at every pass, wherever the set can be read so. Folders come
    sorted by class, and whoever stops early or reads a part must have seen all of them.
    """

    def __init__(self, dataset: Dataset, contract: Contract, source: SourceModel) -> None:
        self.shuffled = dataset.any_order
        self._dataset = dataset
        self._adapters = [(spec.name, Adapter(contract.input(spec.name), spec)) for spec in source.inputs]

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[list[NDArray[Any]]]:
        order = visiting_order(len(self)) if self.shuffled else range(len(self))
        return (self.adapt(example) for example in self._dataset.pick(order))

    def adapt(self, example: Example) -> list[NDArray[Any]]:
        """One example as the original takes it."""
        return [adapter(example.inputs[name]) for name, adapter in self._adapters]


def source_samples(dataset: Dataset, contract: Contract, source: SourceModel) -> SourceSamples:
    """What `targets.convert` calibrates with. Arrays have the source's dtypes, layout and normalisation."""
    return SourceSamples(dataset, contract, source)
