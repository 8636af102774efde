"""Made-up examples, for a first look at a model when there is no data at all. What is measured on them says next to nothing
about real ones, so nothing uses them unless it was asked to, and the report says that it did.

dataset = random_dataset(contract, 64)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Example
from edgekit_runtime.contract.spec import Contract, InputContract

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
            inputs = {spec.name: _values(spec, generator) for spec in self.contract.inputs}
            yield Example(inputs, None, f"{self.name}, item {index}")


def random_dataset(contract: Contract, count: int, seed: int = 0) -> RandomDataset:
    """Pictures are patches of random colours, of another size in each; floats are normal, whole numbers 0 or 1."""
    return RandomDataset(contract, count, seed)


def _values(spec: InputContract, generator: np.random.Generator) -> NDArray[Any]:
    if spec.image is not None:
        return _picture(spec.shape, generator)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return generator.standard_normal(spec.shape).astype(dtype)
    return generator.integers(0, 2, spec.shape).astype(dtype)


def _picture(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.uint8]:
    height, width, channels = shape
    cell = int(generator.integers(1, 1 + max(1, min(height, width) // 4)))
    patches = generator.integers(0, 256, (-(-height // cell), -(-width // cell), channels), np.uint8)
    return np.ascontiguousarray(patches.repeat(cell, 0).repeat(cell, 1)[:height, :width])
