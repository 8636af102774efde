"""A file that is a whole sequence for a model that keeps a state: its frames, in order.

    for name, frame in frames("speech.wav", session.contract) or ():
        answer = session.predict(frame)                  # name: "speech.wav, frame 12"

Rules:
- a .wav is cut into what the model takes at once, each piece a hop after the last one (the contract's, else its
  length);
- an array with one axis more than the model's input is a sequence of frames, a .npz of several such arrays too;
- a file that is a single frame is none of this: it is the next frame of whatever sequence it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.inputs.files import ARRAYS, InputsError
from edgekit_runtime.contract.kinds import takes_rows

if TYPE_CHECKING:
    from edgekit_runtime.contract import Contract

__all__ = ["frames"]

_MOST_BYTES = 1 << 28


def frames(given: str, contract: Contract) -> Iterator[tuple[str, Any]] | None:
    """(name, frame) of each, None where the file is one frame or nothing that is known here. contract: the caller's
    view.

    Raises InputsError, InputError or CalibrationError for a file that cannot be read, or does not fit the model.
    """
    suffix = Path(given).suffix.lower()
    if suffix == ".wav":
        return _of_recording(given, contract)
    return _of_arrays(given, contract) if suffix in ARRAYS else None


def _of_recording(given: str, contract: Contract) -> Iterator[tuple[str, Any]]:
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
