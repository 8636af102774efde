"""A folder of images, read recursively in the order of paths; its sub-folders are labels.

    classes = Classes(contract)
    classes.of_folder(Path("golden retriever"))        # 207
    classes.of_value(0.25, where)                      # 0.25, where the task is not classification

Rules: sub-folders are labels if every image is in one; hidden files and folders, pipes and devices are skipped; a
symbolic link to a folder is followed once.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Canonical, Example, FileDataset, Label
from edgekit_converters.recipe.conversion_errors import CalibrationError, UnlabelledError
from edgekit_converters.sources.source_model import toml_text
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract

_SHOWN = 20  # labels in an error
_KINDS = 5  # kinds of files in one


class Classes:
    """The classes of a classifier.
    count: None for any other task, whose numbers are not checked."""

    def __init__(self, contract: Contract) -> None:
        self.count = math.prod(contract.outputs[0].shape) if contract.task == "classification" else None
        self._indexes: dict[str, list[int]] = {}
        for index, label in enumerate(contract.labels or ()):
            self._indexes.setdefault(_canonical(label), []).append(index)

    def of_folder(self, folder: Path) -> int:
        """A label's exact name wins over an index, so that classes may be called "7".
        Raises CalibrationError."""
        found = self._called(folder.name, str(folder), "Name the folder after the index instead")
        if found is None:
            raise CalibrationError(f"no class is called '{folder.name}'", where=str(folder), do=self._advice(folder))
        return found

    def of_names(self, names: NDArray[np.str_], where: str) -> NDArray[np.int64]:
        """The class of each name, as folders have theirs. Raises CalibrationError."""
        different, places = np.unique(names, return_inverse=True)
        classes = [self._called(str(name), where, "Save the classes as integers instead") for name in different]
        for name, found in zip(different, classes, strict=True):
            if found is None:
                do = "Labels are the contract file's names, or integers [N]: the class of each item"
                if not self._indexes:
                    do = "Save integers [N], the class of each item, or add `labels` to a contract file (--contract)"
                raise CalibrationError(f"no class is called '{name}'", where=where, do=self._near(str(name)) or do)
        return np.array(classes, np.int64)[places]

    def _called(self, name: str, where: str, do: str) -> int | None:
        """The class of that label or index, or None."""
        found = self._indexes.get(_canonical(name), [])
        if len(found) == 1:
            return found[0]
        if found:
            listed = " and ".join(str(index) for index in found)
            raise CalibrationError(f"'{name}' is the label of the classes {listed}", where=where, do=do)
        return self.of_number(int(name), where) if name.isascii() and name.isdigit() else None

    def of_value(self, value: Any, where: str) -> Label:
        """A class index for a classifier; for any other task a number or a numeric array.
        Raises CalibrationError."""
        if self.count is not None:
            try:
                return self.of_number(operator.index(value), where)
            except TypeError as error:
                what = f"has a label of type {type(value).__name__}"
                raise CalibrationError(what, where=where, do="A label is the class index, an int") from error
        try:
            array = np.asarray(value)
            finite = array.dtype.kind in "biuf" and bool(np.isfinite(array).all())
        except (TypeError, ValueError):
            finite = False
        if not finite:
            what = f"has a label of type {type(value).__name__} that is not a finite number"
            raise CalibrationError(what, where=where, do="A label is a number or an array of numbers")
        number: Label = array.item() if array.ndim == 0 else array
        return number

    def of_number(self, number: int, where: str) -> int:
        if self.count is not None and not 0 <= number < self.count:
            what = f"{number} is not a class: they run from 0 to {self.count - 1}"
            raise CalibrationError(what, where=where, do="Count classes from 0, in the order of the model's outputs")
        return number

    def _advice(self, folder: Path) -> str:
        name = folder.name
        if not self._indexes:
            names = sorted(found.name for found in folder.parent.iterdir() if found.is_dir())
            if len(names) == self.count and len(names) <= _SHOWN:
                return (
                    "If the model counts its classes in the order in which Keras and torchvision sort folders, add to "
                    f"a contract file (--contract): {toml_text({'labels': names}).strip()}"
                )
            do = "Name the folder after a class index, add `labels` to a contract file (--contract)"
            return f"{do}, or move the images up if the folders are not classes"
        do = "Name the folder after a label or a class index, or move the images up if the folders are not classes"
        return self._near(name) or do

    def _near(self, name: str) -> str:
        folded = {label.casefold(): label for label in self._indexes}
        near = [folded[match] for match in difflib.get_close_matches(_canonical(name).casefold(), folded, 3, 0.5)]
        return "Did you mean " + " or ".join(f"'{label}'" for label in near) + "?" if near else ""


def _canonical(name: str) -> str:
    """macOS hands out decomposed names: compare composed ones."""
    return unicodedata.normalize("NFC", name.strip())


EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


class ImageFolder(FileDataset):
    """A Dataset of image files."""

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, name = Canonical(self.contract), self.contract.inputs[0].name
        for file, label in map(self.item, indexes):
            yield Example(canonical({name: file}, str(file)), label, str(file))


def open_folder(root: Path, contract: Contract, *, labelled: bool = True) -> ImageFolder:
    """Open a folder of pictures.
    Raises CalibrationError if the model takes no single image, there are none, or a sub-folder names no class
    (UnlabelledError if none of them does)."""
    files, inputs = files_in(root, EXTENSIONS), contract.inputs
    arrays = f"Give a .npz with the {names_of(spec.name for spec in inputs)}"
    takes_pictures = len(inputs) == 1 and bool(pictures(inputs))
    if not files:
        refuse_unreadable(root, EXTENSIONS)
        kinds = sorted({file.suffix.lower() or file.name for file in files_in(root, None)})
        what = f"no images in this folder, only {', '.join(kinds[:_KINDS])}" if kinds else "no files in this folder"
        do = f"Put some there: {', '.join(sorted(EXTENSIONS))}" if takes_pictures else arrays
        raise CalibrationError(what, where=str(root), do=do)
    if not takes_pictures:
        what = f"takes {len(inputs)} inputs" if len(inputs) != 1 else f"takes tensors of {list(inputs[0].shape)}"
        do, shape = arrays, inputs[0].shape
        if len(inputs) == 1 and len(shape) == 3 and {1, 3} & {shape[0], shape[2]}:
            do += (
                ', or say in a contract file (--contract) what pixels are: [input] with kind = "image" and mean = '
                "127.5, std = 127.5 for -1 to 1; 0 and 255 for 0 to 1; 0 and 1 where the model takes 0 to 255"
            )
        raise CalibrationError(f"a folder of images does not fit a model that {what}", where=str(root), do=do)
    return ImageFolder(root, files, labels_of(root, files, contract) if labelled else None, contract)


def names_of(inputs: Iterable[str]) -> str:
    """The arrays that a `.npz` holds for these inputs, in words; one may be called x."""
    first, *others = inputs
    named = ", ".join(f"'{name}'" for name in [first, *others])
    return f"arrays {named}" if others else f"array {named}" + " or 'x'" * (first != "x")


def labels_of(root: Path, files: tuple[Path, ...], contract: Contract) -> tuple[int, ...] | None:
    """The class of every file by its sub-folder.
    None if a file has no sub-folder, or the model is not a classifier."""
    folders = [file.relative_to(root).parts[0] for file in files]
    in_root = any(len(file.relative_to(root).parts) == 1 for file in files)
    if in_root or contract.task != "classification":
        return None
    known, refused, classes = dict[str, int](), list[CalibrationError](), Classes(contract)
    for folder in dict.fromkeys(folders):
        try:
            known[folder] = classes.of_folder(root / folder)
        except CalibrationError as error:
            refused.append(error)
    if refused and not known:
        raise UnlabelledError(refused[0].what, where=refused[0].where, do=refused[0].do) from refused[0]
    if refused:
        raise refused[0]
    return tuple(known[folder] for folder in folders)


def files_in(root: Path, extensions: Collection[str] | None) -> tuple[Path, ...]:
    """Files with these extensions (None: any), in the order of their paths.
    Raises CalibrationError for a folder that may not be read."""
    # A FIFO or a device under a picture's name would be waited for without end; a dead link is an error later.
    files = (file for file in _entries(root, extensions) if file.is_file() or not file.exists())
    return tuple(sorted(files, key=lambda file: file.relative_to(root).parts))


def refuse_unreadable(root: Path, extensions: Collection[str] | None) -> None:
    """Raises CalibrationError for a folder that holds only pipes, devices or sockets."""
    odd = sorted(_entries(root, extensions))
    if odd:
        none = "its one file cannot be read" if len(odd) == 1 else f"none of its {len(odd)} files can be read"
        what = f"{none}: {odd[0].relative_to(root)} is not a regular file"
        raise CalibrationError(what, where=str(root), do="Put copies of the files there")


def _entries(root: Path, extensions: Collection[str] | None) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        what = f"cannot be read: {error.strerror or error}"
        raise CalibrationError(what, where=str(error.filename), do="Check its permissions") from error

    seen: set[str] = set()
    for folder, inner, names in os.walk(root, followlinks=True, onerror=refuse):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            fits = extensions is None or file.suffix.lower() in extensions
            if not name.startswith(".") and fits:
                yield file
