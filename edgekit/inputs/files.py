"""From the paths on a command line to what `predict` takes.

    for given in expand(["cat.jpg", "photos/"]):
        answer = model.predict(load(given, model.contract))
    for name, frame in frames("speech.wav", session.contract) or ():      # a sequence, for a model that keeps a state
        answer = session.predict(frame)                                   # name: "speech.wav, frame 12"

Rules:
- a folder stands for the pictures and arrays in it and below it, in order of their names; what has another ending or a
  name that begins with a dot is left out;
- a folder with nothing in it, or that cannot be read, is an error in its own place: what else was named is still there;
- a file that is named itself is taken whatever its ending is, `X.NPY` is an array as `x.npy` is;
- an array file is read only as far as the model can take it; anything else is the decoder's business;
- a .wav is cut into frames, each a hop after the last one (the contract's, else the frame's length);
- an array with one axis more than the model's input is a sequence of frames, a .npz of several such arrays too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.contract.kinds import kind_of, takes_rows
from edgekit_runtime.errors import EdgekitError

if TYPE_CHECKING:
    from edgekit_runtime.contract.spec import Contract

ARRAYS = (".npy", ".npz")


class InputsError(EdgekitError):
    """A folder that holds nothing to ask about, or that cannot be read."""

    code = "inputs"


def is_input(name: str) -> bool:
    """Whether a file of a folder is an input, a picture or an array, by its ending."""
    from edgekit_converters.calibration.folder import EXTENSIONS

    suffix = Path(name).suffix.lower()
    return not name.startswith(".") and (suffix in EXTENSIONS or suffix in ARRAYS)


def list_files(given: Sequence[str]) -> Iterator[str | InputsError]:
    """Replace each folder by its files, or by an error if it has none or is unreadable."""
    for one in given:
        if Path(one).is_dir():
            yield from _in_folder(Path(one))
        else:
            yield one


def expand(given: Sequence[str]) -> Iterator[str]:
    """As `list_files`. Raises InputsError, when it comes to it."""
    for one in list_files(given):
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
        for file in (Path(parent, name) for name in names if is_input(name)):
            try:  # not a pipe, nor a link that leads nowhere
                there = stat.S_ISREG(file.stat().st_mode)
            except OSError as error:  # one that may not be looked at is there: its reader says why it fails
                there = isinstance(error, PermissionError)
            files += [file] if there else []
    yield from map(str, sorted(files))
    yield from closed
    if not files and not closed:
        yield InputsError(
            "holds no pictures and no arrays", where=str(folder), do=f"Put pictures, {' or '.join(ARRAYS)} files there"
        )


def load(given: str, contract: Contract) -> Any:
    """Arrays from .npy and .npz files; anything else stays what it is.
    Raises what `read_arrays` raises."""
    if not given.lower().endswith(ARRAYS):
        return given
    from edgekit_runtime.array_file import read_arrays

    arrays = read_arrays(Path(given), sum(kind_of(spec).most_bytes(spec) for spec in contract.inputs))
    return arrays if len(arrays) > 1 else next(iter(arrays.values()), None)


_MOST_BYTES = 1 << 28


def frames(given: str, contract: Contract) -> Iterator[tuple[str, Any]] | None:
    """(name, frame) of each, None where the file is one frame or nothing that is known here.
    contract: the caller's view.

    Raises InputsError, InputError or CalibrationError for a file that cannot be read, or does not fit the model.
    """
    suffix = Path(given).suffix.lower()
    if suffix != ".wav":
        return _of_arrays(given, contract) if suffix in ARRAYS else None
    from edgekit_converters.calibration.recordings import pieces, read_wav

    spec = contract.inputs[0]
    if not takes_rows(contract):
        raise InputsError(
            "the model does not take pieces of a recording",
            where=given,
            do="Pass an array of frames (.npy), or .npz for several inputs",
        )
    samples, _ = read_wav(Path(given))
    cut = pieces(samples, prod(spec.shape), contract.hop or prod(spec.shape))
    return ((f"{given}, frame {at}", piece.reshape(spec.shape)) for at, piece in enumerate(cut))


def _of_arrays(given: str, contract: Contract) -> Iterator[tuple[str, Any]] | None:
    from edgekit_runtime.array_file import read_arrays

    arrays = read_arrays(Path(given), _MOST_BYTES)
    single = len(contract.inputs) == 1 and len(arrays) == 1
    named = {contract.inputs[0].name: next(iter(arrays.values()))} if single else arrays
    if any(spec.name not in named or named[spec.name].ndim != len(spec.shape) + 1 for spec in contract.inputs):
        return None
    counts = {len(named[spec.name]) for spec in contract.inputs}
    if len(counts) > 1 or all(array.shape == (1, *spec.shape) for spec, array in _pairs(contract, named)):
        return None  # one frame with a batch axis of 1, or arrays that do not belong together
    return (
        (f"{given}, frame {at}", {spec.name: array[at] for spec, array in _pairs(contract, named)})
        for at in range(counts.pop())
    )


def _pairs(contract: Contract, named: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(spec, named[spec.name]) for spec in contract.inputs]
