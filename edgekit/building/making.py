"""Make and measure every recipe once, and find the items whose answers changed.

    with Workers(2, progress) as workers:
        found = workers.run([partial(make, recipe, workers.progress) for recipe in recipes])
    watcher = Watcher(reference, contract)
    compare(reference, artifact, evaluation, progress, watcher)
    shown(watcher.differing, dataset, contract)       # [{"item", "image", "original", "artifact", "truth"}]

Rules:
- a recipe that fails is a reason, never the end of the build; where a model cannot be all int8, the form with layers in
  float is made in its place;
- what an earlier build made of the same model, data and tools is loaded from the cache;
- workers are threads, since engines and converters release Python while they compute; results keep the order of the
  tasks, the first error ends the rest, and the caller's thread only waits, so that Ctrl-C is answered at once;
- an artifact that fails on silence or another odd input, which the float file answers, is no candidate;
- a classifier's differing items are those whose best class differs, those first that the original was surest of;
  pictures are small, and come from the evaluation set's own pixels.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit.building.build_request import Board
from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import key
from edgekit_converters.data.dataset import Dataset
from edgekit_converters.fidelity.compare import compare as compare_outputs
from edgekit_converters.fidelity.compare import compare_crossed, compare_parts
from edgekit_converters.fidelity.odd import ODD_SAMPLES, odd_inputs
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.repair_bench import CheckedBench, WorkspaceBench, first_plan
from edgekit_converters.fidelity.result import Fidelity
from edgekit_converters.recipe.artifact import STATIC, Artifact, QuantizationPlan, Recipe
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.conversion_errors import (
    CalibrationError,
    ConversionError,
    MissingToolsError,
    SourceError,
    one_line,
)
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.recipe.store import cached_json, get_json, put_json
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.contract.adapt import top
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.system.errors import EdgekitError, print_traceback
from edgekit_runtime.system.strict_json import to_json

MOST = 24
_THUMBNAIL = 96  # pixels a side, at most


class Watcher:
    """Called with each item's index and the artifact's answer.
    `differing` is what a report keeps of them."""

    def __init__(self, reference: Reference, contract: Contract) -> None:
        self._reference, self._contract = reference, contract
        self._found: list[dict[str, Any]] = []

    def __call__(self, index: int, answer: Mapping[str, NDArray[Any]]) -> None:
        if self._reference.best is None:
            return
        name = self._contract.outputs[0].name
        original, artifact = self._reference.outputs[index][name].reshape(-1), answer[name].reshape(-1)
        if original.size != artifact.size or int(np.argmax(artifact)) == self._reference.best[index]:
            return
        labels = self._reference.labels
        truth = labels[index] if labels is not None else None
        true_class = None
        if truth is not None and not isinstance(truth, np.ndarray):
            names, number = self._contract.labels or (), int(truth)
            true_class = names[number] if 0 <= number < len(names) else str(number)
        self._found.append(
            {
                "index": index,
                "original": self._best(original),
                "artifact": self._best(artifact),
                "truth": true_class,
            }
        )

    @property
    def differing(self) -> list[dict[str, Any]]:
        """At most `MOST`."""
        return sorted(self._found, key=lambda item: (-item["original"]["score"], item["index"]))[:MOST]

    def _best(self, values: NDArray[Any]) -> dict[str, Any]:
        """The best class as `Answer.top` gives it, so that logits become probabilities."""
        best = top({self._contract.outputs[0].name: values}, self._contract, 1)[0]
        return {
            "index": best.index,
            "label": best.label if self._contract.labels else None,
            "score": best.score if np.isfinite(best.score) else 0.0,
        }


def shown(differing: Sequence[Mapping[str, Any]], dataset: Dataset, contract: Contract) -> list[dict[str, Any]]:
    """The differing items for the report.
    `item` says where it came from, `image` is a data URI of a small PNG, or None."""
    by_index = {int(entry["index"]): entry for entry in differing}
    entries = []
    with contextlib.suppress(CalibrationError):  # a set that has changed since: the report does without
        for index, example in zip(sorted(by_index), dataset.pick(sorted(by_index)), strict=True):
            entry = by_index[index]
            pixels = next(iter(example.inputs.values()))
            entries.append(
                {
                    "item": example.origin,
                    "image": _thumbnail(pixels) if pictures(contract.inputs[:1]) else None,
                    "original": entry["original"],
                    "artifact": entry["artifact"],
                    "truth": entry.get("truth"),
                }
            )
    order = {int(entry["index"]): place for place, entry in enumerate(differing)}
    places = [order[index] for index in sorted(by_index)]
    return [entry for _, entry in sorted(zip(places, entries, strict=False), key=lambda pair: pair[0])]


def _thumbnail(pixels: NDArray[Any]) -> str | None:
    """None where Pillow is not installed, or these are no pixels of a picture."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4):
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


ALIKE = 0.99
"""The least likeness of a float32 artifact: it only rounds otherwise, so anything below is another network."""


@dataclass(frozen=True)
class RecipeResult:
    """One recipe's artifact and its fidelity, or the reason for which it failed.

    advice: what helps against the failure.
    missing_extra: the recipe's tools are not installed here.
    variant_of: the recipe that it replaces on boards whose runtime refuses that one; "" for the rest.
    differing: items whose best class differs from the original's, as `Watcher` records them.
    repair: the search for a repair of the recipe it was made from, or of itself.
    judge: the subject that it was compared on, None for the whole evaluation set.
    file: where it came from, of a file that another tool made; None for what edgekit made.
    """

    recipe: Recipe
    artifact: Artifact | None = None
    fidelity: Fidelity | None = None
    failed: str | None = None
    differing: tuple[dict[str, Any], ...] = ()
    repair: dict[str, Any] | None = None
    missing_extra: bool = False
    variant_of: str = ""
    advice: str = ""
    judge: BuildSubject | None = field(default=None, compare=False)
    file: Path | None = None

    @cached_property
    def sha256(self) -> str:
        assert self.artifact is not None
        return hashlib.sha256(self.artifact.data).hexdigest()


@dataclass(frozen=True)
class _Failure:
    what: str
    advice: str


@dataclass(frozen=True)
class _Comparison:
    fidelity: Fidelity
    differing: tuple[dict[str, Any], ...]


class Maker:
    """Makes an artifact of the subject and measures it."""

    def __init__(self, subject: BuildSubject, workspace: Workspace, workers: Workers) -> None:
        self.subject, self.workspace, self.workers = subject, workspace, workers
        self._benches: dict[str, WorkspaceBench] = {}
        self._parts: dict[str, tuple[Fidelity, ...]] = {}

    @property
    def calibrates(self) -> bool:
        return self.subject.sets.calibration is not None

    def make(
        self, recipe: Recipe, plan: QuantizationPlan | None = None, judge: BuildSubject | None = None
    ) -> RecipeResult:
        """Convert, then compare.
        judge: what the artifact is compared on, None for the whole evaluation set."""
        return self.compare(self.convert(recipe, plan), judge)

    def convert(self, recipe: Recipe, plan: QuantizationPlan | None = None) -> RecipeResult:
        """Make the artifact, not compared yet.
        plan: None for the recipe's own, of which a ConversionError is kept."""
        subject = self.subject
        if recipe.needs_calibration and not self.calibrates:
            return RecipeResult(recipe, failed="int8 needs representative data", advice="Give --calibration")
        name = key(
            "failed", recipe.name, subject.source.sha256, subject.sets.calibration_digest, to_json(subject.contract)
        )
        known = get_json(subject.store, name, _Failure) if plan is None else None
        if known is not None:
            return RecipeResult(recipe, failed=known.what, advice=known.advice)

        def converted() -> RecipeResult:
            self.workers.progress(f"{recipe.name} conversion", 0, None)
            first = plan or self.workspace.learnt_plan(recipe)
            if first is None:
                if recipe.needs_calibration:
                    self.workspace.check_possible(recipe)
                    self.workspace.ground(recipe.format, STATIC.steps)  # reports its progress; what follows is quick
                    self.workers.progress(f"{recipe.name} choosing ranges", 0, None)
                first = first_plan(self.bench(recipe.format), recipe)
            return RecipeResult(recipe, self.workspace.make(recipe, first))

        result, lasting = _attempt(recipe, converted)
        if lasting and plan is None:
            put_json(subject.store, name, _Failure(result.failed or "", result.advice))
        return result

    def artifact(self, recipe: Recipe, plan: QuantizationPlan) -> Artifact:
        """Made, and not compared. Raises ConversionError."""
        return self.workspace.make(recipe, plan)

    def compare(self, converted: RecipeResult, judge: BuildSubject | None = None) -> RecipeResult:
        """Compare the artifact with the original, and try inputs that no set has.
        A failed recipe stays as it is."""
        artifact = converted.artifact
        return converted if artifact is None else _attempt(converted.recipe, lambda: self._measured(artifact, judge))[0]

    def batched(self, made: RecipeResult, batch: int) -> RecipeResult:
        """The same artifact for `batch` items at once, compared with the original."""
        assert made.artifact is not None
        try:
            self.workers.progress(f"{made.recipe.name} for a batch of {batch}", 0, None)
            return self._compared(self.workspace.make_batch(made.recipe, made.artifact.plan, batch), made.judge)
        except EdgekitError as error:
            return _failed(error, made.recipe)

    def bench(self, format: str, chooser: BuildSubject | None = None) -> CheckedBench:  # noqa: A002
        """What plans are compared with: one for each format, so that nothing is measured twice.
        chooser: with the items that a search may choose by, None for the whole evaluation set."""
        if format not in self._benches:
            subject = self.subject
            identity = (subject.source.sha256, subject.sets.calibration_digest, subject.evaluation_key)
            self._benches[format] = WorkspaceBench(
                self.workspace,
                format,
                partial(self._checked, chooser=None),
                store=subject.store,
                identity=identity,
                contract=subject.contract,
            )
        return CheckedBench(self._benches[format], partial(self._checked, chooser=chooser))

    def crossed(self, artifact: Artifact, judged: Sequence[tuple[Artifact, BuildSubject]]) -> Fidelity:
        """Of `artifact`, by those that were chosen as it was, each on a fold that did not choose it."""
        subject = self.subject
        parts = [(other, fold.indexes or ()) for other, fold in judged]
        names = [(hashlib.sha256(other.data).hexdigest(), fold.evaluation_key) for other, fold in judged]

        def compared() -> Fidelity:
            progress = self.workers.progress
            return compare_crossed(subject.reference, artifact, subject.evaluation, parts, progress)

        name = key("crossed", hashlib.sha256(artifact.data).hexdigest(), *map(list, names))
        found = cached_json(subject.evaluation_store, name, Fidelity, compared, lambda stored: stored.is_possible)
        return replace(found, repaired=tuple(sorted(artifact.plan.float_layers)))

    def _checked(self, trial: Artifact, chooser: BuildSubject | None) -> Fidelity:
        """Of a search: on the items that it may choose by."""
        for place, one in enumerate(self.subject.choosers):
            if one is chooser:
                return self._on_all_choosers(trial)[place]
        found = self._compared(trial, chooser)
        if found.fidelity is None:
            raise ConversionError(found.failed or "it cannot be compared with the original")
        return found.fidelity

    def _on_all_choosers(self, trial: Artifact) -> tuple[Fidelity, ...]:
        """In one pass: the searches look at much the same plans."""
        subject, data = self.subject, hashlib.sha256(trial.data).hexdigest()
        name = key("choosers", data, *[chooser.evaluation_key for chooser in subject.choosers])

        def compared() -> tuple[Fidelity, ...]:
            parts = [chooser.indexes or () for chooser in subject.choosers]
            evaluation, progress = subject.evaluation, self.workers.progress
            return compare_parts(subject.reference, trial, evaluation, parts, progress)

        def fits(stored: tuple[Fidelity, ...]) -> bool:
            return len(stored) == len(subject.choosers) and all(one.is_possible for one in stored)

        if name not in self._parts:
            self._parts[name] = cached_json(subject.evaluation_store, name, tuple[Fidelity, ...], compared, fits)
        return self._parts[name]

    def _measured(self, artifact: Artifact, judge: BuildSubject | None = None) -> RecipeResult:
        """Compared with the original, and asked what no set asks.

        Raises EngineError, CalibrationError or MetricError.
        """
        made = self._compared(artifact, judge)
        if made.artifact is None:
            return made
        if artifact.recipe.precision == "dynamic" and artifact.quantized_weights == 0:
            return RecipeResult(artifact.recipe, failed="no weight of this model is large enough to be worth 8 bits")
        why = self._fails_on(artifact)
        return RecipeResult(artifact.recipe, failed=why) if why else made

    def _compared(self, artifact: Artifact, judge: BuildSubject | None = None) -> RecipeResult:
        """With the original. A float32 artifact that answers otherwise is no candidate."""
        subject, recipe = judge or self.subject, artifact.recipe
        made = RecipeResult(recipe, artifact, judge=judge)
        name = key("fidelity", made.sha256, to_json(artifact.inputs), to_json(artifact.outputs), subject.evaluation_key)

        def compared() -> _Comparison:
            watcher = Watcher(subject.reference, subject.contract.of_caller)
            found = compare_outputs(subject.reference, artifact, subject.evaluation, self.workers.progress, watcher)
            places = subject.indexes or range(len(subject.reference))
            return _Comparison(found, tuple({**item, "index": places[item["index"]]} for item in watcher.differing))

        def fits(stored: _Comparison) -> bool:
            indexes = [item.get("index") for item in stored.differing]
            return stored.fidelity.is_possible and all(
                type(one) is int and 0 <= one < len(subject.sets.evaluation) for one in indexes
            )

        found = cached_json(subject.evaluation_store, name, _Comparison, compared, fits)
        # What the store knows was found for these bytes; which layers are float is the plan's to say.
        measured = replace(found.fidelity, repaired=tuple(sorted(artifact.plan.float_layers)))
        if recipe.precision == "float32" and not recipe.finished and measured.likeness < ALIKE:
            why = (
                f"it is float32 and yet does not answer what the original does: cosine {measured.likeness:.4f} on "
                f"{measured.items} items, where {ALIKE} is the least; the conversion is wrong for this model"
            )
            return RecipeResult(recipe, failed=why)
        return replace(made, fidelity=measured, differing=found.differing)

    def _fails_on(self, artifact: Artifact) -> str:
        """An odd input that the artifact does not answer and the float file does, in words.
        "" where there is none."""
        if artifact.recipe.precision == "float32" or artifact.recipe.finished:
            return ""
        failed = self._odd(artifact)
        if not failed:
            return ""
        original = self._odd(self.workspace.make(find_recipe(f"{artifact.recipe.format}-f32")))
        for name, what in failed.items():
            if name not in original:
                return f"it does not answer {ODD_SAMPLES[name]}, which the float file does: {what}"
        return ""

    def _odd(self, artifact: Artifact) -> dict[str, str]:
        """Odd input -> why there is no finite answer to it."""
        data = hashlib.sha256(artifact.data).hexdigest()
        name = key(
            "odd inputs", data, to_json(artifact.inputs), to_json(artifact.outputs), to_json(self.subject.contract)
        )

        def failed() -> dict[str, str]:
            verdicts = odd_inputs(artifact, self.subject.contract)
            return {verdict.name: verdict.what for verdict in verdicts if not verdict.ok}

        return cached_json(
            self.subject.store,
            name,
            dict[str, str],
            failed,
            lambda stored: stored.keys() <= ODD_SAMPLES.keys(),
        )


def _attempt(recipe: Recipe, work: Callable[[], RecipeResult]) -> tuple[RecipeResult, bool]:
    """What `work` returns, or why it failed.
    Whether the same model and tools would fail like that again.

    Raises SourceError (the file changed meanwhile: nothing made of it now belongs together) and MemoryError.
    """
    try:
        return work(), False
    except SourceError:
        raise
    except EdgekitError as error:
        missing = isinstance(error, MissingToolsError)
        lasting = isinstance(error, ConversionError) and not missing and not isinstance(error.__cause__, MemoryError)
        return replace(_failed(error, recipe), missing_extra=missing), lasting
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault of ours costs this recipe, not the others
        print_traceback(error)
        what = f"a fault of edgekit's own: {type(error).__name__}: {one_line(error)}"
        return RecipeResult(recipe, failed=what), False


def _failed(error: EdgekitError, recipe: Recipe) -> RecipeResult:
    """The recipe's name is printed beside the reason, so it is left out of it."""
    place = "" if error.where == recipe.name else error.where
    return RecipeResult(recipe, failed=str(EdgekitError(error.what, where=place)), advice=error.do)


def convert(maker: Maker, recipes: Sequence[Recipe], boards: Sequence[Board]) -> list[RecipeResult]:
    """An artifact for each recipe that a board has an engine for, in the order of the recipes.

    Work begins with one of each format, so that neither waits for the other's conversion.
    """
    places = dict[str, int]()
    ranked = []
    idle = []
    for recipe in recipes:
        if not any(s.ok and s.format == recipe.format for _, support in boards for s in support):
            idle.append(RecipeResult(recipe, failed="no board that was asked for has an engine for it"))
            continue
        places[recipe.format] = places.get(recipe.format, -1) + 1
        ranked.append((places[recipe.format], recipe))
    order = [recipe for _, recipe in sorted(ranked, key=lambda entry: entry[0])]
    converted = maker.workers.run([partial(maker.convert, recipe) for recipe in order])
    by_recipe = {one.recipe.name: one for one in converted}
    return [*(by_recipe[recipe.name] for _, recipe in ranked), *idle]


def compare(maker: Maker, converted: Sequence[RecipeResult]) -> list[RecipeResult]:
    """Each artifact with its fidelity, or the reason for which it is no candidate."""
    return maker.workers.run([partial(maker.compare, one) for one in converted])


T = TypeVar("T")
Task = Callable[[], T]


class _StoppedError(BaseException):
    """Raised in an abandoned worker. No Exception, so that no converter takes it for a failure."""


class Workers:
    """jobs: how many tasks run at once.
    Threads are daemons: one that a tool keeps busy does not keep the process alive."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        if jobs < 1:
            raise ValueError(f"{jobs} jobs")
        self._jobs, self._progress = jobs, progress
        self._stop, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def run(self, tasks: Sequence[Task[T]]) -> list[T]:
        """Raises what the first failing task raised; the others stop."""
        waiting = queue.SimpleQueue[tuple[int, Task[T]]]()
        done = queue.SimpleQueue[tuple[int, Any, BaseException | None]]()
        for entry in enumerate(tasks):
            waiting.put(entry)
        for _ in range(min(self._jobs, len(tasks))):
            threading.Thread(target=self._work, args=(waiting, done), name="edgekit-build", daemon=True).start()
        results: dict[int, T] = {}
        while len(results) < len(tasks):
            index, value, error = done.get()
            if error is not None:
                self._stop.set()
                raise error
            results[index] = value
        return [results[index] for index in range(len(tasks))]

    def _work(self, waiting: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any]) -> None:
        while not self._stop.is_set():
            try:
                index, task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, task(), None))
            except _StoppedError:
                return
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                self._stop.set()
                done.put((index, None, error))

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """A Progress that any thread may call. In an abandoned worker it ends the task."""
        if self._stop.is_set():
            raise _StoppedError
        with self._lock:
            self._progress(stage, done, total)
