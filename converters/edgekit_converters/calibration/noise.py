"""Made-up examples, for a first look at a model when there is no data at all. What is measured on them says next to nothing
about real ones, so nothing uses them unless it was asked to, and the report says that it did.

dataset = random_dataset(contract, 64)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgekit_converters.calibration.dataset import Example
from edgekit_converters.calibration.input_kinds import sets_of
from edgekit_runtime.contract.spec import Contract

__all__ = ["RandomDataset", "random_dataset"]


@dataclass(frozen=True)
class RandomDataset:
    """A Dataset of seeded noise. The same seed and index give the same item."""

    contract: Contract
    count: int
    seed: int = 0
    any_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "random noise"

    @property
    def fingerprint(self) -> str:
        """See `calibration.fingerprint`."""
        return f"random {self.count} {self.seed}"

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Example]:
        return self.pick(range(self.count))

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        for index in indexes:
            generator = np.random.default_rng((self.seed, index))
            inputs = {spec.name: sets_of(spec).noise(spec, generator) for spec in self.contract.inputs}
            yield Example(inputs, None, f"{self.name}, item {index}")


def random_dataset(contract: Contract, count: int, seed: int = 0) -> RandomDataset:
    """Pictures are patches of random colours, of another size in each; floats are normal, whole numbers 0 or 1."""
    return RandomDataset(contract, count, seed)
