"""Compare one artifact with the original's answers, run by the engine that boards run.

fidelity = compare(answers, artifact, Evaluation(contract, dataset))
measure_ms(artifact, contract, example, threads=4).p50_ms   # the engine alone, on this machine
size_breakdown("tflite", artifact.data).int8_weights        # bytes in 8-bit weights, in other constants, ...
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.data.dataset import Dataset, Example, Subset, digest
from edgekit_converters.data.output_kinds import kinds
from edgekit_converters.fidelity.detection import DecisionCount
from edgekit_converters.fidelity.intervals import DriftMeter, decibels
from edgekit_converters.fidelity.metrics import Metric, task_metrics
from edgekit_converters.fidelity.reference import ExampleIntake, Reference
from edgekit_converters.fidelity.result import Fidelity, Score, SizeBreakdown, StepSpan
from edgekit_converters.formats import onnx_file
from edgekit_converters.formats import tflite_file as tflite
from edgekit_converters.formats.workload import uncounted_operations
from edgekit_converters.recipe.artifact import Artifact
from edgekit_converters.recipe.conversion_errors import CalibrationError, ConversionError
from edgekit_converters.recipe.progress import Progress, silent, tick
from edgekit_runtime.contract.adapt import Finisher, top_score
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines.registry import Engine, load_engine
from edgekit_runtime.loading.replay import Stepper
from edgekit_runtime.modelfile.ncnn_structure import read_network
from edgekit_runtime.telemetry.histogram import BINS, count_score

SPANS = 8

Outputs = Mapping[str, NDArray[Any]]


@dataclass
class _Step:
    frames: int = 0
    signal: float = 0.0
    noise: float = 0.0
    worst: float = 0.0


class OverTime:
    """Drift by step of a sequence, in a few numbers a step; a non-finite answer counts as zeros.

    sequences: how many began.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.sequences = 0
        self._names = names
        self._steps: list[_Step] = []

    def add(self, step: int, original: Outputs, answer: Outputs) -> None:
        """One frame. step: 0 begins a sequence."""
        self.sequences += step == 0
        while len(self._steps) <= step:
            self._steps.append(_Step())
        at = self._steps[step]
        at.frames += 1
        for name in self._names:
            x, y = (np.asarray(side[name], np.float64).reshape(-1) for side in (original, answer))
            apart = np.abs(np.where(np.isfinite(y), x - y, x))
            at.signal, at.noise = at.signal + float(x @ x), at.noise + float(apart @ apart)
            at.worst = max(at.worst, float(apart.max(initial=0)))

    def spans(self) -> tuple[StepSpan, ...]:
        """The steps of the longest sequence, cut into eight."""
        longest = len(self._steps)
        edges = np.unique(np.linspace(0, longest, min(SPANS, longest) + 1).astype(int)).tolist()
        spans = []
        for first, end in itertools.pairwise(edges):
            steps = self._steps[first:end]
            db = decibels(sum(step.signal for step in steps), sum(step.noise for step in steps))
            worst = max(step.worst for step in steps)
            spans.append(StepSpan(first, end - 1, sum(step.frames for step in steps), db, worst))
        return tuple(spans)


_SMALL = {"tflite": {"INT8", "UINT8", "INT4", "UINT4", "INT2", "BOOL"}, "onnx": {"INT8", "UINT8", "INT4", "UINT4"}}


def size_breakdown(format: str, data: bytes) -> SizeBreakdown | None:  # noqa: A002
    """None for bytes that are not a model of that format."""
    try:
        if format == "tflite":  # every buffer that a tensor reads
            read_by = {tensor.buffer: tensor for graph in tflite.read(data).subgraphs for tensor in graph.tensors}
            sizes = [(tensor.dtype, tensor.nbytes) for tensor in read_by.values()]
        elif format == "ncnn":
            sizes = [("FLOAT", len(read_network(data).weights))]
        else:
            import onnx

            kind = onnx.TensorProto.DataType.Name
            sizes = [(kind(t.data_type), t.ByteSize()) for t in onnx_file.tensors(onnx_file.parse(data))]
    except Exception:  # noqa: BLE001  a damaged file raises whatever its parser does
        return None
    small = sum(size for name, size in sizes if name in _SMALL.get(format, ()))
    other = sum(size for name, size in sizes if name not in _SMALL.get(format, ()))
    return SizeBreakdown(small, other, max(0, len(data) - small - other))


def growth(format: str, before: bytes, after: bytes) -> str:  # noqa: A002
    """How much larger a file is than its float file, and which part grew; "" below 5 % or 10 kB."""
    if len(after) <= max(1.05 * len(before), len(before) + 10_000):
        return ""
    old, new = size_breakdown(format, before), size_breakdown(format, after)
    text = f"{len(after) / len(before):.1f}x the size of the float file ({_kb(len(before))} to {_kb(len(after))})"
    if old is None or new is None:
        return text
    parts = {
        "operators, names and scales": new.graph - old.graph,
        "numbers wider than 8 bits": new.other_weights - old.other_weights,
        "8-bit numbers": new.int8_weights - old.int8_weights,
    }
    part = max(parts, key=lambda name: parts[name])
    return f"{text}: {part} take {_kb(parts[part])} more"


def _kb(size: int) -> str:
    return f"{size / 1000:.0f} kB"


@dataclass(frozen=True)
class Evaluation:
    """What every artifact of a model is measured on, and how.

    metric: the deciding one, None for the task's own.
    engine: None for what a board would pick.
    held_out: see `Fidelity`.
    """

    contract: Contract
    dataset: Dataset
    metric: Metric | None = None
    engine: str | None = None
    threads: int = 1
    held_out: bool = False


def compare(
    reference: Reference,
    artifact: Artifact,
    evaluation: Evaluation,
    progress: Progress = silent,
    seen: Callable[[int, Mapping[str, NDArray[Any]]], None] | None = None,
) -> Fidelity:
    """Run the artifact over the set of `reference`, item by item as a board would.

    A batch has one item, or as many as the file fixes; a stateful artifact carries its state along each sequence.
    seen: receives every item's index and answer.

    Raises EngineError if the engine refuses the artifact, ConversionError if it answers another shape, CalibrationError
    if the set is not the one that the reference saw, MetricError if the metric does not fit the labels.
    """
    tally = _ArtifactTally(reference, evaluation)

    def add(index: int, step: int, answer: Outputs) -> None:
        tally.add(index, step, answer)
        if seen is not None:
            seen(index, answer)

    engine = _run(reference, artifact, evaluation, add, progress)
    return tally.fidelity(artifact, engine)


def compare_parts(
    reference: Reference,
    artifact: Artifact,
    evaluation: Evaluation,
    parts: Sequence[Sequence[int]],
    progress: Progress = silent,
) -> tuple[Fidelity, ...]:
    """`compare` on parts of the set, which may overlap, in one pass. Without sequences."""
    tallies = [_ArtifactTally(reference.only(sorted(part)), evaluation) for part in parts]
    places = [{index: place for place, index in enumerate(sorted(part))} for part in parts]

    def add(index: int, step: int, answer: Outputs) -> None:
        for tally, at in zip(tallies, places, strict=True):
            if index in at:
                tally.add(at[index], step, answer)

    engine = _run(reference, artifact, evaluation, add, progress)
    return tuple(tally.fidelity(artifact, engine) for tally in tallies)


def compare_crossed(
    reference: Reference,
    artifact: Artifact,
    evaluation: Evaluation,
    judged: Sequence[tuple[Artifact, Sequence[int]]],
    progress: Progress = silent,
) -> Fidelity:
    """Compare by cross-fitting: each item is answered by an artifact that it did not choose.

    judged: which artifact answers which items; each item is in one. Without sequences.
    """
    order = [index for _, part in judged for index in part]
    tally, engine, first = _ArtifactTally(reference.only(order), evaluation), "", 0
    for other, part in judged:

        def add(index: int, step: int, answer: Outputs, first: int = first) -> None:
            tally.add(first + index, step, answer)

        some = replace(evaluation, dataset=Subset(evaluation.dataset, part))
        engine = _run(reference.only(part), other, some, add, progress)
        first += len(part)
    return tally.fidelity(artifact, engine)


def _run(
    reference: Reference,
    artifact: Artifact,
    evaluation: Evaluation,
    add: Callable[[int, int, Outputs], None],
    progress: Progress,
) -> str:
    """Give `add` each item's index, step and answer. Returns the engine's name and version."""
    recipe = artifact.recipe
    with load_engine(recipe.format, artifact.data, threads=evaluation.threads, engine=evaluation.engine) as loaded:
        examples = _checked(reference, evaluation.dataset)
        for index, (step, answer) in enumerate(_answers(loaded, artifact, evaluation.contract, examples)):
            for output, value in reference.outputs[index].items():
                if answer[output].size != value.size:
                    shapes = f"{list(answer[output].shape)} for '{output}'", f"{list(value.shape)}"
                    raise ConversionError(
                        f"answers {shapes[0]} where the original answers {shapes[1]}", where=recipe.name
                    )
            add(index, step or 0, answer)
            progress(f"evaluating {recipe.name}", index + 1, len(reference))
            tick()
        return f"{loaded.info.name} {loaded.info.version}"


class _ArtifactTally:
    """What `compare` keeps of the artifact's answers, item by item."""

    def __init__(self, reference: Reference, evaluation: Evaluation) -> None:
        contract = evaluation.contract.of_caller
        names = [output.name for output in contract.outputs]
        self._reference, self._held_out = reference, evaluation.held_out
        self._drift = DriftMeter(names, kinds(contract, reference.outputs))
        self._metrics = task_metrics(contract, reference.labels, evaluation.metric)
        self._kept: list[list[Any]] = [[] for _ in self._metrics]
        self._decisions = DecisionCount(contract) if contract.detection is not None else None
        self._over_time = OverTime(names) if contract.state != "none" else None
        self._contract, self._top_scores = contract, [0] * BINS
        self._vectors: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def add(self, index: int, step: int, answer: Outputs) -> None:
        original = self._reference.outputs[index]
        if self._over_time is not None:
            self._over_time.add(step, original, answer)
        finite = self._drift.add(original, answer)
        if finite:
            count_score(self._top_scores, top_score(answer, self._contract))
            if self._contract.embedding is not None and self._contract.state == "none":
                output = self._contract.embedding.output
                self._vectors.append((original[output].ravel(), answer[output].ravel()))
        if self._decisions is not None:
            self._decisions.add(original, answer if finite else None)
        for metric, items in zip(self._metrics, self._kept, strict=True):
            items.append(metric.keep(answer if finite else None, _label(self._reference, index)))

    def fidelity(self, artifact: Artifact, engine: str) -> Fidelity:
        drift, scores, reference = self._drift, list[Score](), self._reference
        for metric, items in zip(self._metrics, self._kept, strict=True):
            originals = [metric.keep(answer, _label(reference, at)) for at, answer in enumerate(reference.outputs)]
            scores.append(metric.compare(originals, items))
        keys = ("metric", "original", "artifact", "drop", "ci95")
        deciding: dict[str, Any] = {key: getattr(scores[0], key) if scores else None for key in keys}
        outputs, left = drift.outputs(), tuple[str, ...]()
        with contextlib.suppress(ConversionError):  # of a file that cannot be read no share is known
            left = uncounted_operations(artifact.recipe.format, artifact.data)
        first = next((one.agreement for one in outputs if one.agreement is not None), None)
        agreement = first.value if first is not None and self._reference.best is not None else None
        decisions = self._decisions.found() if self._decisions is not None else None
        return Fidelity(
            items=drift.items,
            **deciding,
            agreement=agreement if decisions is None else decisions.agreement,
            cosine=drift.cosine,
            sqnr_db=drift.sqnr_db,
            quantized_macs=artifact.quantized_macs,
            quantized_weights=artifact.quantized_weights,
            engine=engine,
            held_out=self._held_out,
            not_finite=drift.not_finite,
            outputs=outputs,
            scores=tuple(scores),
            size=size_breakdown(artifact.recipe.format, artifact.data),
            sequences=self._over_time.sequences if self._over_time is not None else None,
            over_time=self._over_time.spans() if self._over_time is not None else (),
            uncounted=left,
            decisions=decisions,
            top_scores=tuple(self._top_scores) if any(self._top_scores) else None,
            rank_agreement=rank_agreement(*zip(*self._vectors, strict=True)) if len(self._vectors) > 2 else None,
        )


_RANKED = 200


def rank_agreement(original: Sequence[NDArray[Any]], artifact: Sequence[NDArray[Any]]) -> float:
    """Share of triples, an item and two others, that both sets order alike by cosine.

    original, artifact: [N] vectors [D], N >= 3. Of more than _RANKED items as many, spread over them, are compared.
    """
    places = np.linspace(0, len(original) - 1, min(len(original), _RANKED)).astype(int)
    nearness = []
    for vectors in (original, artifact):
        rows = np.stack([vectors[place] for place in places]).astype(np.float64)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        nearness.append(rows @ rows.T)
    same = total = 0
    for anchor in range(len(places)):
        first, second = (np.delete(near[anchor], anchor) for near in nearness)
        alike = np.sign(first[:, None] - first) == np.sign(second[:, None] - second)
        total += alike.size - len(first)
        same += int(alike.sum()) - len(first)
    return same / total


def _label(reference: Reference, index: int) -> Any:
    assert reference.labels is not None
    return reference.labels[index]


def _answers(
    engine: Engine, artifact: Artifact, contract: Contract, examples: Iterator[Example]
) -> Iterator[tuple[int | None, Mapping[str, NDArray[Any]]]]:
    """(step, answer) of each item."""
    if contract.state != "none":
        stepper = Stepper(contract, artifact.inputs, artifact.outputs, engine)
        for example in examples:
            if not example.step:
                stepper.reset()
            yield example.step, stepper.step(example.inputs)
        return
    intake, finish = ExampleIntake(contract, artifact.inputs, 1), Finisher(contract, artifact.outputs)
    for group, tensors in intake.batches(examples):
        raw = engine.run(tensors)
        for row in range(len(group)):
            yield None, finish(raw, row)


def _checked(reference: Reference, dataset: Dataset) -> Iterator[Example]:
    """The set's items, each proved to be the one that the original answered."""
    if len(dataset) != len(reference):
        raise CalibrationError(
            f"has {len(dataset)} items and the original answered {len(reference)}",
            where=dataset.name,
            do="Evaluate both on the same set",
        )
    for index, example in enumerate(dataset):
        if digest(example) != reference.digests[index]:
            raise CalibrationError(
                "is not the item that the original answered",
                where=example.origin,
                do="Give the same items in the same order at every pass: fix the seed, sort the files",
            )
        yield example


_WARM_UP = 3
_LEAST_RUNS, _ENOUGH_RUNS, _ENOUGH_S, _BOUND_S = 3, 20, 0.25, 1.0


class EngineTimes(NamedTuple):
    """own_ms: the thread's own processor time a run."""

    p50_ms: float
    p95_ms: float
    least_ms: float
    own_ms: float


def measure_ms(
    artifact: Artifact,
    contract: Contract,
    example: Example,
    clock: Callable[[], float] = time.perf_counter,
) -> EngineTimes:
    """Time the engine's run, copying in and out included, after warming up.

    A file with a fixed batch is timed for the whole batch. Raises EngineError if the engine refuses the artifact.
    """
    tensors = ExampleIntake(contract, artifact.inputs, 1).adapt(example)
    with load_engine(artifact.recipe.format, artifact.data, threads=1) as engine:
        before = time.thread_time()
        runs = time_runs(lambda: engine.run(tensors), clock)
        own = (time.thread_time() - before) / (len(runs) + _WARM_UP)
    p50, p95 = (float(np.percentile(runs, at)) for at in (50, 95))
    return EngineTimes(p50 * 1e3, p95 * 1e3, min(runs) * 1e3, own * 1e3)


def time_runs(run: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """Seconds of each of 20 runs or more in 0.25 s or more; of 3 or more after a second."""
    for _ in range(_WARM_UP):
        run()
    seconds: list[float] = []
    start = clock()
    while True:
        before = clock()
        run()
        after = clock()
        seconds.append(after - before)
        spent = after - start
        enough = len(seconds) >= _ENOUGH_RUNS and spent >= _ENOUGH_S
        if enough or (spent >= _BOUND_S and len(seconds) >= _LEAST_RUNS):
            return seconds
