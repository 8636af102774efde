"""The journey of `edgekit compress`: measure, take a step, measure again, keep what helped.

Rules:
- plain INT8 and the result of each step are measured as artifacts; a step that did not help is dropped, and the next
  one starts from the model before it. If no step helps, no model is written;
- training for accuracy helps if the best artifact loses less; a smaller network if it takes less time (without a
  board, fewer products), and a sparse one if it packs smaller: both only within the limit of accuracy at the end;
- without steps the limits decide: boxes next to scores that 8 bits break call for a split, too slow for pruning (with a
  teacher or a width, distilling), too much lost for training in 8 bits;
- the same command again resumes what was interrupted, and makes nothing twice.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgekit.building.build_journey import output_folder, refuse_full_disk
from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import BuildSubject, subject_of
from edgekit.building.data import Opener, key, survey_digest
from edgekit.building.making import Maker, Workers
from edgekit.compressing.compress_report import (
    FLOATS,
    ORIGINAL,
    PLAIN,
    CompressReport,
    Limits,
    MeasuredArtifact,
    known_rows,
    line_of,
    loss_words,
    read_beside,
    rows_of,
    write_report,
)
from edgekit.compressing.compress_request import STEPS, CompressRequest, check
from edgekit.compressing.measuring import Gauge
from edgekit.compressing.steps import HINTS, Bench, Teacher, carry_out, check_features, open_teacher
from edgekit.compressing.training_data import (
    ITEMS,
    Labels,
    OutputSplit,
    check_labels,
    moved_contract,
    of_size,
    split_model,
    subject_of_size,
    training_data,
    training_set,
)
from edgekit.packaging.writer import write_whole
from edgekit_converters.choose import MAX_DROP
from edgekit_converters.compress.float_training import check_batch
from edgekit_converters.compress.losses import TrainingOptions, box_layout
from edgekit_converters.compress.network import keras_file
from edgekit_converters.compress.qat import open_network
from edgekit_converters.compress.split import can_split
from edgekit_converters.compress.twin import keras_twin
from edgekit_converters.data.dataset import Dataset, Subset
from edgekit_converters.data.describe_contract import default_file, find_contract_file
from edgekit_converters.data.lint import Survey
from edgekit_converters.data.statistics import visiting_order
from edgekit_converters.fidelity.metrics import task_metrics
from edgekit_converters.formats.keras_record import Record, read_record, with_record
from edgekit_converters.recipe.conversion_errors import CompressError, SourceError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_converters.recipe.store import NO_STORE, DiskStore
from edgekit_converters.sources.load import load
from edgekit_runtime.bundle.manifest import RUNTIME_VERSION
from edgekit_runtime.system.strict_json import to_json

_CALIBRATION = 500  # training items, at most, that calibrate plain INT8
_OF_SIZE = "of-size"  # folder for data that are read again at another size


def compress(
    request: CompressRequest, progress: Progress = silent, say: Callable[[str], None] = lambda line: None
) -> CompressReport:
    """Raises EdgekitError for an unusable model, data or limits."""
    check(request)
    read_beside(request)  # raises before anything is trained
    limits = Limits.of(request)
    output = request.output
    with refuse_full_disk(output), output_folder(output, progress), Workers(request.jobs, progress) as workers:
        return _Journey(_trainable(request, say), limits, workers, say).run()


def _trainable(request: CompressRequest, say: Callable[[str], None]) -> CompressRequest:
    """The request with a Keras model: the given one, or its Keras twin.

    The twin stays next to the result, so that the same command again finds the same file.
    """
    if request.model.suffix == ".keras":
        return request

    source = load(request.model, request.options)
    folder = request.output / "original"
    twin, name = folder / f"{request.model.stem.replace(':', '-')}.keras", key("twin", source.sha256, RUNTIME_VERSION)
    made = read_record(twin)
    if made is None or made.key != name:
        model = keras_twin(source)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(twin, with_record(keras_file(model), Record(key=name)), "the model")
    say(f"{request.model.name} is trained as {twin}, a Keras model that gives the same answers")
    contract = request.contract or find_contract_file(request.model)
    if contract is None and source.stated:
        contract = default_file(twin)
        write_whole(contract, source.stated.encode(), "the contract file")
    return replace(request, model=twin, contract=contract, shapes={}, trust_model=False)


@dataclass
class _Chain:
    """The steps so far.

    path: the model that was kept last.
    current: its measurements.
    subject: what its artifacts are compared with.
    splits: whether its output can be split.
    split: how it was split, None if it was not.
    data: TrainingData.
    """

    path: Path
    current: tuple[MeasuredArtifact, ...]
    rows: tuple[MeasuredArtifact, ...]
    subject: BuildSubject
    splits: bool
    data: Any = None
    split: OutputSplit | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    made: Any = None

    @property
    def kept(self) -> list[str]:
        return [step["step"] for step in self.steps if step["kept"]]

    def discard_all(self, why: str) -> None:
        self.made = None
        for step in self.steps:
            if step["kept"]:
                step |= {"kept": False, "why": why}


class _Journey:
    def __init__(self, request: CompressRequest, limits: Limits, workers: Workers, say: Callable[[str], None]) -> None:
        self._request, self._limits, self._workers, self._say = request, limits, workers, say
        self._store = NO_STORE if request.cache is None else DiskStore(request.cache)
        self._gauge = Gauge(request, self._store, workers)
        self._result = request.output / request.model.name

    def run(self) -> CompressReport:
        request = self._request
        built = BuildRequest(
            request.model, (), output=request.output, evaluation=request.evaluation, max_drop=request.max_drop,
            metric=request.metric, contract=request.contract, options=request.options, cache=request.cache,
        )  # fmt: skip
        network = open_network(request.model)
        check_features(request, network)
        subject = subject_of(load(request.model, request.options), built, self._store, self._workers.progress)
        given, found = training_set(request, subject, self._store, self._workers.progress)
        kind = check_labels(subject, found, request.train)
        if "split" in request.steps and not can_split(subject.contract):
            what = "no output holds both boxes and scores: nothing to split"
            raise CompressError(what, where=str(request.model), do="Leave the step split out; see docs/compress.md")
        if request.steps != ("qat",):
            check_batch(network, request.batch, str(request.model))
        if request.input_size is not None:
            of_size(network, subject.contract, request.input_size, str(request.model))
        teacher = open_teacher(request, subject, self._store)
        name = self._key(subject, found, teacher)
        made = self._made()
        if made is not None and made.key == name:
            self._say(f"{self._result} is what this command makes: nothing to do")
            rows = known_rows(request, name) or rows_of((made.steps or ({},))[-1].get("rows"))
            return self._written(self._report(rows, made.steps, self._result), name)
        return self._compress(subject, (given, found, kind), teacher, name)

    def _compress(
        self,
        subject: BuildSubject,
        training: tuple[Dataset, Survey, Labels],
        teacher: Teacher | None,
        name: str,
    ) -> CompressReport:
        """Measure plain INT8, and train if that is not enough. name: the result's key."""
        request, (given, found, kind) = self._request, training
        readable = [index for index in range(len(given)) if index not in found.unreadable]
        chosen = sorted(visiting_order(len(readable), request.seed)[:_CALIBRATION])
        calibration = Subset(given, [readable[index] for index in chosen])
        digest = key("chosen", survey_digest(found), chosen)
        sets = replace(subject.sets, calibration=calibration, calibration_digest=digest)
        subject = replace(subject, sets=sets)
        maker = Maker(subject, subject.workspace(self._workers.progress), self._workers)
        original = self._say_rows(self._gauge.rows(ORIGINAL, maker, FLOATS))
        plain = self._say_rows(self._gauge.rows(PLAIN, maker))
        splits = can_split(subject.contract) and ("split" in request.steps or not request.steps)
        if not self._limits.packable(plain) and not splits:
            failed = next(row for row in plain if row.recipe in self._limits.recipes)
            what = f"{failed.recipe} cannot be made: {failed.failed}"
            raise CompressError(what, where=str(request.model), do="Build it: the report says what prevents it")
        if not request.steps and self._limits.are_kept(plain) and not (splits and self._limits.is_broken(plain)):
            return self._report(self._gauge.timed((*original, *plain)), (), None)
        repaired = self._say_rows(self._gauge.repaired(maker, plain)) if request.repair_s else ()
        with _scratch(request.output, request.model.stem) as folder:
            data = training_data(subject, Subset(given, readable), kind, folder, self._workers.progress)
            store = DiskStore(folder) if request.cache is None else self._store
            batches = max(1, math.ceil(request.epochs * len(readable) / request.batch))
            options = TrainingOptions(batches, request.batch, request.rate, seed=request.seed, key=name)
            bench = Bench(
                request, subject, data, readable, options, folder, store, self._limits,
                partial(self._gauge.high_ms, subject), self._workers.progress, self._say, teacher,
            )  # fmt: skip
            rows = (*original, *plain, *repaired)
            chain = _Chain(request.model, plain, rows, subject, can_split(subject.contract), data)
            self._trained(chain, bench)
            return self._finished(chain, bench)

    def _say_rows(self, rows: tuple[MeasuredArtifact, ...]) -> tuple[MeasuredArtifact, ...]:
        for row in rows:
            self._say(line_of(row))
        return rows

    def _made(self) -> Record | None:
        """The record of an earlier result; None if there is none, or it cannot be read."""
        try:
            return read_record(self._result)
        except SourceError:
            self._say(f"{self._result} is damaged and is made again")
            return None

    def _key(self, subject: BuildSubject, found: Survey, teacher: Teacher | None) -> str:
        request = self._request
        settings = [request.steps, request.epochs, request.batch, request.rate, request.seed, request.max_drop]
        settings += [request.width, request.start, request.temperature, request.alpha, request.sparsity]
        settings += [request.metric, request.input_size, request.features]
        settings += [] if teacher is None else [teacher.source.sha256, to_json(teacher.contract)]
        sets = (survey_digest(found), subject.sets.evaluation_digest, request.profile, request.budget_ms)
        return key("compress", subject.source.sha256, to_json(subject.contract), *sets, settings)

    def _trained(self, chain: _Chain, bench: Bench) -> None:
        """Carry out one step after the other."""
        while (step := self._next(chain)) is not None:
            options = replace(bench.options, key=key(bench.options.key, step, chain.kept))
            if step == "prune" and any(map(self._limits.is_on_time, self._limits.packable(chain.current))):
                chain.steps.append({"step": step, "kept": False, "why": "the budget was kept before it", "rows": []})
                continue
            self._say(f"step {step}:")
            candidate = bench.folder / step / self._request.model.name
            candidate.parent.mkdir(exist_ok=True)
            subject, split, data = chain.subject, chain.split, chain.data
            if step == "split":
                made, split = split_model(chain.path, subject)
            else:
                path, work = chain.path, self._bench_of(chain, replace(bench, options=options))
                if step == "distill" and self._request.input_size is not None:
                    path, work = self._of_size(chain, work, self._request.input_size)
                made, subject, data = carry_out(step, path, work), work.subject, work.data
            write_whole(candidate, with_record(made.data, Record((), made.ranges)), "the model")
            if step == "split" and split is not None:
                text = split.contract_text(self._contract_file())
                write_whole(default_file(candidate), text.encode(), "the contract file")
                subject = split.subject(candidate, subject, self._request.metric)
            maker = self._gauge.maker_of(candidate, subject)
            rows = self._gauge.rows(step, maker)
            if step == "sparse":  # only float kernels skip zeros
                rows += self._gauge.in_float(step, maker)
            rows = self._say_rows(rows)
            why = self._why_not(step, chain.current, rows)
            chain.rows += rows
            record = {"step": step, "kept": not why, "why": why, "edgekit": RUNTIME_VERSION, **made.record}
            record["gain"] = self._gain(chain.current, rows)
            chain.steps.append(record | {"rows": [asdict(row) for row in chain.rows]})
            if not why:
                chain.path, chain.current, chain.made = candidate, rows, made
                chain.subject, chain.split, chain.data = subject, split, data

    def _bench_of(self, chain: _Chain, bench: Bench) -> Bench:
        """The bench for a step that starts from the model that was kept last."""
        subject, data = chain.subject, chain.data
        if data.kind == "boxes":
            data = replace(data, layout=box_layout(subject.contract))
        times = partial(self._gauge.high_ms, subject)
        made: dict[str, Any] = {"rows": chain.current, "split": chain.split, "sparse": "sparse" in chain.kept}
        return replace(bench, subject=subject, data=data, high_ms=times, **made)

    def _of_size(self, chain: _Chain, bench: Bench, size: tuple[int, int]) -> tuple[Path, Bench]:
        """(the last kept model, untrained, for pictures of that size; the bench for it)"""
        request, path = self._request, bench.folder / _OF_SIZE / self._request.model.name
        path.parent.mkdir(exist_ok=True)
        of_size(open_network(chain.path), chain.subject.contract, size, str(request.model)).save(path)
        default_file(path).write_text(self._contract_text(chain), encoding="utf-8")
        subject = subject_of_size(path, chain.subject, request.train, request.evaluation, bench.progress)
        opener = Opener(subject.contract, NO_STORE, bench.progress, subject.source)
        given = Subset(opener.open(request.train), bench.chosen)
        data = training_data(subject, given, bench.data.kind, path.parent, bench.progress)
        return path, replace(bench, subject=subject, data=data)

    def _contract_file(self) -> Path:
        """The contract file, which a model of pictures or boxes has."""
        file = self._request.contract or find_contract_file(self._request.model)
        assert file is not None
        return file

    def _contract_text(self, chain: _Chain) -> str:
        """Text of the contract file for the model that was kept last."""
        file = self._contract_file()
        return chain.split.contract_text(file) if chain.split else moved_contract(file, chain.subject.contract.labels)

    def _next(self, chain: _Chain) -> str | None:
        """The step to carry out now, None at the end."""
        request, done = self._request, {step["step"] for step in chain.steps}
        if request.steps:
            return next((step for step in STEPS if step in request.steps and step not in done), None)
        if "split" not in done and chain.splits and self._limits.is_broken(chain.current):
            return "split"
        if self._limits.are_kept(chain.current):
            return None
        smaller = "distill" if request.distills else "prune"
        on_time = any(map(self._limits.is_on_time, self._limits.packable(chain.current)))
        step = "qat" if on_time else smaller
        return None if step in done else step

    def _why_not(self, step: str, before: Sequence[MeasuredArtifact], after: Sequence[MeasuredArtifact]) -> str:
        """Why a step did not help, "" if it did."""
        limits = self._limits
        if not limits.packable(after):
            return "no artifact can be made of its result"
        if step == "split":
            was = {row.recipe: math.inf if row.drop is None else row.drop for row in before}
            gains = any(row.drop is not None and row.drop < was[row.recipe] for row in limits.packable(after))
            return "" if gains else "no format loses less than before"
        if step == "prune" or (step == "distill" and self._request.narrows):
            return "" if limits.is_faster(before, after) else "it takes no less time"
        if step == "sparse":
            return "" if limits.packed(after) < limits.packed(before) else "it takes no fewer bytes when compressed"
        return "" if limits.drop(after) < limits.drop(before) else "it loses no less than before"

    def _gain(self, before: Sequence[MeasuredArtifact], after: Sequence[MeasuredArtifact]) -> dict[str, Any] | None:
        """The best artifact's gain over the best before it; None without either, or a metric."""
        first, second = self._limits.best(before), self._limits.best(after)
        found = None if first is None or second is None else self._gauge.gain(first, second)
        return None if found is None else found.as_json()

    def _finished(self, chain: _Chain, bench: Bench) -> CompressReport:
        """Write the last kept model; a narrower one only if it keeps the limit of accuracy."""
        most = MAX_DROP if self._request.max_drop is None else self._request.max_drop
        lost = self._limits.drop(chain.current)
        shrunk = {"prune", "sparse"} & set(chain.kept) or ("distill" in chain.kept and self._request.narrows)
        if shrunk and not replace(self._limits.accuracy, max_drop=most).allow(lost):
            words = loss_words(lost, error=any(row.error for row in chain.current))
            chain.discard_all(f"in the end it {words}, more than the {100 * most:.4g} allowed")
        rows = (*chain.rows, *self._teacher_row(bench))
        timed = self._gauge.timed(rows)
        if chain.made is None:
            return self._written(self._report(timed, tuple(chain.steps), None), bench.options.key)
        request = self._request
        file = request.contract or find_contract_file(request.model)
        if file is not None:
            write_whole(default_file(self._result), self._contract_text(chain).encode(), "the contract file")
        joined = None if chain.split is None else chain.split.joined
        chain.steps[-1]["rows"] = [asdict(row) for row in rows]
        record = Record(tuple(chain.steps), chain.made.ranges, bench.options.key, joined)
        write_whole(self._result, with_record(chain.made.data, record), "the model")
        return self._written(self._report(timed, tuple(chain.steps), self._result), bench.options.key)

    def _written(self, report: CompressReport, name: str) -> CompressReport:
        """The report, after its JSON and its page are written."""
        report, failed = write_report(report, self._request, name)
        if failed:
            self._say(f"warning: no page was written: {failed}")
        return report

    def _teacher_row(self, bench: Bench) -> tuple[MeasuredArtifact, ...]:
        """The score of a given teacher on the evaluation set."""
        subject, teacher = bench.subject, bench.teacher
        labels = subject.reference.labels
        metrics = task_metrics(subject.contract, labels, subject.metric)
        if teacher is None or self._request.teacher is None or not metrics or labels is None:
            return ()
        opener = Opener(subject.contract, self._store, self._workers.progress, subject.source)
        names = [one.name for one in subject.contract.outputs]
        answers = teacher.answers(opener, self._request.evaluation, None).outputs
        renamed = [dict(zip(names, answer.values(), strict=True)) for answer in answers]
        if len(renamed) != len(labels):
            return ()
        (metric, *_) = metrics
        own, others = (
            [metric.keep(answer, label) for answer, label in zip(each, labels, strict=True)]
            for each in (subject.reference.outputs, renamed)
        )
        score = metric.compare(own, others)
        row = MeasuredArtifact("teacher", "as it is", score.metric, score.original, score.artifact)
        return self._say_rows((row,))

    def _report(
        self, rows: tuple[MeasuredArtifact, ...], steps: tuple[dict[str, Any], ...], model: Path | None
    ) -> CompressReport:
        limits, kept_steps = self._limits, [step["step"] for step in steps if step["kept"]]
        last = [row for row in rows if row.step == (kept_steps[-1] if kept_steps else PLAIN)]
        kept = limits.are_kept(last)
        unsure = limits.accuracy.budget_ms is not None and any(row.busy for row in last)
        again = "try again when it is idle" if model is None else "build it when it is idle"
        busy = f"; this machine was busy, so its times say little of the budget: {again}" * unsure
        if not steps:
            verdict = f"plain INT8 keeps the limits: nothing was trained; build the model as it is{busy}"
            return CompressReport(None, rows, steps, verdict, kept)
        if model is None:
            verdict = "; ".join(f"{step['step']} was not kept: {step['why']}" for step in steps)
            verdict += f"; no model was written; docs/compress.md says when a step does not help{busy}"
            return CompressReport(None, rows, steps, verdict, kept)
        best = min(
            limits.packable(last), key=lambda row: (not limits.is_on_time(row), row.drop or 0.0, row.high_ms or 0.0)
        )
        verdict = f"{best.recipe} of {model} {loss_words(best.drop or 0.0, error=best.error)}"
        if best.high_ms is not None and not best.busy:
            verdict += f" and is estimated to take up to {best.high_ms:.3g} ms"
        accuracy = limits.accuracy
        if accuracy.max_drop is not None or accuracy.budget_ms is not None:
            verdict += f"; the limits are {'' if kept else 'not '}kept{busy}"
        for step in steps:
            gain = step.get("gain")
            if not step["kept"]:
                verdict += f"; {step['step']} was not kept: {step['why']}"
            elif gain is not None and gain["noise"]:
                verdict += f"; what {step['step']} changed is {gain['words']}"
        return CompressReport(model, rows, steps, verdict, kept)


@contextmanager
def _scratch(output: Path, name: str) -> Iterator[Path]:
    """A folder for a run's state. It stays only if training was interrupted or failed.

    The copy of the training set, which may be large, is always removed and made again."""
    folder = output / f".{name}.compress"
    folder.mkdir(exist_ok=True)
    finished = False
    try:
        yield folder
        finished = True
    finally:
        for large in (ITEMS, HINTS):
            (folder / large).unlink(missing_ok=True)
        shutil.rmtree(folder / _OF_SIZE, ignore_errors=True)
        if finished or not any(folder.glob("*.npz")):
            shutil.rmtree(folder, ignore_errors=True)
