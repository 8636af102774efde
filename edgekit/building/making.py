"""Make and measure every recipe once, and find the items whose answers changed.

    with Workers(2, progress) as workers:
        made = convert(Maker(subject, workspace, workers), recipes, boards)

Rules:
- a recipe that fails gives a reason and never ends the build;
- what an earlier build made of the same model, data and tools is loaded from the cache;
- workers are threads, because engines and converters release the GIL; results keep the order of the tasks, the first
  error ends the rest, and the caller's thread only waits, so that Ctrl-C works at once;
- an artifact that fails on an odd input, such as silence, which the float file answers, is not a candidate;
- a classifier's differing items are those whose best class differs, the original's surest first.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import io
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgekit.building.build_subject import Board, BuildSubject
from edgekit.building.data import key
from edgekit_converters.data.dataset import Dataset
from edgekit_converters.fidelity.compare import compare as compare_outputs
from edgekit_converters.fidelity.compare import compare_crossed, compare_parts
from edgekit_converters.fidelity.odd_inputs import ODD_SAMPLES, odd_inputs
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.fidelity.repair_bench import WorkspaceBench, first_plan
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
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import EdgekitError, print_traceback
from edgekit_runtime.system.strict_json import to_json

MOST = 24
_LEAST_ROOM = 32_000_000
"""Bytes of the temporary folder. With less, a conversion that failed may have failed for that."""
_THUMBNAIL = 96  # pixels a side, at most


class Watcher:
    """Called with each item's index and the artifact's answer; `differing` is for the report."""

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
            {"index": index, "original": self._best(original), "artifact": self._best(artifact), "truth": true_class}
        )

    @property
    def differing(self) -> list[dict[str, Any]]:
        """At most `MOST`."""
        return sorted(self._found, key=lambda item: (-item["original"]["score"], item["index"]))[:MOST]

    def _best(self, values: NDArray[Any]) -> dict[str, Any]:
        """The best class as `Answer.top` has it, with a probability for a logit."""
        best = top({self._contract.outputs[0].name: values}, self._contract, 1)[0]
        return {
            "index": best.index,
            "label": best.label if self._contract.labels else None,
            "score": best.score if np.isfinite(best.score) else 0.0,
        }


def shown(differing: Sequence[Mapping[str, Any]], dataset: Dataset, contract: Contract) -> list[dict[str, Any]]:
    """The differing items for the report. `image`: data URI of a small PNG, or None."""
    by_index = {int(entry["index"]): entry for entry in differing}
    entries = {}
    with contextlib.suppress(CalibrationError):  # the set has changed: the report omits them
        for index, example in zip(sorted(by_index), dataset.pick(sorted(by_index)), strict=True):
            entry = by_index[index]
            pixels = next(iter(example.inputs.values()))
            entries[index] = {
                "item": example.origin,
                "image": _thumbnail(pixels) if pictures(contract.inputs[:1]) else None,
                "original": entry["original"],
                "artifact": entry["artifact"],
                "truth": entry.get("truth"),
            }
    return [entries[index] for index in by_index if index in entries]


def _thumbnail(pixels: NDArray[Any]) -> str | None:
    """None if Pillow is not installed, or the pixels are not a picture's."""
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
"""Least likeness of a float32 artifact, which differs by rounding only."""


@dataclass(frozen=True)
class RecipeResult:
    """One recipe's artifact and its fidelity, or why it failed.

    advice: remedy for the failure.
    missing_extra: the recipe's tools are not installed here.
    variant_of: recipe that it replaces on boards whose runtime refuses that one, else "".
    differing: items whose best class differs from the original's, as `Watcher` records them.
    repair: story of the search for a repair of this recipe, or of the one it was made from.
    judge: subject that it was compared on, None for the whole evaluation set.
    file: another tool's file, None for edgekit's own artifacts.
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
        """Convert, then compare on `judge`, None for the whole evaluation set."""
        return self.compare(self.convert(recipe, plan), judge)

    def convert(self, recipe: Recipe, plan: QuantizationPlan | None = None) -> RecipeResult:
        """Make the artifact. plan: None for the recipe's own, whose ConversionError is cached."""
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
                    self.workspace.ground(recipe.format, STATIC.steps)  # reports its own progress
                    self.workers.progress(f"{recipe.name} choosing ranges", 0, None)
                first = first_plan(self.bench(recipe.format), recipe)
            return RecipeResult(recipe, self.workspace.make(recipe, first))

        result, lasting = attempt(recipe, converted)
        if lasting and plan is None:
            put_json(subject.store, name, _Failure(result.failed or "", result.advice))
        return result

    def compare(self, converted: RecipeResult, judge: BuildSubject | None = None) -> RecipeResult:
        """Compare the artifact, if any, with the original, and try odd inputs."""
        artifact = converted.artifact
        return converted if artifact is None else attempt(converted.recipe, lambda: self._measured(artifact, judge))[0]

    def batched(self, made: RecipeResult, batch: int) -> RecipeResult:
        """The same artifact for `batch` items at once, compared with the original."""
        assert made.artifact is not None
        try:
            self.workers.progress(f"{made.recipe.name} for a batch of {batch}", 0, None)
            return self._compared(self.workspace.make_batch(made.recipe, made.artifact.plan, batch), made.judge)
        except EdgekitError as error:
            return _failed(error, made.recipe)

    def bench(self, format: str) -> WorkspaceBench:  # noqa: A002
        """Measures plans; one bench for each format, so that nothing is measured twice."""
        if format not in self._benches:
            subject = self.subject
            identity = (subject.source.sha256, subject.sets.calibration_digest, subject.evaluation_key)
            self._benches[format] = WorkspaceBench(
                self.workspace, format, store=subject.store, identity=identity, contract=subject.contract
            )
        return self._benches[format]

    def loss(self, recipe: str, plan: QuantizationPlan, chooser: BuildSubject | None) -> float:
        """What a plan loses on the items of `chooser`, None for the whole evaluation set.

        Raises ConversionError."""
        return self._checked(self.workspace.make(find_recipe(recipe), plan), chooser).loss

    def crossed(self, artifact: Artifact, judged: Sequence[tuple[Artifact, BuildSubject]]) -> Fidelity:
        """Cross-fitted fidelity: each fold is answered by an artifact that was chosen without it."""
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
        """The trial's fidelity on the items of `chooser`. Raises ConversionError."""
        for place, one in enumerate(self.subject.choosers):
            if one is chooser:
                return self._on_all_choosers(trial)[place]
        found = self._compared(trial, chooser)
        if found.fidelity is None:
            raise ConversionError(found.failed or "it cannot be compared with the original")
        return found.fidelity

    def _on_all_choosers(self, trial: Artifact) -> tuple[Fidelity, ...]:
        """All choosers in one pass, because their searches try much the same plans."""
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
        """Compare, then try odd inputs. Raises EngineError, CalibrationError or MetricError."""
        made = self._compared(artifact, judge)
        if made.artifact is None:
            return made
        if artifact.recipe.precision == "dynamic" and artifact.quantized_weights == 0:
            return RecipeResult(artifact.recipe, failed="no weight of this model is large enough to be worth 8 bits")
        why = self._fails_on(artifact)
        return RecipeResult(artifact.recipe, failed=why) if why else made

    def _compared(self, artifact: Artifact, judge: BuildSubject | None = None) -> RecipeResult:
        """Compare with the original. A float32 artifact that differs by more than rounding failed."""
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
        # The cache is keyed by bytes; which layers are float is known from the plan
        measured = replace(found.fidelity, repaired=tuple(sorted(artifact.plan.float_layers)))
        if recipe.precision == "float32" and not recipe.finished and measured.likeness < ALIKE:
            why = (
                f"its float32 answers differ from the original's: cosine {measured.likeness:.4f} on "
                f"{measured.items} items, where {ALIKE} is the least; the conversion is wrong for this model"
            )
            return RecipeResult(recipe, failed=why)
        return replace(made, fidelity=measured, differing=found.differing)

    def _fails_on(self, artifact: Artifact) -> str:
        """Which odd input the artifact does not answer and the float file does; "" for none."""
        if artifact.recipe.precision == "float32" or artifact.recipe.finished:
            return ""
        failed = self._odd(artifact)
        original = self._odd(self.workspace.make(find_recipe(f"{artifact.recipe.format}-f32"))) if failed else {}
        for name, what in failed.items():
            if name not in original:
                return f"it fails on {ODD_SAMPLES[name]}, which the float file handles: {what}"
        return ""

    def _odd(self, artifact: Artifact) -> dict[str, str]:
        """Odd input -> why it has no finite answer."""
        data = hashlib.sha256(artifact.data).hexdigest()
        name = key(
            "odd inputs", data, to_json(artifact.inputs), to_json(artifact.outputs), to_json(self.subject.contract)
        )

        def failed() -> dict[str, str]:
            verdicts = odd_inputs(artifact, self.subject.contract)
            return {verdict.name: verdict.what for verdict in verdicts if not verdict.ok}

        return cached_json(
            self.subject.store, name, dict[str, str], failed, lambda stored: stored.keys() <= ODD_SAMPLES.keys()
        )


def attempt(recipe: Recipe, work: Callable[[], RecipeResult]) -> tuple[RecipeResult, bool]:
    """(what `work` returns or why it failed, whether the same model and tools would fail again).

    Raises MemoryError; SourceError: the file changed, so its artifacts no longer belong together; OSError for a full
    disk, which tools seldom name as their reason.
    """
    try:
        return work(), False
    except (SourceError, MemoryError):
        raise
    except EdgekitError as error:
        missing = isinstance(error, MissingToolsError)
        lasting = isinstance(error, ConversionError) and not missing and not isinstance(error.__cause__, MemoryError)
        if not (lasting or missing):
            _check_room(recipe, error)
        return replace(_failed(error, recipe), missing_extra=missing), lasting
    except Exception as error:  # noqa: BLE001 - a fault of ours costs this recipe, not the others
        _check_room(recipe, error)
        print_traceback(error)
        what = f"internal error: {type(error).__name__}: {one_line(error)}"
        return RecipeResult(recipe, failed=what), False


def _check_room(recipe: Recipe, error: Exception) -> None:
    folder = tempfile.gettempdir()
    if (free := shutil.disk_usage(folder).free) < _LEAST_ROOM:
        left = f"{free / 1e6:.1f} MB are left, and {recipe.name} failed ({one_line(error)})"
        raise OSError(errno.ENOSPC, left, folder) from error


def _failed(error: EdgekitError, recipe: Recipe) -> RecipeResult:
    """The reason without the recipe's name, which is printed next to it."""
    place = "" if error.where == recipe.name else error.where
    return RecipeResult(recipe, failed=str(EdgekitError(error.what, where=place)), advice=error.do)


def convert(maker: Maker, recipes: Sequence[Recipe], boards: Sequence[Board]) -> list[RecipeResult]:
    """An artifact for each recipe that a board has an engine for, in the order of the recipes.

    One recipe of each format comes first, so that no format waits for another's conversion.
    """
    places = dict[str, int]()
    ranked = []
    idle = []
    for recipe in recipes:
        if not any(s.ok and s.format == recipe.format for _, support in boards for s in support):
            idle.append(RecipeResult(recipe, failed="no requested board has an engine for it"))
            continue
        places[recipe.format] = places.get(recipe.format, -1) + 1
        ranked.append((places[recipe.format], recipe))
    order = [recipe for _, recipe in sorted(ranked, key=lambda entry: entry[0])]
    converted = maker.workers.run([partial(maker.convert, recipe) for recipe in order])
    by_recipe = {one.recipe.name: one for one in converted}
    return [*(by_recipe[recipe.name] for _, recipe in ranked), *idle]


T = TypeVar("T")
Task = Callable[[], T]


class _StoppedError(BaseException):
    """Ends an abandoned worker. Not an Exception, so that no converter catches it."""


class Workers(ClosedOnExit["Workers"]):
    """Daemon threads, so that a busy tool does not keep the process alive. jobs: tasks at once."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        if jobs < 1:
            raise ValueError(f"{jobs} jobs")
        self._jobs, self._progress = jobs, progress
        self._stop, self._lock = threading.Event(), threading.Lock()

    def close(self) -> None:
        self._stop.set()

    def run(self, tasks: Sequence[Task[T]]) -> list[T]:
        """Results in the order of the tasks. Raises the first error; the other tasks stop."""
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
        """A Progress for any thread; in an abandoned worker it ends the task."""
        if self._stop.is_set():
            raise _StoppedError
        with self._lock:
            self._progress(stage, done, total)
