"""A path or `module:function` -> the Dataset that reads it.

    open_dataset("photos/", contract)                 # a folder of images, or of .wav recordings
    open_dataset("my_data:examples", contract)        # a dict by input name (and "label"), `(x, y)` or `x` an item

Rules: the user's function takes no arguments and is called again for every pass, so it must give the same items each
time. They are counted when the set is opened; a pass with fewer is an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from edgekit_converters.data.arrays import open_npy, open_npz
from edgekit_converters.data.box_annotations import BOXED, open_boxed
from edgekit_converters.data.dataset import Canonical, Dataset, Example
from edgekit_converters.data.folder import Classes, files_in, open_folder
from edgekit_converters.data.recordings import open_recordings
from edgekit_converters.data.texts import TEXTS, open_texts
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.user_function import failed, find_function, is_function_name
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.contract.text import TEXT
from edgekit_runtime.system.errors import EdgekitError

MAX_ITEMS = 200_000
"""A function that yields more is taken to be endless."""
PULLED = "samples.npz"
"""What `edgekit fleet samples pull` writes into a folder."""


class GeneratedDataset(Dataset):
    """A Dataset of what a function yields."""

    any_order: ClassVar[bool] = False

    def __init__(self, name: str, function: Callable[[], Iterable[Any]], contract: Contract) -> None:
        self._name = name
        self._function = function
        self._contract = contract
        self._count = sum(1 for _ in self._values())
        if self._count == 0:
            raise CalibrationError("yields no items", where=name, do="Yield at least one example")

    @property
    def name(self) -> str:
        return self._name

    def __len__(self) -> int:
        return self._count

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, classes = Canonical(self._contract), Classes(self._contract)
        values = enumerate(self._values())
        for index in indexes:
            value = next((value for at, value in values if at == index), _MISSING)
            if value is _MISSING:
                do = "Give the same items at every call: fix the seed"
                raise CalibrationError(f"gave {self._count} items the first time and fewer now", where=self.name, do=do)
            origin = f"{self.name}, item {index}"
            raw, label = self._split_value(value, origin)
            label = None if label is None else classes.of_value(label, origin)
            text = raw.get(TEXT) if self._contract.text is not None else None
            yield Example(canonical(raw, origin), label, origin, text=text if isinstance(text, str) else None)

    def _values(self) -> Iterator[Any]:
        """What the function yields.
        Whatever it raises becomes one CalibrationError with the line that raised."""
        try:
            given, items = self._function(), None
            if not isinstance(given, (str, bytes, Mapping)):  # one example is not a set
                with contextlib.suppress(TypeError):
                    items = iter(given)
            if items is None:
                do = "Yield the examples one by one, or return a list of them"
                what = f"gave a value of type {type(given).__name__}, which is not a set of examples"
                raise CalibrationError(what, where=self.name, do=do)
            for count, value in enumerate(items):
                if count >= MAX_ITEMS:
                    do = "Stop after a representative set"
                    raise CalibrationError(f"yields more than {MAX_ITEMS:,} items", where=self.name, do=do)
                yield value
        except EdgekitError:
            raise
        except (Exception, SystemExit) as error:  # a function that exits is one that fails, not the end of a build
            raise failed(self.name, error, CalibrationError) from error

    def _split_value(self, value: Any, origin: str) -> tuple[Mapping[str, Any], Any]:
        names = [spec.name for spec in self._contract.inputs]
        if self._contract.text is not None and isinstance(value[0] if isinstance(value, tuple) else value, str):
            return split_pair(value, [TEXT], origin)
        if isinstance(value, Mapping):
            unknown = [str(key) for key in value if key not in (*names, "label")]
            if unknown:
                do = f'The model takes {", ".join(names)}; "label" is the class'
                raise CalibrationError(f"has a key '{unknown[0]}'", where=origin, do=do)
            return value, (value.get("label") if "label" not in names else None)
        return split_pair(value, names, origin)


_MISSING = object()


def split_pair(value: Any, names: Sequence[str], where: str) -> tuple[Mapping[str, Any], Any]:
    """An item, alone or as `(item, label)` -> values by input name, and its label or None."""
    label = None
    if isinstance(value, tuple) and len(value) == 2:
        value, label = value
    if isinstance(value, Mapping):
        return value, label
    if len(names) > 1:
        do = f"Yield a dict with the keys {', '.join(names)}"
        raise CalibrationError(f"is one value and the model takes {len(names)} inputs", where=where, do=do)
    return {names[0]: value}, label


def examples_function(spec: str) -> Callable[[], Iterable[Any]]:
    """spec: `package.module:function`. Raises CalibrationError for a missing module or function."""
    return find_function(spec, CalibrationError, "Name a function that yields examples")


_GIVE = "Give an image folder, a .npy, a .npz, a .txt, a data.yaml, COCO's .json or module:function"


def open_dataset(path: str | os.PathLike[str], contract: Contract, *, labelled: bool = True) -> Dataset:
    """Open a folder of images, `.wav` files or samples, an array file, boxes, or a function.

    Sub-folders of images are labels; in a `.npz` `x` or the inputs' names hold the items, `y` the labels.
    labelled=False: a folder's sub-folders are only folders, which is all that calibration needs.
    Raises CalibrationError: what is wrong, where, what to do. A fault of a single item shows when it is read."""
    place = Path(path)
    if place.is_dir():
        if (place / PULLED).is_file():
            return open_npz(place / PULLED, contract)
        if len(pictures(contract.inputs)) < len(contract.inputs) and files_in(place, {".wav"}):
            return open_recordings(place, contract, labelled=labelled)
        return open_folder(place, contract, labelled=labelled)
    if place.is_file():
        if place.suffix.lower() == ".npy":
            return open_npy(place, contract)
        if place.suffix.lower() == ".npz":
            return open_npz(place, contract)
        if place.suffix.lower() in TEXTS:
            return open_texts(place, contract, labelled=labelled)
        if place.suffix.lower() in BOXED:
            return open_boxed(place, contract, labelled=labelled)
        raise CalibrationError("not a set of examples", where=str(place), do=_GIVE)
    if place.exists():
        raise CalibrationError("is not a regular file", where=str(place), do=_GIVE)
    if is_function_name(path):
        return GeneratedDataset(str(path), examples_function(str(path)), contract)
    raise CalibrationError("does not exist", where=str(path), do=_GIVE)
