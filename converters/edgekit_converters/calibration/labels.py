"""What a folder's name, a number or an array says of an item: a class for a classifier, else what should be answered.

classes = Classes(contract)
classes.of_folder("golden retriever", where)       # 207
classes.of_value(0.25, where)                      # 0.25, where the task is not classification
"""

from __future__ import annotations

import difflib
import math
import operator
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from edgekit_converters.calibration.dataset import Label
from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.spec import Contract

__all__ = ["Classes"]


class Classes:
    """The classes of a classifier. `count` is None for any other task: its numbers are not checked."""

    def __init__(self, contract: Contract) -> None:
        self.count = math.prod(contract.outputs[0].shape) if contract.task == "classification" else None
        self._indexes: dict[str, list[int]] = {}
        for index, label in enumerate(contract.labels or ()):
            self._indexes.setdefault(_canonical(label), []).append(index)

    def of_folder(self, folder: Path) -> int:
        """A label's exact name wins over an index, so that classes may be called "7". Raises CalibrationError."""
        found = self._indexes.get(_canonical(folder.name), [])
        if len(found) == 1:
            return found[0]
        if found:
            listed = " and ".join(str(index) for index in found)
            raise CalibrationError(
                f"'{folder.name}' is the label of the classes {listed}",
                where=str(folder),
                do="Name the folder after the index instead",
            )
        if folder.name.isascii() and folder.name.isdigit():
            return self.of_number(int(folder.name), str(folder))
        raise CalibrationError(f"no class is called '{folder.name}'", where=str(folder), do=self._advice(folder.name))

    def of_value(self, value: Any, where: str) -> Label:
        """A class index for a classifier; for any other task a number or a numeric array. Raises CalibrationError."""
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
            what = f"has a label of type {type(value).__name__} that is no finite number"
            raise CalibrationError(what, where=where, do="A label is a number or an array of numbers")
        number: Label = array.item() if array.ndim == 0 else array
        return number

    def of_number(self, number: int, where: str) -> int:
        if self.count is not None and not 0 <= number < self.count:
            raise CalibrationError(f"{number} is no class: they run from 0 to {self.count - 1}", where=where)
        return number

    def _advice(self, name: str) -> str:
        if not self._indexes:
            return (
                "Name the folder after a class index, add `labels` to the contract file, or move the images up if the "
                "folders are not classes"
            )
        folded = {label.casefold(): label for label in self._indexes}
        near = [folded[match] for match in difflib.get_close_matches(_canonical(name).casefold(), folded, 3, 0.5)]
        if near:
            return "Did you mean " + " or ".join(f"'{label}'" for label in near) + "?"
        return "Name the folder after a label or a class index, or move the images up if the folders are not classes"


def _canonical(name: str) -> str:
    """macOS hands out decomposed names: compare composed ones."""
    return unicodedata.normalize("NFC", name.strip())
