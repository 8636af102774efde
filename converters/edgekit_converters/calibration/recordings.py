"""Recordings as sequences: each .wav is cut into frames of what a stateful model takes at once.

    pieces(samples, 576, 512)                    # float32 [frames, 576]
    open_streams(Path("speech/"), contract)      # (a Dataset of frames, how many each recording has)

Rules: a frame begins `hop` samples after the last one; a recording that is shorter than one frame is filled with zeros
behind, and what is left behind the last whole frame is not used; all recordings have one rate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.calibration.dataset import Example
from edgekit_converters.calibration.decode import Canonical
from edgekit_converters.calibration.folder import files_in, refuse_unreadable
from edgekit_converters.calibration.wav import read_wav
from edgekit_converters.errors import CalibrationError
from edgekit_runtime.contract.kinds import takes_rows
from edgekit_runtime.contract.spec import Contract

__all__ = ["Streams", "open_streams", "pieces"]

_OPEN = 32  # recordings kept in memory


def pieces(samples: NDArray[np.float32], count: int, hop: int) -> NDArray[np.float32]:
    """[frames, count], the first at the first sample."""
    if len(samples) < count:
        samples = np.pad(samples, (0, count - len(samples)))
    return np.lib.stride_tricks.sliding_window_view(samples, count)[::hop]


@dataclass(frozen=True)
class Streams:
    """A Dataset of all frames of all recordings, one recording after the other. lengths: frames of each."""

    files: tuple[Path, ...]
    contract: Contract
    lengths: tuple[int, ...]
    any_order: ClassVar[bool] = True
    root: Path = field(default_factory=Path)

    @property
    def name(self) -> str:
        return str(self.root)

    @property
    def fingerprint(self) -> str:
        """See `calibration.fingerprint`."""
        state = hashlib.sha256(f"{self.contract.hop} {self.contract.inputs[0].shape}".encode())
        for file in self.files:
            state.update(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest())
        return state.hexdigest()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return sum(self.lengths)

    def __iter__(self) -> Iterator[Example]:
        return self.pick(range(len(self)))

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
    """A .wav file or a folder of them. contract: as the caller sees it. Raises CalibrationError when there are none, the
    model takes no row of floats, or the rates differ."""
    files = (place,) if place.is_file() else files_in(place, {".wav"})
    spec = contract.inputs[0]
    if not takes_rows(contract):
        taken = f"{spec.dtype} {list(spec.shape)}" if len(contract.inputs) == 1 else f"{len(contract.inputs)} inputs"
        raise CalibrationError(
            f"recordings do not fit a model that takes {taken}",
            where=str(place),
            do="Turn them into what the model takes: a .npz of [sequences, frames, ...], or module:function",
        )
    if not files:
        refuse_unreadable(place, {".wav"})
        raise CalibrationError("no recordings in this folder", where=str(place), do="Put .wav files there")
    lengths, rate = [], 0
    for file in files:
        samples, found = read_wav(file)
        rate = rate or found
        if found != rate:
            raise CalibrationError(
                f"has {found} samples a second, and the first recording has {rate}",
                where=str(file),
                do="Resample them all to the rate that the model was trained on",
            )
        lengths.append(len(pieces(samples, prod(spec.shape), _hop(contract))))
    return Streams(files, contract, tuple(lengths), place)


def _hop(contract: Contract) -> int:
    return contract.hop or prod(contract.inputs[0].shape)


@lru_cache(maxsize=_OPEN)
def _frames(file: Path, _changed_ns: int, count: int, hop: int) -> NDArray[np.float32]:
    return pieces(read_wav(file)[0], count, hop)
