"""Sets of examples: a length, an order, and items made when they are asked for.

    for example in dataset:                              # from the first, any number of times
        print(example.origin, example.label)
    golden = list(dataset.pick([4, 17]))                 # just these
    dataset.fingerprint                                  # None if code gives the items

Rules:
- `Canonical` turns raw values into the arrays of a contract's inputs; `sets_of` knows what examples of a kind look
  like. The board's table of the same kinds is `edgekit_runtime.contract.kinds`;
- a fingerprint covers every byte of every file, their order, which items are taken and the labels, but not the
  contract that decodes them: it belongs in the same key;
- made-up examples (`RandomDataset`) are used only where the caller asks for them, and the report says so.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.kinds import ImageKind, TensorKind, kind_of, pictures
from edgekit_runtime.contract.spec import Contract, InputContract
from edgekit_runtime.contract.text import TEXT, TextInput
from edgekit_runtime.system.errors import InputError


class Canonical:
    """Callable: raw values by input name in, canonical arrays by input name out."""

    def __init__(self, contract: Contract) -> None:
        self._inputs = contract.inputs
        self._decoders = {spec.name: Decoder(spec) for spec in contract.inputs}
        self._text = None if contract.text is None else TextInput(contract)

    def __call__(self, values: Mapping[str, Any], origin: str) -> dict[str, NDArray[Any]]:
        """The canonical arrays of one item.
        Raises CalibrationError for a missing input, a wrong shape or dtype, NaN, infinity or a broken image."""
        if self._text is not None and isinstance(text := values.get(TEXT), (str, bytes)):
            try:
                return self._text(text)
            except InputError as error:
                raise CalibrationError(error.what, where=origin, do=error.do) from error
        arrays = {}
        for spec in self._inputs:
            if spec.name not in values:
                raise CalibrationError(f"has no value for the input '{spec.name}'", where=origin)
            try:
                array = self._decoders[spec.name](values[spec.name])
            except InputError as error:
                # A file's own error already says which file.
                what = error.what if error.where == origin else f"{error.where}: {error.what}"
                raise CalibrationError(what, where=origin, do=error.do or "Remove or replace it") from error
            if array.dtype not in kind_of(spec).free_dtypes(spec):
                with np.errstate(over="ignore"):
                    array = np.array(array, spec.dtype, order="C")
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    what = f"the input '{spec.name}' has values beyond {spec.dtype}"
                    raise CalibrationError(what, where=origin, do="Remove the item")
            arrays[spec.name] = array
        return arrays


def check_kind(spec: InputContract, dtype: np.dtype[Any], where: str) -> None:
    """Raises CalibrationError for a dtype that cannot stand for the input without guessing."""
    try:
        kind_of(spec).check_dtype(dtype, spec)
    except InputError as error:
        raise CalibrationError(f"{error.where}: {error.what}", where=where, do=error.do) from error


_LARGE = 1e4


class TensorSets:
    """Examples of numbers of one shape."""

    def fits(self, spec: InputContract, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Whether items of this shape, without the batch, may stand for the input."""
        return shape == spec.shape

    def noise(self, spec: InputContract, generator: np.random.Generator) -> NDArray[Any]:
        """Floats are normal, whole numbers 0 or 1."""
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            return generator.standard_normal(spec.shape).astype(dtype)
        return generator.integers(0, 2, spec.shape).astype(dtype)

    def extent(self, spec: InputContract) -> tuple[np.dtype[Any], float, float]:
        """The smallest and largest numbers to try. Whole numbers above 1 may be no index."""
        dtype = np.dtype(spec.dtype)
        return (dtype, -_LARGE, _LARGE) if dtype.kind == "f" else (dtype, 0.0, 1.0)

    def normalised(self, spec: InputContract) -> tuple[float, float] | None:
        """The least and greatest value that floats for this input should have, None if unknown."""
        return None

    def holds_ids(self, spec: InputContract) -> bool:
        """Whether its numbers may be rows of a table."""
        return np.dtype(spec.dtype).kind in "iu"


class ImageSets(TensorSets):
    """Examples of pictures."""

    def fits(self, spec: InputContract, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Pixels may have any size: the decoder resizes them, and reports what is not a picture."""
        height, width, channels = spec.shape
        pixels = dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and 0 not in shape))
        return pixels or shape in (spec.shape, (channels, height, width))

    def noise(self, spec: InputContract, generator: np.random.Generator) -> NDArray[Any]:
        """Patches of random colours, of another size in each."""
        height, width, channels = spec.shape
        cell = int(generator.integers(1, 1 + max(1, min(height, width) // 4)))
        patches = generator.integers(0, 256, (-(-height // cell), -(-width // cell), channels), np.uint8)
        return np.ascontiguousarray(patches.repeat(cell, 0).repeat(cell, 1)[:height, :width])

    def extent(self, spec: InputContract) -> tuple[np.dtype[Any], float, float]:
        return np.dtype(np.uint8), 0.0, 255.0

    def normalised(self, spec: InputContract) -> tuple[float, float] | None:
        """What mean and std make of pixels 0 and 255."""
        [image] = pictures([spec])
        ends = [(pixel - m) / s for m, s in zip(image.mean, image.std, strict=True) for pixel in (0.0, 255.0)]
        return min(ends), max(ends)

    def holds_ids(self, spec: InputContract) -> bool:
        return False


_SETS: dict[type[TensorKind], TensorSets] = {TensorKind: TensorSets(), ImageKind: ImageSets()}


def sets_of(spec: InputContract) -> TensorSets:
    """The row of an input."""
    return _SETS[type(kind_of(spec))]


Label = int | float | NDArray[Any]
"""A class index, a number to be predicted, or an array: of such numbers, or boxes [M, 5] (x1, y1, x2, y2, class)."""


@dataclass(frozen=True)
class Example:
    """One item.
    inputs: by contract name, no batch axis. Of an image input uint8 [height, width, channels] pixels, or floats of that
        shape, already normalised as the original takes them; else an array of the contract's shape and dtype.
    label: None if absent; for a classifier the class index.
    origin: the file or place it came from, for messages.
    step: its place in its sequence, 0 for a first frame; None if the model keeps no state.
    text: what the inputs are the tokens of; None if they were given as arrays."""

    inputs: Mapping[str, NDArray[Any]]
    label: Label | None
    origin: str
    step: int | None = None
    text: str | None = None


class Dataset(Protocol):
    """Examples in a fixed order, decoded as they are read, which may raise CalibrationError."""

    @property
    def name(self) -> str:
        """Where it was opened, for messages."""
        ...

    @property
    def any_order(self) -> bool:
        """Whether `pick` takes indexes in any order, each at the cost of its item alone."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Example]:
        return self.pick(range(len(self)))

    @property
    def fingerprint(self) -> str | None:
        """A digest of the files; None if code makes the items, or a file cannot be read now."""
        return None

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        """The items at these indexes, which must ascend unless `any_order`."""
        ...


@dataclass(frozen=True)
class Subset(Dataset):
    """Some items of a dataset, in its order; itself a Dataset."""

    dataset: Dataset
    indexes: Sequence[int]

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def any_order(self) -> bool:
        return self.dataset.any_order

    @property
    def fingerprint(self) -> str | None:
        whole = self.dataset.fingerprint
        return None if whole is None else hashlib.sha256(f"{whole}\0{[*self.indexes]}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.indexes)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        return self.dataset.pick([self.indexes[index] for index in indexes])


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A Dataset of files. labels: one a file, or None."""

    root: Path
    files: tuple[Path, ...]
    labels: tuple[Any, ...] | None
    contract: Contract
    any_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return str(self.root)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def fingerprint(self) -> str | None:
        return fingerprint_of(self.files, str(self.labels))

    def item(self, index: int) -> tuple[Path, Any]:
        """The file and its label."""
        return self.files[index], None if self.labels is None else self.labels[index]


def digest(example: Example) -> str:
    """xxh3-128 over names, dtypes, shapes and every byte of the inputs, without the label."""
    state = xxhash.xxh3_128()
    for name in sorted(example.inputs):
        array = example.inputs[name]
        state.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def spread(count: int, most: int) -> list[int]:
    """At most that many of the indexes below `count`, evenly spread and ascending."""
    wanted = min(count, most)
    return [(2 * place + 1) * count // (2 * wanted) for place in range(wanted)]


HELD_OUT = 64
"""The most items that are held out."""


def split(dataset: Dataset) -> tuple[Subset, Subset]:
    """Split into (calibration, held out): every fifth item is held out, at most 64.
    Spread, because folders come sorted by class. Both keep the set's order. Raises CalibrationError for a single item.
    """
    count = len(dataset)
    if count < 2:
        do = "Give more items"
        raise CalibrationError("one item cannot be both calibrated with and evaluated on", where=dataset.name, do=do)
    held = spread(count, min(HELD_OUT, max(1, count // 5)))
    rest = [index for index in range(count) if index not in held]
    return Subset(dataset, rest), Subset(dataset, held)


FEWEST_APART = 10
"""Fewer items than this in a half say too little of a drop."""


def halves(kinds: Sequence[Hashable], digests: Sequence[str]) -> tuple[list[int], list[int]] | None:
    """Indexes of two halves with every kind equally frequent.
    None if one had fewer than FEWEST_APART.
    kinds: a label, or what else an item should be balanced by.
    digests: equal ones stay in one half. The items alone decide which half, not their order."""
    order = sorted({(str(kind), name) for kind, name in zip(kinds, digests, strict=True)})
    first = {name for place, (_, name) in enumerate(order) if place % 2 == 0}
    one = [index for index, name in enumerate(digests) if name in first]
    other = [index for index, name in enumerate(digests) if name not in first]
    return None if min(len(one), len(other)) < FEWEST_APART else (one, other)


def folds(weights: Sequence[int], digests: Sequence[str], count: int) -> list[list[int]]:
    """Indexes of at most `count` parts of about the same weight.
    Fewer than two if there is too little.
    weights: what an item can be judged by, such as its number of boxes.
    digests: equal ones stay in one part. The items alone decide which part, not their order."""
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


_PIECE = 1 << 20


def fingerprint_of(paths: Iterable[Path], labels: str = "in the file") -> str | None:
    """A digest of every byte of these files; None if one cannot be read now."""
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
class RandomDataset(Dataset):
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
        return f"random {self.count} {self.seed}"

    def __len__(self) -> int:
        return self.count

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        for index in indexes:
            generator = np.random.default_rng((self.seed, index))
            inputs = {spec.name: sets_of(spec).noise(spec, generator) for spec in self.contract.inputs}
            yield Example(inputs, None, f"{self.name}, item {index}")
