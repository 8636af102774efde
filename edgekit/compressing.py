"""Compress: a float model and labelled data in, a float model out that keeps its accuracy in 8 bits.

    report = compress(CompressRequest(Path("net.keras"), "train/", "labelled/", Path("out"), steps=("qat",)))
    report.model                        # out/net.keras: `edgekit build` takes it, and the ranges in it

Rules:
- plain INT8 is measured first, on artifacts, and each step after it in the same way; a step that did not help is not
  kept, and then no model is written;
- without steps the limits decide: where plain INT8 keeps them, nothing is trained;
- no item of the evaluation set is trained on: where the training set holds one, it is refused and the items counted;
- the same command again resumes what was interrupted, and makes nothing twice.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.building.candidates import Clocks, candidates, timer, workstation
from edgekit.building.data import Opener, cached_survey, key, survey_digest
from edgekit.building.journey import check_cache, output_folder, refuse_full_disk
from edgekit.building.making import Maker, RecipeResult, Workers
from edgekit.building.request import BuildRequest
from edgekit.building.subject import BuildSubject, open_subject
from edgekit.packaging import check_tools, write_whole
from edgekit.version import __version__
from edgekit_converters import contract_file, targets
from edgekit_converters.calibration import Dataset, Subset, Survey, source_samples, visiting_order
from edgekit_converters.choose import ChoiceLimits
from edgekit_converters.compress.record import Record, read_record, with_record
from edgekit_converters.errors import CompressError, SourceError
from edgekit_converters.progress import Progress, silent
from edgekit_converters.sources.model import LoadOptions
from edgekit_converters.store import NO_STORE, DiskStore
from edgekit_profiles import installable, open_catalogue
from edgekit_runtime.bundle.codec import to_json

__all__ = ["RECIPES", "STEPS", "CompressReport", "CompressRequest", "Measured", "compress"]

STEPS = ("qat",)
"""Names of the steps, in the order in which they are carried out."""
RECIPES = ("tflite-int8", "onnx-int8-qdq")
"""What a result is measured as: plain INT8 of each format."""
_CALIBRATION = 500
"""Training items, at most, that plain INT8 is calibrated with."""
_SHOWN = 3


@dataclass(frozen=True)
class CompressRequest:
    """train, evaluation: labelled sets as `edgekit build` reads them. profile: a board's, for estimates, "" for none.

    steps: empty where the limits decide. epochs: passes over the training set, at most. max_drop: points of the metric,
    budget_ms: of the board's estimate; None for no limit. cache: as a build's.
    """

    model: Path
    train: str
    evaluation: str
    output: Path
    steps: tuple[str, ...] = ()
    profile: str = ""
    max_drop: float | None = None
    budget_ms: float | None = None
    epochs: float = 10
    batch: int = 64
    rate: float = 1e-3
    seed: int = 0
    contract: Path | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    profile_paths: tuple[Path, ...] = ()
    jobs: int = 1
    cache: Path | None = None


@dataclass(frozen=True)
class Measured:
    """One artifact. step: "plain INT8", or the step that made its model. score, original: the metric of it and of the
    original on the evaluation set. drop: as `Fidelity.loss`; interval: 95 %, None without a metric. int8: share of the
    products in 8 bits, 0..1. ms: the board's estimate, None for none. failed: why there is no artifact."""

    step: str
    recipe: str
    metric: str | None = None
    original: float | None = None
    score: float | None = None
    drop: float | None = None
    interval: tuple[float, float] | None = None
    int8: float = 0.0
    bytes: int = 0
    ms: float | None = None
    failed: str = ""


@dataclass(frozen=True)
class CompressReport:
    """model: what was written, None where nothing was worth it. steps: a record of each step that was carried out.
    verdict: in words. kept: whether the limits are kept by the model, or by plain INT8 where there is none."""

    model: Path | None
    rows: tuple[Measured, ...]
    steps: tuple[dict[str, Any], ...]
    verdict: str
    kept: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "model": None if self.model is None else str(self.model),
            "kept": self.kept,
            "verdict": self.verdict,
            "rows": [asdict(row) for row in self.rows],
            "steps": list(self.steps),
        }


def compress(
    request: CompressRequest, progress: Progress = silent, say: Callable[[str], None] = lambda line: None
) -> CompressReport:
    """Raises EdgekitError for a model, data or limits that cannot be worked with."""
    _check(request)
    with refuse_full_disk(), output_folder(request.output, progress), Workers(request.jobs, progress) as workers:
        return _Journey(_trainable(request, say), workers, say).run()


def _check(request: CompressRequest) -> None:
    """Raises before anything is loaded that takes seconds."""
    check_tools("convert")
    where = str(request.model)
    unknown = [step for step in request.steps if step not in STEPS]
    if unknown:
        raise CompressError(f"there is no step '{unknown[0]}'", do=f"Steps: {', '.join(STEPS)}")
    if request.model.suffix in (".h5", ".tflite"):
        raise CompressError(
            f"a file that ends in {request.model.suffix} cannot be trained",
            where=where,
            do="Give the model that it was made from: Keras 3 (save an .h5 file again with it), PyTorch or ONNX",
        )
    if not request.steps and request.max_drop is None:
        raise CompressError("neither steps nor a limit say what to do", do="Give --max-drop 1%, or --steps qat")
    for name, value, least in (("epochs", request.epochs, 0), ("batch", request.batch, 1), ("rate", request.rate, 0)):
        if not math.isfinite(value) or value < least or value == 0:
            raise CompressError(f"--{name} is {value}", do=f"Give --{name} a number above 0")
    if request.budget_ms is not None and not request.profile:
        raise CompressError("a budget needs a board to estimate milliseconds for", do="Give --profile too")
    if request.profile:
        open_catalogue(request.profile_paths).load(request.profile)
    check_cache(request.cache)
    result = request.output / request.model.name
    if result.exists() and request.model.exists() and result.samefile(request.model):
        raise CompressError("the result would replace the model", where=where, do="Choose another folder with -o")


def _row(stored: dict[str, Any]) -> Measured:
    """As it was before it was JSON."""
    interval = stored["interval"]
    return Measured(**stored | {"interval": None if interval is None else tuple(interval)})


def _trainable(request: CompressRequest, say: Callable[[str], None]) -> CompressRequest:
    """The request with a Keras model: the given one, or one that computes the same as a PyTorch or ONNX model.

    That one is kept beside the result, so that the same command again finds the same file.
    """
    if request.model.suffix == ".keras":
        return request
    from edgekit_converters.compress.twin import keras_twin
    from edgekit_converters.sources import load

    source = load(request.model, request.options)
    folder = request.output / "original"
    twin, name = folder / f"{request.model.stem.replace(':', '-')}.keras", key("twin", source.sha256, __version__)
    made = read_record(twin)
    if made is None or made.key != name:
        model = keras_twin(source)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
            model.save(Path(scratch) / twin.name)
            write_whole(twin, with_record((Path(scratch) / twin.name).read_bytes(), Record(key=name)), "the model")
    say(f"{request.model.name} is trained as {twin}, a Keras model that gives the same answers")
    contract = request.contract or contract_file.find_contract_file(request.model)
    if contract is None and source.stated:
        contract = contract_file.default_file(twin)
        write_whole(contract, source.stated.encode(), "the contract file")
    return replace(request, model=twin, contract=contract, options=LoadOptions())


class _Journey:
    def __init__(self, request: CompressRequest, workers: Workers, say: Callable[[str], None]) -> None:
        self._request, self._workers, self._say = request, workers, say
        self._store = NO_STORE if request.cache is None else DiskStore(request.cache)
        self._limits = ChoiceLimits(max_drop=request.max_drop, budget_ms=request.budget_ms)
        self._result = request.output / request.model.name

    def run(self) -> CompressReport:
        from edgekit_converters.compress.qat import open_network

        request = self._request
        subject = open_subject(
            BuildRequest(
                request.model,
                (),
                request.output,
                evaluation=request.evaluation,
                max_drop=request.max_drop,
                contract=request.contract,
                options=request.options,
                cache=request.cache,
            ),
            self._store,
            self._workers.progress,
        )
        given, found = self._train_set(subject)
        classes = _check_labels(subject, found, request.train)
        open_network(request.model)
        name = self._key(subject, found)
        made = self._made()
        if made is not None and made.key == name:
            self._say(f"{self._result} is what this command makes: nothing to do")
            return self._report(tuple(map(_row, made.steps[-1]["rows"])), made.steps, self._result)
        readable = [index for index in range(len(given)) if index not in found.unreadable]
        chosen = sorted(visiting_order(len(readable), request.seed)[:_CALIBRATION])
        calibration = Subset(given, [readable[index] for index in chosen])
        digest = key("chosen", survey_digest(found), chosen)
        sets = replace(subject.sets, calibration=calibration, calibration_digest=digest)
        subject = replace(subject, sets=sets)
        plain = self._measured("plain INT8", Maker(subject, subject.workspace(self._workers.progress), self._workers))
        for row in plain:
            self._say(line_of(row))
        drops = [row.drop for row in plain if row.drop is not None]
        if not drops:
            what = f"{plain[0].recipe} cannot be made: {plain[0].failed}"
            raise CompressError(what, where=str(request.model), do="Build it: the report says what stands in the way")
        if not request.steps and all(map(self._limits.allow, drops)):
            return self._report(plain, (), None)
        return self._trained(subject, Subset(given, readable), classes, plain, name)

    def _made(self) -> Record | None:
        """The record of an earlier result; None where there is none that can be read."""
        try:
            return read_record(self._result)
        except SourceError:
            self._say(f"{self._result} is damaged: it is made again")
            return None

    def _train_set(self, subject: BuildSubject) -> tuple[Dataset, Survey]:
        """The training set, which holds no evaluation item. Raises CompressError, CalibrationError."""
        request = self._request
        opener = Opener(subject.contract, self._store, self._workers.progress, subject.source)
        given = opener.open(request.train)
        found = cached_survey(self._store, given, subject.contract, self._workers.progress)
        evaluated = set(subject.sets.evaluation_items)
        shared = [origin for one in found.by_digest if one in evaluated for origin in found.by_digest[one]]
        if shared:
            shown = ", ".join(shared[:_SHOWN]) + (", ..." if len(shared) > _SHOWN else "")
            raise CompressError(
                f"{len(shared)} of its {found.items} items are in the evaluation set too: {shown}",
                where=request.train,
                do="Take them out of one of the two: an accuracy on items that were trained on says nothing",
            )
        if found.not_finite:
            raise CompressError(
                f"{len(found.not_finite)} of its items hold NaN or infinity, {found.not_finite[0]} for one",
                where=request.train,
                do="Leave them out",
            )
        if len(found.digests) < 2 * request.batch:
            raise CompressError(
                f"{len(found.digests)} items are fewer than two batches of {request.batch}",
                where=request.train,
                do="Give more labelled items, or a smaller --batch",
            )
        return given, found

    def _key(self, subject: BuildSubject, found: Survey) -> str:
        request = self._request
        settings = [request.steps, request.epochs, request.batch, request.rate, request.seed, request.max_drop]
        sets = (survey_digest(found), subject.sets.evaluation_digest, request.profile, request.budget_ms)
        return key("compress", subject.source.sha256, to_json(subject.contract), *sets, settings)

    def _trained(
        self, subject: BuildSubject, given: Subset, classes: bool, plain: tuple[Measured, ...], name: str
    ) -> CompressReport:
        from edgekit_converters.compress.qat import TrainingOptions, train_for_8_bits

        request = self._request
        steps = max(1, math.ceil(request.epochs * len(given) / request.batch))
        options = TrainingOptions(steps, request.batch, request.rate, seed=request.seed, key=name)
        with _scratch(request.output, request.model.stem) as folder:
            data = self._data(subject, given, classes, folder)
            made = train_for_8_bits(
                request.model, data, options, folder, self._workers.progress, self._say, store=self._store
            )
            candidate = folder / request.model.name
            write_whole(candidate, with_record(made.data, Record((), made.ranges)), "the model")
            rows = self._measured("qat", self._maker_of(candidate, subject))
            for row in rows:
                self._say(line_of(row))
            step = {"step": "qat", "edgekit": __version__, **made.record, "rows": [asdict(r) for r in (*plain, *rows)]}
            if not _helped(plain, rows):
                return self._report((*plain, *rows), (step,), None)
            file = request.contract or contract_file.find_contract_file(request.model)
            if file is not None:
                write_whole(contract_file.default_file(self._result), file.read_bytes(), "the contract file")
            write_whole(self._result, with_record(made.data, Record((step,), made.ranges, name)), "the model")
            return self._report((*plain, *rows), (step,), self._result)

    def _maker_of(self, path: Path, subject: BuildSubject) -> Maker:
        """What makes artifacts of that model, compared with the original's answers; nothing of that is remembered as if
        it were compared with its own."""
        from edgekit_converters.sources.load import open_source

        source = open_source(path, self._request.options, NO_STORE)
        new = replace(subject, source=source, store=NO_STORE, scratch=None)
        return Maker(new, new.workspace(self._workers.progress), self._workers)

    def _data(self, subject: BuildSubject, given: Subset, classes: bool, folder: Path) -> Any:
        """The training set as the model takes it, in a file of the folder: it may be larger than the memory."""
        from edgekit_converters.compress.qat import TrainingData

        samples = source_samples(given, subject.contract, subject.source)
        x: NDArray[np.float32] | None = None
        labels: list[Any] = []
        for index, example in enumerate(given):
            (item,) = samples.adapt(example)
            if x is None:
                file = folder / "items.npy"
                x = np.lib.format.open_memmap(file, "w+", np.float32, (len(given), *item.shape[1:]))
            x[index] = item[0]
            labels.append(example.label)
            self._workers.progress("reading the training set", index + 1, len(given))
        assert x is not None
        if classes:
            return TrainingData(x, np.asarray(labels, np.int64), "classes")
        return TrainingData(x, np.asarray(labels, np.float32).reshape(len(labels), -1), "numbers")

    def _measured(self, step: str, maker: Maker) -> tuple[Measured, ...]:
        results = maker.workers.run([partial(maker.make, targets.recipe(name)) for name in RECIPES])
        times = self._times(maker, results)
        return tuple(_measured(step, one, ms) for one, ms in zip(results, times, strict=True))

    def _times(self, maker: Maker, results: Sequence[RecipeResult]) -> list[float | None]:
        if not self._request.profile:
            return [None] * len(results)
        profile = open_catalogue(self._request.profile_paths).load(self._request.profile)
        clocks = Clocks(timer(maker.subject, self._store, results), workstation(self._store, results))
        seen = candidates(profile, installable(profile), results, clocks)
        return [None if one.estimate is None else one.estimate.mid_ms for one in seen]

    def _keeps(self, row: Measured) -> bool:
        late = self._request.budget_ms is not None and row.ms is not None and row.ms > self._request.budget_ms
        return row.drop is not None and self._limits.allow(row.drop) and not late

    def _report(
        self, rows: tuple[Measured, ...], steps: tuple[dict[str, Any], ...], model: Path | None
    ) -> CompressReport:
        last = [row for row in rows if row.step == rows[-1].step]
        kept = any(self._keeps(row) for row in last)
        if model is None and not steps:
            verdict = "plain INT8 keeps the limits: nothing was trained; build the model as it is"
            if not kept:
                verdict = (
                    "plain INT8 keeps the accuracy, not the budget, and training changes no time: nothing was trained"
                )
        elif model is None:
            verdict = "training did not help, and its result was not kept; see docs/compress.md for when it does not"
            kept = any(self._keeps(row) for row in rows if row.step == rows[0].step)
        else:
            best = min((row for row in last if row.drop is not None), key=lambda row: row.drop or 0.0)
            verdict = f"{best.recipe} of {model} loses {100 * (best.drop or 0.0):.2f} points"
            if self._request.max_drop is not None:
                verdict += f", and the limit of {100 * self._request.max_drop:.4g} is {'' if kept else 'not '}kept"
        return CompressReport(model, rows, steps, verdict, kept)


def _check_labels(subject: BuildSubject, found: Survey, train: str) -> bool:
    """Whether labels are classes; what is no class was refused where it was read.

    Raises CompressError for labels that are missing or all the same."""
    evaluation = subject.sets.evaluation.name
    sets = ((train, found.labels), (evaluation, list(map(str, subject.reference.labels or ()))))
    for where, labels in sets:
        missing = labels.count("") if labels else len(subject.reference)
        if missing:
            raise CompressError(
                f"{missing} of its {len(labels) or missing} items have no label",
                where=where,
                do="Give labels: sub-folders named as the classes, or `y` in an .npz",
            )
    if subject.contract.task != "classification":
        return False
    for where, labels in sets:
        counted = Counter(labels)
        if len(counted) < 2:
            raise CompressError(
                f"all its {len(labels)} items have one label, {next(iter(counted))}",
                where=where,
                do="Give items of every class that the model knows",
            )
    return True


def _measured(step: str, made: RecipeResult, ms: float | None) -> Measured:
    found, artifact = made.fidelity, made.artifact
    if found is None or artifact is None:
        return Measured(step, made.recipe.name, failed=made.failed or "it was not made")
    return Measured(
        step,
        made.recipe.name,
        found.metric,
        found.original,
        found.artifact,
        found.loss,
        found.ci95,
        found.quantized_macs,
        len(artifact.data),
        ms,
    )


def _helped(plain: Sequence[Measured], rows: Sequence[Measured]) -> bool:
    """Whether the best artifact loses less than the best of plain INT8 does."""
    best = [min((row.drop for row in each if row.drop is not None), default=math.inf) for each in (plain, rows)]
    return best[1] < best[0]


def line_of(row: Measured) -> str:
    """A row in words, for the console."""
    if row.failed:
        return f"{row.step}, {row.recipe}: {row.failed}"
    score = "" if row.score is None or row.original is None else f"{row.metric} {row.score:.4f} of {row.original:.4f}, "
    time = "" if row.ms is None else f", {row.ms:.3g} ms estimated"
    drop = "" if row.drop is None else f"loses {100 * row.drop:.2f} points, "
    return (
        f"{row.step}, {row.recipe}: {score}{drop}{100 * row.int8:.0f} % of the products in 8 bits, "
        f"{row.bytes / 1000:.0f} kB{time}"
    )


@contextmanager
def _scratch(output: Path, name: str) -> Iterator[Path]:
    """A folder for the state of a run: it goes when the run is over, and stays where it was interrupted."""
    import shutil

    folder = output / f".{name}.compress"
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
