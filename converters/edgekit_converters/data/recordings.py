""".wav recordings as examples: a row of numbers each, or frames for a model with a state.

    open_dataset("prompts/", contract)           # the loudest part of each .wav, as long as the model's input
    open_streams(Path("speech/"), contract)      # a Dataset of frames; `lengths`: how many each recording has
    samples, rate = read_wav(Path("yes.wav"))    # float32 [samples] in -1..1, 16000

Rules:
- PCM of 8, 16, 24 or 32 bits and IEEE floats of 32 or 64 are read; several channels are averaged;
- nothing is resampled, so a set has one rate, which must be the rate of the model's training;
- the input has one axis besides those of size 1; sub-folders are labels as in a folder of pictures;
- a frame begins `hop` samples after the last one; a recording shorter than one frame is filled with zeros, and samples
  behind the last whole frame are not used.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Canonical, Example, FileDataset
from edgekit_converters.data.folder import files_in, labels_of, refuse_unreadable
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_runtime.contract.kinds import takes_rows
from edgekit_runtime.contract.spec import Contract

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_AGAIN = "Save it again as 16-bit PCM, or remove it"


def read_wav(path: Path) -> tuple[NDArray[np.float32], int]:
    """float32 [frames] in -1..1, and frames a second.
    Python's own `wave` refuses floats, so the chunks (Microsoft's RIFF WAVE) are read here.
    Raises CalibrationError for a damaged or unknown file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CalibrationError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise CalibrationError("not a .wav file", where=str(path), do=_AGAIN)
    # The first chunk of each name; one that ends early (a recorder that was switched off) is what is there
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.setdefault(name, data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    head, body = chunks.get(b"fmt ", b""), chunks.get(b"data", b"")
    if len(head) < 16:
        raise CalibrationError("has no format", where=str(path), do=_AGAIN)
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", head[:16])
    if kind == _EXTENSIBLE and len(head) >= 26:
        kind = struct.unpack("<H", head[24:26])[0]
    if not frame or 8 * frame != channels * bits or not rate:
        raise CalibrationError(f"has {channels} channels of {bits} bits in {frame} bytes", where=str(path), do=_AGAIN)
    numbers = _numbers(body[: len(body) // frame * frame], kind, bits)
    if numbers is None:
        what = f"has samples of a kind that is not read ({kind}, {bits} bits)"
        raise CalibrationError(what, where=str(path), do=_AGAIN)
    if not numbers.size:
        raise CalibrationError("has no samples", where=str(path), do="Remove it")
    with np.errstate(over="ignore", invalid="ignore"):
        mono = numbers.reshape(-1, channels).mean(axis=1).astype(np.float32)
    if not np.isfinite(mono).all():
        raise CalibrationError("has samples that are NaN or infinite", where=str(path), do="Remove it")
    return mono, int(rate)


def loudest(samples: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The `count` samples with the most energy, in steps of half that length.
    A shorter recording gets zeros behind."""
    if len(samples) <= count:
        return np.pad(samples, (0, count - len(samples)))
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    starts = np.unique([*range(0, len(samples) - count, max(1, count // 2)), len(samples) - count])
    start = int(starts[np.argmax(energy[starts + count] - energy[starts])])
    return samples[start : start + count]


def _numbers(body: bytes, kind: int, bits: int) -> NDArray[np.float64] | None:
    if kind == _FLOAT and bits in (32, 64):
        return np.frombuffer(body, f"<f{bits // 8}").astype(np.float64)
    if kind != _PCM:
        return None
    if bits == 8:
        return (np.frombuffer(body, np.uint8).astype(np.float64) - 128) / 128
    if bits in (16, 32):
        return np.frombuffer(body, f"<i{bits // 8}").astype(np.float64) / 2.0 ** (bits - 1)
    if bits == 24:
        low, middle, high = np.frombuffer(body, np.uint8).reshape(-1, 3).T.astype(np.int64)
        unsigned = low | middle << 8 | high << 16
        return np.where(unsigned >= 1 << 23, unsigned - (1 << 24), unsigned) / float(1 << 23)
    return None


@dataclass(frozen=True)
class Recordings(FileDataset):
    """A Dataset of the loudest part of each recording. rate: samples a second of all of them."""

    rate: int

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, spec = Canonical(self.contract), self.contract.inputs[0]
        for file, label in map(self.item, indexes):
            samples, rate = read_wav(file)
            if rate != self.rate:
                raise _other_rate(file, rate, self.rate)
            row = loudest(samples, prod(spec.shape)).reshape(spec.shape).astype(spec.dtype)
            yield Example(canonical({spec.name: row}, str(file)), label, str(file))


def _other_rate(file: Path, rate: int, first: int) -> CalibrationError:
    what = f"has {rate} samples a second, and the first recording has {first}"
    do = "Resample them all to the rate that the model was trained on"
    return CalibrationError(what, where=str(file), do=do)


def open_recordings(root: Path, contract: Contract, *, labelled: bool) -> Recordings:
    """A folder of .wav files.
    Raises CalibrationError if it has none, or the model takes no row of floats."""
    fits = takes_rows(contract) and bool(contract.inputs[0].shape)
    files, rate = _files(root, contract, fits, "a .npz, or module:function that yields arrays"), 0
    for file in files:
        with contextlib.suppress(CalibrationError):  # a damaged one is left out later, and counted
            rate = read_wav(file)[1]
            break
    labels = labels_of(root, files, contract) if labelled else None
    return Recordings(root, files, labels, contract, rate)


def _files(place: Path, contract: Contract, fits: bool, form: str) -> tuple[Path, ...]:
    """The recordings there. form: what else the model takes, for the error unless it `fits`."""
    if not fits:
        spec = contract.inputs[0]
        taken = f"{spec.dtype} {list(spec.shape)}" if len(contract.inputs) == 1 else f"{len(contract.inputs)} inputs"
        do = f"Turn them into what the model takes: {form}"
        raise CalibrationError(f"recordings do not fit a model that takes {taken}", where=str(place), do=do)
    files = (place,) if place.is_file() else files_in(place, {".wav"})
    if not files:
        refuse_unreadable(place, {".wav"})
        raise CalibrationError("no recordings in this folder", where=str(place), do="Put .wav files there")
    return files


_OPEN = 32  # recordings kept in memory


def pieces(samples: NDArray[np.float32], count: int, hop: int) -> NDArray[np.float32]:
    """[frames, count], the first at the first sample."""
    if len(samples) < count:
        samples = np.pad(samples, (0, count - len(samples)))
    return np.lib.stride_tricks.sliding_window_view(samples, count)[::hop]


@dataclass(frozen=True)
class Streams(FileDataset):
    """A Dataset of all frames of all recordings, in order. lengths: frames of each."""

    lengths: tuple[int, ...]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return sum(self.lengths)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        canonical, spec = Canonical(self.contract), self.contract.inputs[0]
        for index in indexes:
            place = int(np.searchsorted(self._starts, index, side="right")) - 1
            file, step = self.files[place], index - int(self._starts[place])
            cut = _frames(file, file.stat().st_mtime_ns, prod(spec.shape), _hop(self.contract))
            row = cut[step].reshape(spec.shape).astype(spec.dtype)
            origin = f"{file}, frame {step}"
            yield Example(canonical({spec.name: row}, origin), None, origin)


def open_streams(place: Path, contract: Contract) -> Streams:
    """A .wav file or a folder of them. contract: as the caller sees it.
    Raises CalibrationError if there are none, the model takes no row of floats, or the rates differ."""
    form = "a .npz of [sequences, frames, ...], or module:function"
    files, spec = _files(place, contract, takes_rows(contract), form), contract.inputs[0]
    lengths, rate = [], 0
    for file in files:
        samples, found = read_wav(file)
        rate = rate or found
        if found != rate:
            raise _other_rate(file, found, rate)
        lengths.append(len(pieces(samples, prod(spec.shape), _hop(contract))))
    return Streams(place, files, None, contract, tuple(lengths))


def _hop(contract: Contract) -> int:
    return contract.hop or prod(contract.inputs[0].shape)


@lru_cache(maxsize=_OPEN)
def _frames(file: Path, _changed_ns: int, count: int, hop: int) -> NDArray[np.float32]:
    return pieces(read_wav(file)[0], count, hop)
