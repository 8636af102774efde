"""A folder of recordings, or of any files through a named preprocessing, for a model that takes one row of numbers.

    open_dataset("prompts/", contract)           # .wav files: the loudest part of each, as long as the model's input
    open_dataset("bytes:documents/", contract)   # the first bytes of every file, 0 to 255
    open_dataset("ends:documents/", contract)    # the first and the last bytes, 256 between them where a file is short
    open_dataset("text:letters/", contract)      # code points of UTF-8 text, zeros behind it

Rules: one item a file; the input has one axis besides those of size 1; sub-folders are labels as in a folder of pictures.
Any other preprocessing is a function of the user's: `module:function`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Example
from edgekit_converters.calibration.decode import Canonical
from edgekit_converters.calibration.folder import files_in, labels_of, refuse_unreadable
from edgekit_converters.calibration.wav import loudest, read_wav
from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.kinds import takes_rows
from edgekit_runtime.contract.spec import Contract

__all__ = ["PREPROCESSINGS", "FileFolder", "open_files", "open_recordings"]

_PADDING = 256


@dataclass(frozen=True)
class FileFolder:
    """A Dataset of files that become rows of numbers. reading: a name in PREPROCESSINGS, or `wav`.

    rate: samples a second of every recording.
    """

    root: Path
    files: tuple[Path, ...]
    labels: tuple[int, ...] | None
    contract: Contract
    reading: str
    rate: int = 0

    any_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return str(self.root)

    @property
    def fingerprint(self) -> str:
        """See `calibration.fingerprint`."""
        state = hashlib.sha256(f"{self.reading}\0{self.labels}".encode())
        for file in self.files:
            state.update(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest())
        return state.hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Example]:
        return self.pick(range(len(self.files)))

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, spec = Canonical(self.contract), self.contract.inputs[0]
        for index in indexes:
            file = self.files[index]
            row = self._row(file, prod(spec.shape)).reshape(spec.shape).astype(spec.dtype)
            label = None if self.labels is None else self.labels[index]
            yield Example(canonical({spec.name: row}, str(file)), label, str(file))

    def _row(self, file: Path, count: int) -> NDArray[Any]:
        if self.reading != "wav":
            try:
                return PREPROCESSINGS[self.reading](file.read_bytes(), count)
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise CalibrationError(f"cannot be read: {reason}", where=str(file), do="Remove it") from error
        samples, rate = read_wav(file)
        if rate != self.rate:
            raise CalibrationError(
                f"has {rate} samples a second, and the first recording has {self.rate}",
                where=str(file),
                do="Resample them all to the rate that the model was trained on",
            )
        return loudest(samples, count)


def open_recordings(root: Path, contract: Contract, *, labelled: bool) -> FileFolder:
    """A folder of .wav files. Raises CalibrationError when there are none, or the model takes no row of floats."""
    files = files_in(root, {".wav"})
    _check(root, contract, "f", "recordings", files)
    rate = next(_rates(files), 0)
    labels = labels_of(root, files, contract) if labelled else None
    return FileFolder(root, files, labels, contract, "wav", rate)


def open_files(reading: str, root: Path, contract: Contract, *, labelled: bool) -> FileFolder:
    """A folder of any files. Raises CalibrationError when there are none, or the model takes no row of numbers."""
    files = files_in(root, None)
    _check(root, contract, "fiu", "files", files)
    labels = labels_of(root, files, contract) if labelled else None
    return FileFolder(root, files, labels, contract, reading)


def _rates(files: Iterable[Path]) -> Iterator[int]:
    """Of the files that can be read."""
    for file in files:
        try:
            yield read_wav(file)[1]
        except CalibrationError:
            continue


def _check(root: Path, contract: Contract, kinds: str, what: str, files: tuple[Path, ...]) -> None:
    spec = contract.inputs[0]
    if not takes_rows(contract, kinds) or not spec.shape:
        taken = f"{spec.dtype} {list(spec.shape)}" if len(contract.inputs) == 1 else f"{len(contract.inputs)} inputs"
        raise CalibrationError(
            f"a folder of {what} does not fit a model that takes {taken}",
            where=str(root),
            do="Turn them into what the model takes: a .npz, or module:function that yields arrays",
        )
    if not files:
        refuse_unreadable(root, {".wav"} if what == "recordings" else None)
        raise CalibrationError(f"no {what} in this folder", where=str(root), do="Put some there")


def _first_bytes(data: bytes, count: int) -> NDArray[Any]:
    return np.frombuffer(data[:count].ljust(count, b"\0"), np.uint8).astype(np.int64)


def _both_ends(data: bytes, count: int, window: int = 4096) -> NDArray[Any]:
    """Half of the row from the start without leading white space, half from the end without trailing white space."""
    first = count - count // 2
    head = list(data[:window].lstrip()[:first])
    tail = list(data[-window:].rstrip()[-(count // 2) :]) if count > 1 else []
    return np.array([*head, *[_PADDING] * (count - len(head) - len(tail)), *tail], np.int64)


def _code_points(data: bytes, count: int) -> NDArray[Any]:
    points = [ord(character) for character in data.decode("utf-8-sig")[:count]]
    return np.array(points + [0] * (count - len(points)), np.int64)


PREPROCESSINGS: dict[str, Callable[[bytes, int], NDArray[Any]]] = {
    "bytes": _first_bytes,
    "ends": _both_ends,
    "text": _code_points,
}
"""Name -> (a file's bytes, length of the row) -> the row."""
