"""Which class a folder's name or a number stands for.

classes = Classes(contract)
classes.of_folder("golden retriever", where)       # 207
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from pathlib import Path

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
