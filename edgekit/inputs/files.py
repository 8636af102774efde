"""From what stands on a command line to what `predict` takes.

    for given in expanded(["cat.jpg", "photos/"]):
        answer = model.predict(load(given, model.contract))

Rules:
- a folder stands for the pictures and arrays in it and below it, in order of their names; what has another ending or a
  name that begins with a dot is left out;
- a folder with nothing in it, or that cannot be read, is an error in its own place: what else was named is still there;
- a file that is named itself is taken whatever its ending is, `X.NPY` is an array as `x.npy` is;
- an array file is read only as far as the model can take it; anything else is the decoder's business.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.errors import EdgekitError

if TYPE_CHECKING:
    from edgekit_runtime.contract import Contract

__all__ = ["ARRAYS", "InputsError", "expanded", "is_input", "listed", "load"]

ARRAYS = (".npy", ".npz")


class InputsError(EdgekitError):
    """A folder that holds nothing to ask about, or that cannot be read."""

    code = "inputs"


def is_input(name: str) -> bool:
    """Whether a file of a folder is something to ask about: a picture or an array, by its ending."""
    from edgekit_converters.calibration.folder import EXTENSIONS

    suffix = Path(name).suffix.lower()
    return not name.startswith(".") and (suffix in EXTENSIONS or suffix in ARRAYS)


def listed(given: Sequence[str]) -> Iterator[str | InputsError]:
    """Each folder replaced by its files, and by an error for each folder at or below it that has none or cannot be
    read.
    """
    for one in given:
        if Path(one).is_dir():
            yield from _in_folder(Path(one))
        else:
            yield one


def expanded(given: Sequence[str]) -> Iterator[str]:
    """As `listed`. Raises InputsError, when it comes to it."""
    for one in listed(given):
        if isinstance(one, InputsError):
            raise one
        yield one


def _in_folder(folder: Path) -> Iterator[str | InputsError]:
    closed: list[InputsError] = []

    def refused(error: OSError) -> None:
        where = os.fsdecode(error.filename) if error.filename is not None else str(folder)
        closed.append(InputsError(f"cannot be read: {error.strerror or error}", where=where))

    files: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name) for name in names if is_input(name) and _is_there(Path(parent, name))]
    yield from map(str, sorted(files))
    yield from closed
    if not files and not closed:
        yield InputsError(
            "holds no pictures and no arrays", where=str(folder), do=f"Put pictures, {' or '.join(ARRAYS)} files there"
        )


def _is_there(file: Path) -> bool:
    """False for a pipe, and for a link that leads nowhere. What may not be looked at is there: whoever reads it says
    why.
    """
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def load(given: str, contract: Contract) -> Any:
    """Arrays from .npy and .npz files; anything else stays what it is. Raises what `read_arrays` raises."""
    if not given.lower().endswith(ARRAYS):
        return given
    from edgekit_runtime.array_file import read_arrays

    arrays = read_arrays(Path(given), sum(kind_of(spec).most_bytes(spec) for spec in contract.inputs))
    return arrays if len(arrays) > 1 else next(iter(arrays.values()), None)
