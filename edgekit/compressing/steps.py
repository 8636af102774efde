"""The steps of `edgekit compress`: a `.keras` file and data in, a trained file out.

    made = carry_out("prune", path, bench)              # TrainedFile: bytes, learnt ranges, a record

Rules:
- one seeded loop trains each step and resumes after its last round; earlier decisions (which channels leave, a
  teacher's answers) are kept on disk, so that a resumed run trains the same network;
- a teacher answers the training items once; it has the student's outputs, or is refused;
- the board's estimate decides which channels leave, checked on the artifact of the narrower network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import Opener, cached_reference, key, survey_digest
from edgekit.compressing.compress_report import Limits, MeasuredArtifact, busy_error
from edgekit.compressing.compress_request import CompressRequest
from edgekit.compressing.training_data import OutputSplit
from edgekit_converters.compress import hints as layer_hints
from edgekit_converters.compress.channels import STEP, trace, without
from edgekit_converters.compress.float_training import FloatRun, train_float
from edgekit_converters.compress.losses import Teaching
from edgekit_converters.compress.pruning import Count, choose_by_time, choose_by_width, importance
from edgekit_converters.compress.qat import open_network, train_for_8_bits
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.compress.train import answers_of
from edgekit_converters.data.dataset import Dataset, Example, Subset
from edgekit_converters.data.describe_contract import describe, find_contract_file
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.fidelity.reference import Reference, reference
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import CompressError
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.recipe.store import StageStore, cached_json
from edgekit_converters.sources.load import open_source
from edgekit_converters.sources.load_options import LoadOptions
from edgekit_converters.sources.source_model import SourceModel
from edgekit_profiles import Profile, installable
from edgekit_profiles.estimate import estimate
from edgekit_profiles.workload import Workload
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.strict_json import to_json

HINTS = "hints.npy"
"""Outputs of a teacher's layer for the training items, during training."""
_LEAST_PROBABILITY = 1e-7  # before its logarithm is taken
_TRIES = 4  # narrower networks to estimate; each corrects the count of operations
_SPARE = 0.95  # share of the budget to aim at, because a build also estimates with this machine's times


@dataclass(frozen=True)
class Teacher:
    """The model whose answers the student learns."""

    source: SourceModel
    contract: Contract

    def answers(self, opener: Opener, path: str, chosen: list[int] | None) -> Reference:
        """Answers to a set, cached in the opener's store. chosen: items, None for all."""
        given = self._open(opener, path)
        found = opener.survey(given)
        part = Subset(given, list(range(len(given))) if chosen is None else chosen)
        name = key("teacher", self.source.sha256, to_json(self.contract), survey_digest(found), chosen)
        return cached_reference(
            opener.store, name, self.contract, lambda: reference(self.source, self.contract, part, opener.progress)
        )

    def items(self, opener: Opener, path: str, chosen: list[int]) -> Iterator[NDArray[Any]]:
        """The set's items as the teacher, which has one input, takes them; batch axis of 1."""
        given = self._open(opener, path)
        samples = SourceSamples(given, self.contract, self.source)
        for example in Subset(given, chosen):
            (item,) = samples.adapt(example)
            yield item

    def _open(self, opener: Opener, path: str) -> Dataset:
        """Open a set as the teacher takes it; the student's arrays are renamed or transposed."""
        own, mine = opener.contract.inputs, self.contract.inputs
        if len(own) == len(mine) == 1 and not pictures((*own, *mine)):
            shape, wanted = tuple(own[0].shape), tuple(mine[0].shape)
            moved = len(shape) == 3 and wanted != shape and wanted == (shape[-1], *shape[:-1])
            if moved or wanted == shape:
                return _RearrangedDataset(opener.open(path, labelled=False), mine[0].name, moved)
        return replace(opener, contract=self.contract, source=self.source).open(path, labelled=False)


@dataclass(frozen=True)
class _RearrangedDataset(Dataset):
    """A Dataset whose one input has another name, and its channels first if they were last."""

    dataset: Dataset
    input: str
    channels_first: bool

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def any_order(self) -> bool:
        return self.dataset.any_order

    def __len__(self) -> int:
        return len(self.dataset)

    def pick(self, indexes: Iterable[int]) -> Iterator[Example]:
        return map(self._of, self.dataset.pick(indexes))

    def _of(self, example: Example) -> Example:
        (value,) = example.inputs.values()
        return replace(example, inputs={self.input: np.moveaxis(value, -1, 0) if self.channels_first else value})


@dataclass(frozen=True)
class Bench:
    """What every step works with.

    data: TrainingData of `chosen`, the readable items of the training set.
    options: TrainingOptions, whose key covers all that the run depends on.
    high_ms: high end of the estimate of a `.keras` file's artifact, by recipe.
    rows: measurements before the step.
    sparse: an earlier step made kernels sparse.
    split: how a detector's output was split.
    """

    request: CompressRequest
    subject: BuildSubject
    data: Any
    chosen: list[int]
    options: Any
    folder: Path
    store: StageStore
    limits: Limits
    high_ms: Callable[[Path, str], float | None]
    progress: Progress
    say: Callable[[str], None]
    teacher: Teacher | None = None
    rows: tuple[MeasuredArtifact, ...] = ()
    sparse: bool = False
    split: OutputSplit | None = None


def open_teacher(request: CompressRequest, subject: BuildSubject, store: StageStore) -> Teacher | None:
    """The teacher, None if nothing is distilled.

    Raises SourceError, ContractFileError, and CompressError if its outputs are not the student's.
    """
    if not request.distills:
        return None
    if request.teacher is None:
        return Teacher(subject.source, subject.contract)
    source = open_source(request.teacher, LoadOptions(), store)
    contract = describe(source, find_contract_file(request.teacher))
    own, others = (_outputs(one) for one in (subject.source, source))
    if own != others:
        raise CompressError(
            f"the teacher answers {others}, and the student {own}",
            where=str(request.teacher),
            do="Give a teacher and a student of the same outputs: the same classes in the same order",
        )
    labels = subject.contract.labels, contract.labels
    if all(labels) and tuple(labels[0] or ()) != tuple(labels[1] or ()):
        raise CompressError(
            "the teacher and the student have different labels, or a different order",
            where=str(request.teacher),
            do="Give a teacher of the same classes, or fix the contract file",
        )
    return Teacher(source, contract)


def _outputs(source: SourceModel) -> str:
    return ", ".join("x".join(map(str, one.shape[1:])) or "1" for one in source.outputs)


def carry_out(step: str, path: Path, bench: Bench) -> Any:
    """Returns a TrainedFile. Raises EdgekitError if the step cannot be carried out."""
    return {"distill": _distill, "prune": _prune, "sparse": _sparse, "qat": _qat}[step](path, bench)


def _qat(path: Path, bench: Bench) -> Any:
    args = bench.data, bench.options, bench.folder, bench.progress, bench.say
    return train_for_8_bits(path, *args, store=bench.store, hold_zeros=bench.sparse)


def _sparse(path: Path, bench: Bench) -> Any:
    network = replace(open_network(path), numbers=bench.data.kind != "classes")
    model = without(network, trace(network), np.zeros(0, np.int64), seed=bench.request.seed)
    answers = answers_of(Simulation(network, None), bench.data.x, bench.options.batch, bench.progress)
    share = bench.request.sparsity
    run = FloatRun("sparse", bench.options, bench.folder, bench.progress, bench.say, sparsity=share)
    made = train_float(network, model, bench.data, Teaching(answers), run)
    return replace(made, record=made.record | {"sparsity": share})


def _distill(path: Path, bench: Bench) -> Any:
    request, teacher = bench.request, bench.teacher
    assert teacher is not None
    network = replace(open_network(path), numbers=bench.data.kind != "classes")
    channels = trace(network)
    leaving = np.zeros(0, np.int64)
    if request.width is not None:
        width = request.width

        def chosen() -> list[int]:
            matters = importance(network, channels, bench.data, bench.options)
            return [int(one) for one in choose_by_width(channels, matters, width)]

        name = key("width", bench.options.key)
        leaving = np.array(cached_json(bench.store, name, list[int], chosen, partial(_are_some, channels)), np.int64)
    new = request.width is not None and request.start == "new"
    student = without(network, channels, leaving, seed=request.seed, new=new)
    opener = Opener(bench.subject.contract, bench.store, bench.progress, bench.subject.source)
    given = teacher.answers(opener, request.train, bench.chosen)
    answers = _logits(given if bench.split is None else bench.split.answers(given, teacher.contract), bench.data.kind)
    teaching = Teaching(answers, request.alpha, request.temperature)
    run = FloatRun("distill", bench.options, bench.folder, bench.progress, bench.say)
    if request.features is not None:
        hints, wanted = _hints(teacher, opener, bench, student)
        teaching, run = replace(teaching, hints=wanted), replace(run, adapted=hints.adapted)
    made = train_float(network, student, bench.data, teaching, run)
    settings: dict[str, Any] = {"width": request.width, "start": request.start if request.width is not None else None}
    settings |= {"input": request.input_size, "features": request.features}
    settings |= {"temperature": request.temperature, "alpha": request.alpha, "teacher": teacher.source.sha256}
    return replace(made, record=made.record | settings)


def check_features(request: CompressRequest, network: Any) -> None:
    """Raises CompressError if features names an unknown layer. network: the given model's."""
    if request.features is None:
        return

    own, theirs = layer_hints.parse_layers(request.features)
    layer_hints.check_layer(network, own, f"the student, {request.model}")
    if request.teacher is not None or theirs != own:
        taught = network if request.teacher is None else layer_hints.open_teacher(request.teacher)
        layer_hints.check_layer(taught, theirs, f"the teacher, {request.teacher or request.model}")


def _hints(teacher: Teacher, opener: Opener, bench: Bench, student: Any) -> tuple[Any, NDArray[np.float32]]:
    """(Hints, outputs of the teacher's layer for the items, kept in the folder)"""
    request = bench.request
    own, theirs = layer_hints.parse_layers(request.features or "")
    path = request.teacher or request.model
    hints = layer_hints.Hints(layer_hints.open_teacher(path), theirs, own, path.name)
    items = teacher.items(opener, request.train, bench.chosen)
    return hints, hints.wanted(items, len(bench.chosen), student, bench.folder / HINTS)


def _logits(answers: Reference, kind: str) -> NDArray[np.float32]:
    """The teacher's logits, or the logarithms of its probabilities: float32 [N, outputs]."""
    values = np.stack([np.concatenate([*map(np.ravel, one.values())]) for one in answers.outputs]).astype(np.float64)
    if kind == "classes" and values.min() >= 0:
        least = _LEAST_PROBABILITY
        if values.shape[1] == 1 and values.max() <= 1:
            values = np.clip(values, least, 1 - least)
            values = np.log(values / (1 - values))
        elif np.abs(values.sum(axis=1) - 1).max() < 0.1:  # in 8 bits they rarely add up to 1
            values = np.log(np.maximum(values, least))
    return values.astype(np.float32)


def _are_some(channels: Any, stored: list[int]) -> bool:
    return len({*stored} & {*range(channels.count)}) == len(stored)


def _prune(path: Path, bench: Bench) -> Any:
    network = replace(open_network(path), numbers=bench.data.kind != "classes")
    channels = trace(network)
    name, chosen = key("prune", bench.options.key), partial(_leaving, network, channels, bench)
    leaving = np.array(cached_json(bench.store, name, list[int], chosen, partial(_are_some, channels)), np.int64)
    gone = np.zeros(channels.count, bool)
    gone[leaving] = True
    blocks: list[dict[str, Any]] = []
    for block in channels.blocks:
        count, left = len(block.labels), int((~gone[block.labels]).sum())
        blocks.append({"layers": list(block.layers), "channels": count, "left": left})
        bench.say(f"{', '.join(block.layers)}: {left} of {count} channels stay")
    answers = answers_of(Simulation(network, None), bench.data.x, bench.options.batch, bench.progress)
    run = FloatRun("prune", bench.options, bench.folder, bench.progress, bench.say)
    model = without(network, channels, leaving, seed=bench.request.seed)
    made = train_float(network, model, bench.data, Teaching(answers), run)
    work = Count(network, channels)
    macs = {"before": work(np.zeros_like(gone)).macs, "after": work(gone).macs}
    return replace(made, record=made.record | {"blocks": blocks, "macs": macs})


def _leaving(network: Any, channels: Any, bench: Bench) -> list[int]:
    """Labels of the channels that leave, so that the rest is estimated to keep the budget."""
    request = bench.request
    profile, budget = request.load_profile(), request.budget_ms
    assert profile is not None
    assert budget is not None
    timed = [row for row in bench.limits.packable(bench.rows) if row.high_ms is not None]
    if not timed:
        raise CompressError(
            f"no time on {request.profile} can be estimated for this model",
            where=str(request.model),
            do="Choose a board whose cores have rates, or measure it there: edgekit bench",
        )
    best = min(timed, key=lambda row: row.high_ms or 0.0)
    if best.busy:
        raise busy_error(str(request.model))
    count = Count(network, channels)
    clock = _clock(profile, best.recipe)
    scale = (best.high_ms or 0.0) / clock(count(np.zeros(channels.count, bool)))
    matters = importance(network, channels, bench.data, bench.options)
    most, kept, last = _SPARE * budget, None, None
    for _ in range(_TRIES):
        leaving, reached = choose_by_time(channels, matters, count, partial(_scaled, clock, scale), most)
        if last is not None and np.array_equal(leaving, last):
            break
        file = bench.folder / f"narrow-{request.model.name}"
        without(network, channels, leaving, seed=request.seed).save(file)
        found = bench.high_ms(file, best.recipe)
        file.unlink()
        if found is None:
            break
        bench.say(f"without {len(leaving)} of {channels.count} channels {best.recipe} may take {found:.3g} ms")
        if found <= most and (kept is None or len(leaving) < len(kept)):
            kept = leaving
        if found > most and not reached:
            raise CompressError(
                f"with {STEP} channels in every layer that may lose some, {best.recipe} is estimated to take up to "
                f"{found:.3g} ms, as it is up to {best.high_ms or 0.0:.3g} ms, and {budget:g} ms are wanted",
                where=str(request.model),
                do="Give a larger --budget-ms, another board or a smaller input: channels alone do not do it",
            )
        gone = np.zeros(channels.count, bool)
        gone[leaving], last = True, leaving
        scale = found / clock(count(gone))
    if kept is None:
        raise CompressError(
            f"no channels were found whose leaving is estimated to keep the budget of {budget:g} ms",
            where=str(request.model),
            do="Give a larger --budget-ms",
        )
    return [int(one) for one in kept]


def _scaled(clock: Callable[[Workload], float], scale: float, work: Workload) -> float:
    return scale * clock(work)


def _clock(profile: Profile, recipe: str) -> Callable[[Workload], float]:
    """Milliseconds: the high end of the estimate with the board's runtime."""
    form = find_recipe(recipe).format
    engine = next(one.engine for one in installable(profile) if one.ok and one.format == form)
    return lambda work: estimate(profile, work, engine).high_ms
