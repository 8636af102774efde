"""Inputs for `predict`: paths of a command line, or files arriving in a directory.

    for given in expand(["cat.jpg", "photos/"]):
        answer = model.predict(load(given, model.contract))
    for name, frame in several("speech.wav", session.contract) or ():     # for a model that keeps a state
        answer = session.predict(frame)                                   # name: "speech.wav, frame 12"
    for file in Arrivals(Path("inbox")).until(ended): ...                 # ended: an Event

Rules:
- a directory means the pictures and arrays below it by name, without hidden ones; a folder that is empty or cannot be
  read is an error in its place among the files; a file that is named itself may have any ending;
- an array file is read only as far as the model can take it;
- an array with one axis more than the model's input holds several items, as does a .npz of several such arrays; to a
  model that keeps a state they are frames of one sequence. `y`, the labels of an evaluation file, is left out;
- for such a model a .wav is cut into frames a hop apart (the contract's, else the frame's length);
- a .txt holds an item a line, for a model that takes texts;
- a file arrives when size, time and inode were the same for SETTLED_S, and again after it was changed. Those that were
  there at the start, empty and hidden files, and folders do not arrive;
- a folder is polled ten times a second, for at most a twentieth of the time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from time import monotonic
from typing import Any

from edgekit_runtime.contract.array_file import read_arrays
from edgekit_runtime.contract.kinds import kind_of, takes_rows
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.errors import EdgekitError

ARRAYS = (".npy", ".npz")


class InputsError(EdgekitError):
    """A folder without inputs or that cannot be read, or a file that is none of this model's."""

    code = "inputs"


class GivenText(str):
    """A text of the command line, not a path."""

    __slots__ = ()


def is_input(name: str) -> bool:
    """Whether a file's name is that of a picture or an array."""
    from edgekit_converters.data.folder import EXTENSIONS

    suffix = Path(name).suffix.lower()
    return not name.startswith(".") and (suffix in EXTENSIONS or suffix in ARRAYS)


def list_files(given: Sequence[str]) -> Iterator[str | InputsError]:
    """Replace each folder by its files, or by an error if it has none or is unreadable."""
    for one in given:
        if not isinstance(one, GivenText) and Path(one).is_dir():
            yield from _in_folder(Path(one))
        else:
            yield one


def expand(given: Sequence[str]) -> Iterator[str]:
    """As `list_files`, but raises InputsError."""
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
            try:  # no pipe, no dangling link
                there = stat.S_ISREG(file.stat().st_mode)
            except OSError as error:  # its reader gives the reason
                there = isinstance(error, PermissionError)
            files += [file] if there else []
    yield from map(str, sorted(files))
    yield from closed
    if not files and not closed:
        do = f"Put pictures, {' or '.join(ARRAYS)} files into it"
        yield InputsError("contains no pictures or arrays", where=str(folder), do=do)


def load(given: str, contract: Contract) -> Any:
    """Arrays of .npy and .npz files, else the path. Raises InputsError or InputError."""
    of_text = contract.text is not None or contract.generation is not None
    if isinstance(given, GivenText) and not of_text:
        raise InputsError("the model does not take text", where=given, do="Pass a file instead of --text")
    if isinstance(given, GivenText) or not (of_text or given.lower().endswith(ARRAYS)):
        return given
    if not given.lower().endswith(ARRAYS):
        do = "Pass a .txt file with one text per line, or the text itself with --text"
        raise InputsError("the model takes texts, and this is not a .txt file", where=given, do=do)
    arrays = _read(given, contract, sum(kind_of(spec).most_bytes(spec) for spec in contract.inputs))
    return arrays if len(arrays) > 1 else next(iter(arrays.values()), None)


def _read(given: str, contract: Contract, most_bytes: int) -> dict[str, Any]:
    item = "one item: " + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in contract.inputs)
    return read_arrays(Path(given), most_bytes, item)


_MOST_BYTES = 1 << 28


def several(given: str, contract: Contract) -> Iterator[tuple[str, Any]] | None:
    """(name, item or frame) of each; None if the file holds a single one or is of another kind.

    Raises InputsError, InputError or CalibrationError for a file that cannot be read, or does not fit the model.
    """
    suffix = Path(given).suffix.lower()
    if contract.text is not None or contract.generation is not None:
        if isinstance(given, GivenText):
            return iter([(f"{given:.60}", given)])
        if suffix == ".txt":
            from edgekit_converters.data.texts import read_lines

            lines = read_lines(Path(given))
            return ((f"{given}, line {number}", GivenText(line, "utf-8", "surrogateescape")) for number, line in lines)
    if suffix in ARRAYS:
        return _array_items(given, contract)
    if suffix != ".wav" or contract.state == "none":
        return None
    from edgekit_converters.data.recordings import pieces, read_wav

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


def _array_items(given: str, contract: Contract) -> Iterator[tuple[str, Any]] | None:
    arrays, inputs = _read(given, contract, _MOST_BYTES), {spec.name: spec for spec in contract.inputs}
    if len(inputs) == 1:
        arrays = {name: array for name, array in arrays.items() if name != "y" or name in inputs}
        if not arrays:
            raise InputsError("holds labels alone (y)", where=given, do=f"Give it an array '{next(iter(inputs))}'")
        arrays = dict(zip(inputs, arrays.values(), strict=False)) if len(arrays) == 1 else arrays
    if any(name not in arrays or arrays[name].ndim != len(spec.shape) + 1 for name, spec in inputs.items()):
        return None
    counts = {len(arrays[name]) for name in inputs}
    if len(counts) > 1 or counts == {0} or all(arrays[name].shape == (1, *spec.shape) for name, spec in inputs.items()):
        return None  # nothing, one item with a batch axis of 1, or unrelated arrays
    what = "item" if contract.state == "none" else "frame"
    return ((f"{given}, {what} {at}", {name: arrays[name][at] for name in inputs}) for at in range(counts.pop()))


EVERY_S = 0.1
SETTLED_S = 0.25

Sign = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, inode."""


def settled_names(seen: Mapping[str, tuple[Sign, float]], reported: Mapping[str, Sign], now_s: float) -> list[str]:
    """Names that are due, in the order in which they settled. seen: sign, and its first time."""
    due = [
        (since, name)
        for name, (sign, since) in seen.items()
        if reported.get(name) != sign and now_s - since >= SETTLED_S
    ]
    return [name for _, name in sorted(due)]


class Arrivals:
    """look: folder -> name -> sign; for tests."""

    def __init__(
        self,
        folder: Path,
        look: Callable[[Path], dict[str, Sign]] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._folder, self._look, self._clock = folder, look or signs, clock
        self._reported = self._look(folder)
        self._seen: dict[str, tuple[Sign, float]] = {}

    def next(self) -> list[Path]:
        """What has arrived since the last call. Raises InputsError if the folder is gone."""
        now, lies = self._clock(), self._look(self._folder)
        self._reported = {name: sign for name, sign in self._reported.items() if name in lies}
        self._seen = {
            name: (sign, self._seen[name][1] if name in self._seen and self._seen[name][0] == sign else now)
            for name, sign in lies.items()
        }
        names = settled_names(self._seen, self._reported, now)
        self._reported |= {name: lies[name] for name in names}
        return [self._folder / name for name in names]

    def until(self, ended: threading.Event) -> Iterator[Path]:
        """Files as they arrive, until the event is set."""
        while not ended.is_set():
            began = self._clock()
            for file in self.next():
                if ended.is_set():
                    return
                yield file
                began = self._clock()
            ended.wait(max(EVERY_S, 20 * (self._clock() - began)))


def signs(folder: Path) -> dict[str, Sign]:
    """The inputs in a folder. Raises InputsError."""
    found: dict[str, Sign] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_input(entry.name):
                    with contextlib.suppress(OSError):  # gone again
                        now = entry.stat()
                        if stat.S_ISREG(now.st_mode) and now.st_size:
                            found[entry.name] = (now.st_size, now.st_mtime_ns, now.st_ino)
    except OSError as error:
        do = "Pass a readable directory that your files are copied to"
        raise InputsError(f"cannot be watched: {error.strerror or error}", where=str(folder), do=do) from error
    return found
