"""Sequences of frames for a model with a state, each frame with the state that it occurs in.

    sequences = open_sequences("speech/", contract, source)    # a Dataset; `Example.step` is 0 at each beginning
    calibration, held_out = split_sequences(sequences)

Rules:
- the user gives frames, never states: the original runs along each sequence from the contract's initial state, and
  what it carries becomes part of the frame. So calibration may take frames in any order; a comparison carries the
  artifact's own state instead (see `fidelity.compare`);
- a sequence is a recording (.wav), an array [sequences, frames, ...] or [frames, ...], or what a function yields: an
  array [frames, ...] or a dict of them;
- sets are split between sequences; fewer than five are each cut in time, and the end begins afresh.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.arrays import check_item, memory_bytes, npy_members, npz_members
from edgekit_converters.data.dataset import HELD_OUT, Dataset, Example, RandomDataset, Subset, spread
from edgekit_converters.data.folder import files_in
from edgekit_converters.data.open import GeneratedDataset, examples_function, split_pair
from edgekit_converters.data.recordings import open_streams
from edgekit_converters.recipe.conversion_errors import CalibrationError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.recipe.user_function import is_function_name
from edgekit_converters.sources.source_model import SourceModel
from edgekit_runtime.contract.array_file import in_bytes
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines.registry import Engine, EngineInfo
from edgekit_runtime.loading.replay import Stepper

_RANDOM_FRAMES = 32
_KINDS = "Give .wav recordings, a .npy or .npz of [sequences, frames, ...], or module:function that yields sequences"


@dataclass(frozen=True, eq=False)
class Sequences(Dataset):
    """A Dataset of frames, sequence after sequence.
    frames: what the caller gives.
    lengths: frames of each sequence.
    states: input name -> [frames, ...], what the original carries into each frame."""

    frames: Dataset
    lengths: tuple[int, ...]
    states: Mapping[str, NDArray[Any]]
    contract: Contract
    source: SourceModel

    @property
    def name(self) -> str:
        return self.frames.name

    @property
    def any_order(self) -> bool:
        return self.frames.any_order

    @property
    def fingerprint(self) -> str | None:
        """None if the frames come out of a function."""
        found = self.frames.fingerprint
        if found is None:
            return None
        return hashlib.sha256(f"{found}\0{self.lengths}\0{self.source.sha256}".encode()).hexdigest()

    def __len__(self) -> int:
        return sum(self.lengths)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        wanted = list(indexes)
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        for index, example in zip(wanted, self.frames.pick(wanted), strict=True):
            step = index - int(starts[np.searchsorted(starts, index, side="right") - 1])
            carried = {name: array[index] for name, array in self.states.items()}
            yield Example({**example.inputs, **carried}, example.label, example.origin, step)


def open_sequences(
    path: str | os.PathLike[str], contract: Contract, source: SourceModel, progress: Progress = silent
) -> Sequences:
    """See `open_dataset` for what a path may be. Raises CalibrationError."""
    frames, lengths = _open(path, contract.of_caller)
    return _along(frames, lengths, contract, source, progress)


def random_sequences(
    contract: Contract, source: SourceModel, count: int, seed: int = 0, progress: Progress = silent
) -> Sequences:
    """Made-up sequences: `count` frames or a few more, in sequences of 32."""
    number = -(-count // _RANDOM_FRAMES)
    frames = RandomDataset(contract.of_caller, number * _RANDOM_FRAMES, seed)
    return _along(frames, (_RANDOM_FRAMES,) * number, contract, source, progress)


def split_sequences(given: Sequences, progress: Progress = silent) -> tuple[Sequences, Sequences]:
    """(calibration, held out): every fifth sequence, at most 64, spread over the set.
    Of fewer than five sequences the last fifth of each. Raises CalibrationError for fewer than two frames."""
    if len(given) < 2:
        do = "Give longer sequences"
        raise CalibrationError("one frame cannot be both calibrated with and evaluated on", where=given.name, do=do)
    count = len(given.lengths)
    starts = [int(start) for start in np.concatenate([[0], np.cumsum(given.lengths)])]
    spans = [(starts[place], starts[place + 1]) for place in range(count)]
    if count >= 5:
        held = spread(count, min(HELD_OUT, count // 5))
        first = [span for place, span in enumerate(spans) if place not in held]
        second = [spans[place] for place in held]
    else:
        cuts = [end - max(1, (end - begin) // 5) if end - begin > 1 else end for begin, end in spans]
        first = [(begin, cut) for (begin, _), cut in zip(spans, cuts, strict=True)]
        second = [(cut, end) for (_, end), cut in zip(spans, cuts, strict=True) if cut < end]
    return _part(given, first, progress), _part(given, second, progress)


def source_stepper(source: SourceModel, contract: Contract) -> Stepper:
    """The original, frame by frame."""
    return Stepper(contract, source.inputs, source.outputs, _SourceEngine(source))


class _SourceEngine(Engine):
    """The original as an engine."""

    info = EngineInfo("original", "", 1)

    def __init__(self, source: SourceModel) -> None:
        self.inputs, self.outputs = source.inputs, source.outputs
        self._source = source

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return self._source.predict(inputs)

    def reset(self) -> None:
        self._source.reset()

    def close(self) -> None:
        """The source is not this one's to close."""


def _part(given: Sequences, spans: Sequence[tuple[int, int]], progress: Progress) -> Sequences:
    indexes = [index for begin, end in spans for index in range(begin, end)]
    lengths = tuple(end - begin for begin, end in spans)
    return _along(Subset(given.frames, indexes), lengths, given.contract, given.source, progress)


def _along(
    frames: Dataset, lengths: tuple[int, ...], contract: Contract, source: SourceModel, progress: Progress
) -> Sequences:
    """The frames with their states. Reads all of them, so that an unreadable one is reported."""
    count = sum(lengths)
    specs = [contract.input(pair.input) for pair in contract.carried or ()]
    if not specs:
        for _ in frames:
            pass
        return Sequences(frames, lengths, {}, contract, source)
    needed = sum(count * int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize for spec in specs)
    if needed > memory_bytes() // 3:
        do = "Give fewer frames"
        raise CalibrationError(f"the states of {count:,} frames are {in_bytes(needed)}", where=frames.name, do=do)
    states = {spec.name: np.empty((count, *spec.shape), spec.dtype) for spec in specs}
    stepper, begins = source_stepper(source, contract), {0, *np.cumsum(lengths).tolist()}
    for index, example in enumerate(frames):
        if index in begins:
            stepper.reset()
        for name, tensor in stepper.state.items():
            states[name][index] = tensor[0]
        stepper.raw(example.inputs)
        progress("carrying the original's state", index + 1, count)
    return Sequences(frames, lengths, states, contract, source)


def _open(path: str | os.PathLike[str], contract: Contract) -> tuple[Dataset, tuple[int, ...]]:
    """(frames, frames of each sequence)"""
    place = Path(path)
    suffix = place.suffix.lower()
    if place.is_dir() or (place.is_file() and suffix == ".wav"):
        if place.is_dir() and not files_in(place, {".wav"}):
            raise CalibrationError("holds no recordings, and the model keeps a state", where=str(place), do=_KINDS)
        streams = open_streams(place, contract)
        return streams, streams.lengths
    if place.is_file() and suffix in (".npy", ".npz"):
        return _arrays(place, contract)
    if is_function_name(path):
        spec, counts = str(path), list[int]()
        function = examples_function(spec)

        def rows_of_all() -> Iterator[Any]:
            counts.clear()
            for number, value in enumerate(function()):
                rows = list(_rows(value, contract, f"{spec}, sequence {number}"))
                counts.append(len(rows))
                yield from rows

        frames = GeneratedDataset(spec, rows_of_all, contract)  # reads them once, which counts each sequence
        return frames, tuple(counts)
    what = "not a set of sequences, which a model with a state needs" if place.exists() else "does not exist"
    raise CalibrationError(what, where=str(place), do=_KINDS)


def _arrays(place: Path, contract: Contract) -> tuple[Dataset, tuple[int, ...]]:
    members, labels = npy_members(place, contract) if place.suffix.lower() == ".npy" else npz_members(place, contract)
    forms = set[tuple[int, ...]]()
    for spec in contract.inputs:
        array = members[spec.name]
        lead = array.ndim - len(spec.shape)
        if lead not in (1, 2) or tuple(array.shape[lead:]) != spec.shape:
            expected = ", ".join(["sequences", "frames", *map(str, spec.shape)])
            is_now = f"the input '{spec.name}' has shape {list(array.shape)}; a stateful model's is [{expected}]"
            raise CalibrationError(f"{is_now}, or one sequence without the first axis", where=str(place))
        forms.add(tuple(array.shape[:lead]))
    if len(forms) > 1:
        raise CalibrationError("the arrays have different numbers of sequences or frames", where=str(place))
    form = forms.pop()
    number, frames = (1, form[0]) if len(form) == 1 else form
    if labels is not None and tuple(labels.shape[: len(form)]) != form:
        do = f"Give a label a frame: {list(form)}"
        raise CalibrationError(f"y has shape {list(labels.shape)}", where=str(place), do=do)
    if labels is not None:
        labels = labels.reshape(number * frames, *labels.shape[len(form) :])
    flat = {spec.name: members[spec.name].reshape(number * frames, *spec.shape) for spec in contract.inputs}
    return check_item(place, flat, labels, contract), (frames,) * number


def _rows(value: Any, contract: Contract, where: str) -> Iterator[Any]:
    """One sequence's frames: dicts by input name, with "label" where there is one a frame."""
    values, label = split_pair(value, [spec.name for spec in contract.inputs], where)
    columns = {name: np.asarray(array) for name, array in values.items()}
    if label is not None:
        columns["label"] = np.asarray(label)
    counts = {array.shape[0] if array.ndim else 0 for array in columns.values()}
    if len(counts) != 1 or 0 in counts:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in columns.items())
        do = "Yield arrays [frames, ...], all of one length"
        raise CalibrationError(f"has no frames, or arrays of different lengths: {shapes}", where=where, do=do)
    for at in range(counts.pop()):
        yield {name: array[at] for name, array in columns.items()}
