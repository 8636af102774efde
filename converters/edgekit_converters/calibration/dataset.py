"""What every set of examples is: a length, an order, and items made when they are asked for.

    for example in dataset:                              # from the first, any number of times
        print(example.origin, example.label)
    golden = list(dataset.pick([4, 17]))                 # just these
    calibration, held_out = split(dataset)
    fingerprint(open_dataset("photos/", contract))       # "5f2c...", or None where only running code gives the items

Rules:
- the fingerprint covers every byte of every file, the files' order, which items are taken and the labels; the contract
  that decodes them is no part of it, and belongs into the same key;
- made-up examples (`RandomDataset`) are used only where they were asked for, and the report says so.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgekit_converters.calibration.decode import sets_of
from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.spec import Contract

Label = int | float | NDArray[Any]
"""A class index, a number to be predicted, or an array: of such numbers, or boxes [M, 5] (x1, y1, x2, y2, class)."""


@dataclass(frozen=True)
class Example:
    """One item.

    inputs: by contract name, no batch axis: uint8 [height, width, channels] pixels for an image input (or floats of
    that shape, already normalised as the original takes them), an array of the contract's shape and dtype otherwise.
    label: None where there is none; for a classifier the class index. origin: the file or place it came from, for
    messages.
    step: where it stands in its sequence, 0 for a first frame; None where the model keeps no state.
    """

    inputs: Mapping[str, NDArray[Any]]
    label: Label | None
    origin: str
    step: int | None = None


class Dataset(Protocol):
    """Examples in a fixed order.

    Reading may raise CalibrationError: items are decoded only then.
    """

    @property
    def name(self) -> str:
        """Where it was opened, for messages."""
        ...

    @property
    def any_order(self) -> bool:
        """Whether `pick` takes indexes in any order, each at the cost of its item alone."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Example]: ...

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        """The items at these indexes, which must ascend unless `any_order`.
        The others are not decoded where that can be avoided."""
        ...


@dataclass(frozen=True)
class Subset:
    """Some items of a dataset, in its order; itself a Dataset."""

    dataset: Dataset
    indexes: Sequence[int]

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def any_order(self) -> bool:
        return self.dataset.any_order

    def __len__(self) -> int:
        return len(self.indexes)

    def __iter__(self) -> Iterator[Example]:
        return self.dataset.pick(self.indexes)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        return self.dataset.pick([self.indexes[index] for index in indexes])


def digest(example: Example) -> str:
    """xxh3-128 over names, dtypes, shapes and every byte of the inputs.
    The label is no part of it."""
    state = xxhash.xxh3_128()
    for name in sorted(example.inputs):
        array = example.inputs[name]
        state.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


HELD_OUT = 64
"""The most items that are held out."""


def split(dataset: Dataset) -> tuple[Subset, Subset]:
    """Split into (calibration, held out): every fifth item is held out, at most 64.

    Spread, because folders come sorted by class: the first 64 would be of few classes. Both keep the set's order and
    together are the set. Raises CalibrationError for a single item.
    """
    count = len(dataset)
    if count < 2:
        raise CalibrationError(
            "one item cannot be both calibrated with and evaluated on", where=dataset.name, do="Give more items"
        )
    wanted = min(HELD_OUT, max(1, count // 5))
    held = {(2 * place + 1) * count // (2 * wanted) for place in range(wanted)}
    rest = [index for index in range(count) if index not in held]
    return Subset(dataset, rest), Subset(dataset, sorted(held))


FEWEST_APART = 10
"""Fewer items than this in a half say too little of a drop."""


def halves(kinds: Sequence[Hashable], digests: Sequence[str]) -> tuple[list[int], list[int]] | None:
    """Indexes of two halves in which every kind is as frequent as in the other.
    None where one had fewer than FEWEST_APART.

    kinds: a label, or whatever an item should be balanced by. digests: equal ones stay in one half. Which half an item
    is in follows from the items alone, not from their order.
    """
    order = sorted({(str(kind), name) for kind, name in zip(kinds, digests, strict=True)})
    first = {name for place, (_, name) in enumerate(order) if place % 2 == 0}
    one = [index for index, name in enumerate(digests) if name in first]
    other = [index for index, name in enumerate(digests) if name not in first]
    return None if min(len(one), len(other)) < FEWEST_APART else (one, other)


def folds(weights: Sequence[int], digests: Sequence[str], count: int) -> list[list[int]]:
    """Indexes of at most `count` parts of about the same weight, each with some of it.
    Less than two where there is too little.

    weights: what there is of an item to be judged by, such as its boxes. digests: equal ones stay in one part. Which
    part an item is in follows from the items alone, not from their order.
    """
    whole = dict[str, int]()
    for name, weight in zip(digests, weights, strict=True):
        whole[name] = whole.get(name, 0) + weight
    parts = [(0, 0, place) for place in range(min(count, sum(weight > 0 for weight in whole.values())))]
    part_of = dict[str, int]()
    for name, weight in sorted(whole.items(), key=lambda entry: (-entry[1], entry[0])):
        if parts:
            least, items, place = min(parts)
            parts[parts.index((least, items, place))] = (least + weight, items + 1, place)
            part_of[name] = place
    return [[index for index, name in enumerate(digests) if part_of[name] == place] for _, _, place in parts]


def without(dataset: Dataset, digests: Collection[str]) -> Dataset:
    """The items whose digest is not among `digests` (see `lint`, code `overlap`).
    Reads the set once if there are any.

    Raises CalibrationError when nothing is left.
    """
    if not digests:
        return dataset
    kept = [index for index, example in enumerate(dataset) if digest(example) not in digests]
    if not kept:
        raise CalibrationError(
            "every item is in the evaluation set too", where=dataset.name, do="Give other items for calibration"
        )
    return Subset(dataset, kept)


_PIECE = 1 << 20


def fingerprint(dataset: Dataset) -> str | None:
    """None where the items are made by code, or a file cannot be read now."""
    parts: list[str] = []
    while isinstance(dataset, Subset):
        parts.append(hashlib.sha256(",".join(map(str, dataset.indexes)).encode()).hexdigest())
        dataset = dataset.dataset
    own: str | None = getattr(dataset, "fingerprint", None)
    # the files of a dataset that is nothing but files: `files`, or one `path`
    known: set[str] = {field.name for field in fields(dataset)} if is_dataclass(dataset) else set()
    paths: list[Path] | None = [Path(getattr(dataset, "path", ""))] if "path" in known else None
    if "files" in known:
        paths = [Path(file) for file in getattr(dataset, "files", ())]
    labels = str(getattr(dataset, "labels", None) if hasattr(dataset, "files") else "in the file")
    found = own if own is not None or paths is None else _of_files(paths, labels)
    return None if found is None else hashlib.sha256("\0".join([found, *parts]).encode()).hexdigest()


def _of_files(paths: Iterable[Path], labels: str) -> str | None:
    state = xxhash.xxh3_128(labels.encode())
    try:
        for path in paths:
            state.update(b"\0")
            with path.open("rb") as file:
                for piece in itertools.takewhile(bool, iter(lambda: file.read(_PIECE), b"")):
                    state.update(piece)
            state.update(path.stat().st_size.to_bytes(8, "little"))
    except OSError:
        return None
    return state.hexdigest()


@dataclass(frozen=True)
class RandomDataset:
    """A Dataset of seeded noise. The same seed and index give the same item.

    Pictures are patches of random colours, of another size in each. Floats are normal, whole numbers 0 or 1.
    """

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
