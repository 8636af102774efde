"""From what stands on a command line to what `predict` takes.

    for given in expanded(["cat.jpg", "photos/"]):
        answer = model.predict(load(given, model.contract))

Rules:
- a folder stands for the pictures and arrays in it and below it, in order of their names; what has another ending or a
  name that begins with a dot is left out;
- a file that is named itself is taken whatever its ending is;
- an array file is read only as far as the model can take it; anything else is the decoder's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.errors import EdgekitError

if TYPE_CHECKING:
    from edgekit_runtime.contract import Contract

__all__ = ["ARRAYS", "InputsError", "expanded", "is_input", "load"]

ARRAYS = (".npy", ".npz")


class InputsError(EdgekitError):
    """A folder that holds nothing to ask about, or that cannot be read."""

    code = "inputs"


def is_input(name: str) -> bool:
    """Whether a file of a folder is something to ask about: a picture or an array, by its ending."""
    from edgekit_converters.calibration.folder import EXTENSIONS

    suffix = Path(name).suffix.lower()
    return not name.startswith(".") and (suffix in EXTENSIONS or suffix in ARRAYS)


def expanded(given: Sequence[str]) -> Iterator[str]:
    """Each folder replaced by its files. Raises InputsError, when it comes to it."""
    for one in given:
        if Path(one).is_dir():
            yield from _in_folder(Path(one))
        else:
            yield one


def _in_folder(folder: Path) -> Iterator[str]:
    found = False
    try:
        for file in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if not hidden and is_input(file.name) and file.is_file():
                found = True
                yield str(file)
    except OSError as error:
        raise InputsError(f"cannot be read: {error.strerror or error}", where=str(folder)) from error
    if not found:
        raise InputsError(
            "holds no pictures and no arrays", where=str(folder), do=f"Put pictures, {' or '.join(ARRAYS)} files there"
        )


def load(given: str, contract: Contract) -> Any:
    """Arrays from .npy and .npz files; anything else stays what it is. Raises what `read_arrays` raises."""
    if not given.endswith(ARRAYS):
        return given
    from edgekit_runtime.array_file import read_arrays
    from edgekit_runtime.contract.decode import MAX_PIXELS

    # The widest numbers of the shape, or the largest picture that the decoder takes.
    most = max(16 * math.prod(spec.shape) + (spec.image is not None) * 4 * MAX_PIXELS for spec in contract.inputs)
    arrays = read_arrays(Path(given), most)
    return arrays if len(arrays) > 1 else next(iter(arrays.values()), None)
