"""Every recipe carried out and measured once; the items that an artifact answers otherwise.

    watcher = Watcher(reference, contract)
    compare(reference, artifact, evaluation, progress, watcher)
    shown(watcher.differing, dataset, contract)       # [{"item", "image", "original", "artifact", "truth"}]

Rules:
- a recipe that fails is a reason, never the end of the build; where a model cannot be all int8, the form with layers in
  float is made in its place;
- recipes are worked on side by side; what an earlier build made of the same model, data and tools is not made again;
- an artifact that fails on silence or another odd input, which the float file answers, is no candidate;
- a classifier's differing items are those whose best class differs, those first that the original was surest of;
  pictures are small, and come from the evaluation set's own pixels.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.building.kept import key
from edgekit.building.subject import Subject
from edgekit.building.workers import Workers
from edgekit_converters import fidelity, targets
from edgekit_converters.calibration import Dataset
from edgekit_converters.errors import CalibrationError, ConversionError, MissingToolsError, SourceError
from edgekit_converters.fidelity import Fidelity, Reference
from edgekit_converters.fidelity.repair_bench import WorkspaceBench, first_plan
from edgekit_converters.progress import Progress
from edgekit_converters.store import get_json, kept_json, put_json
from edgekit_converters.targets import Artifact, Recipe
from edgekit_converters.targets.artifact import STATIC, Plan
from edgekit_converters.targets.workspace import Workspace
from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.contract import Contract
from edgekit_runtime.contract.finish import top
from edgekit_runtime.contract.kinds import pictures
from edgekit_runtime.errors import EdgekitError

__all__ = ["ALIKE", "MOST", "Made", "Maker", "Watcher", "make", "shown"]

MOST = 24
_THUMBNAIL = 96  # pixels a side, at most


class Watcher:
    """Called with each item's index and the artifact's answer; `differing` is what a report keeps of them."""

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
        self._found.append(
            {
                "index": index,
                "original": self._best(original),
                "artifact": self._best(artifact),
                "truth": None if truth is None or isinstance(truth, np.ndarray) else self._name(int(truth)),
            }
        )

    @property
    def differing(self) -> list[dict[str, Any]]:
        """At most `MOST`."""
        return sorted(self._found, key=lambda item: (-item["original"]["score"], item["index"]))[:MOST]

    def _best(self, values: NDArray[Any]) -> dict[str, Any]:
        """As `Answer.top` gives it to an application, so that logits are shown as the probabilities that they stand
        for.
        """
        best = top({self._contract.outputs[0].name: values}, self._contract, 1)[0]
        return {
            "index": best.index,
            "label": best.label if self._contract.labels else None,
            "score": best.score if np.isfinite(best.score) else 0.0,
        }

    def _name(self, index: int) -> str:
        labels = self._contract.labels
        return labels[index] if labels and 0 <= index < len(labels) else str(index)


def shown(differing: Sequence[Mapping[str, Any]], dataset: Dataset, contract: Contract) -> list[dict[str, Any]]:
    """As the report has them: `item` says where it came from, `image` is a data URI of a small PNG, or None."""
    by_index = {int(entry["index"]): entry for entry in differing}
    told = []
    with contextlib.suppress(CalibrationError):  # a set that has changed since: the report does without
        for index, example in zip(sorted(by_index), dataset.pick(sorted(by_index)), strict=True):
            entry = by_index[index]
            pixels = next(iter(example.inputs.values()))
            told.append(
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
    return [entry for _, entry in sorted(zip(places, told, strict=False), key=lambda pair: pair[0])]


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
class Made:
    """One recipe's outcome: the artifact and how far it drifted, or why there is none and what to do about that.
    missing_extra: its tools are not installed here.

    variant_of: the recipe that it was made in place of, because a board's runtime stumbles over that one; "" for the
    rest.
    differing: items that it answers otherwise than the original, as `disagreements` describes them. repair: what came
    of repairing the recipe it was made from, or of repairing it. judge: what it was compared on, None for the whole
    evaluation set.
    """

    recipe: Recipe
    artifact: Artifact | None
    fidelity: Fidelity | None
    failed: str | None
    differing: tuple[dict[str, Any], ...] = ()
    repair: dict[str, Any] | None = None
    missing_extra: bool = False
    variant_of: str = ""
    advice: str = ""
    judge: Subject | None = field(default=None, compare=False)

    @cached_property
    def sha256(self) -> str:
        assert self.artifact is not None
        return hashlib.sha256(self.artifact.data).hexdigest()


@dataclass(frozen=True)
class _Failed:
    what: str
    advice: str


@dataclass(frozen=True)
class _Compared:
    fidelity: Fidelity
    differing: tuple[dict[str, Any], ...]


class Maker:
    """Makes an artifact of the subject and measures it."""

    def __init__(self, subject: Subject, workspace: Workspace, workers: Workers) -> None:
        self.subject, self.workspace, self.workers = subject, workspace, workers
        self._benches: dict[str, WorkspaceBench] = {}

    @property
    def calibrates(self) -> bool:
        return self.subject.sets.calibration is not None

    def make(self, recipe: Recipe, plan: Plan | None = None, judge: Subject | None = None) -> Made:
        """A ConversionError of the same model and tools comes again, so it is remembered too.

        judge: what the artifact is compared on, None for the whole evaluation set.
        """
        subject = self.subject
        if recipe.needs_calibration and not self.calibrates:
            return Made(recipe, None, None, "int8 needs representative data", advice="Give --calibration")
        name = key(
            "failed", recipe.name, subject.source.sha256, subject.sets.calibration_digest, to_json(subject.contract)
        )
        known = get_json(subject.store, name, _Failed) if plan is None else None
        if known is not None:
            return Made(recipe, None, None, known.what, advice=known.advice)
        try:
            self.workers.progress(f"{recipe.name} conversion", 0, None)
            return self.measured(self.workspace.make(recipe, plan or self._first_plan(recipe)), judge)
        except SourceError:
            raise  # the file changed meanwhile: nothing that is made of it now belongs together
        except EdgekitError as error:
            missing = isinstance(error, MissingToolsError)
            lasting = (
                isinstance(error, ConversionError) and not missing and not isinstance(error.__cause__, MemoryError)
            )
            made = replace(_failed(error, recipe), missing_extra=missing)
            if lasting and plan is None:
                put_json(subject.store, name, _Failed(made.failed or "", made.advice))
            return made
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours costs this recipe, not the others
            traceback.print_exc(file=sys.stderr)
            return Made(recipe, None, None, f"a fault of edgekit's own: {type(error).__name__}: {error}")

    def batched(self, made: Made, batch: int) -> Made:
        """The same artifact for `batch` items at once, compared with the original in batches of that size."""
        assert made.artifact is not None
        try:
            self.workers.progress(f"{made.recipe.name} for a batch of {batch}", 0, None)
            return self.compared(self.workspace.make_batch(made.recipe, made.artifact.plan, batch), made.judge)
        except EdgekitError as error:
            return _failed(error, made.recipe)

    def _first_plan(self, recipe: Recipe) -> Plan:
        if recipe.needs_calibration:
            self.workspace.ground(recipe.format, STATIC.steps)  # says what it does, and what follows takes seconds
            self.workers.progress(f"{recipe.name} choosing ranges", 0, None)
        return first_plan(self.bench(recipe.format), recipe)

    def bench(self, format: str) -> WorkspaceBench:  # noqa: A002
        """What plans are compared with: one for each format, so that nothing is measured twice."""
        if format not in self._benches:
            subject = self.subject
            identity = (subject.source.sha256, subject.sets.calibration_digest, subject.evaluation_key)
            self._benches[format] = WorkspaceBench(
                self.workspace,
                format,
                self._checked,
                store=subject.store,
                identity=identity,
                contract=subject.contract,
            )
        return self._benches[format]

    def _checked(self, trial: Artifact) -> Fidelity:
        """Of a search: on the items that it may choose by."""
        halves = self.subject.halves
        found = self.compared(trial, None if halves is None else halves[0])
        if found.fidelity is None:
            raise ConversionError(found.failed or "it cannot be compared with the original")
        return found.fidelity

    def measured(self, artifact: Artifact, judge: Subject | None = None) -> Made:
        """Compared with the original, and asked what no set asks.

        Raises EngineError, CalibrationError or MetricError.
        """
        made = self.compared(artifact, judge)
        if made.artifact is None:
            return made
        if artifact.recipe.precision == "dynamic" and artifact.quantized_weights == 0:
            return Made(artifact.recipe, None, None, "no weight of this model is large enough to be worth 8 bits")
        why = self._fails_on(artifact)
        return Made(artifact.recipe, None, None, why) if why else made

    def compared(self, artifact: Artifact, judge: Subject | None = None) -> Made:
        """With the original. A float32 artifact that answers otherwise is no candidate."""
        subject, recipe = judge or self.subject, artifact.recipe
        made = Made(recipe, artifact, None, None, judge=judge)
        name = key("fidelity", made.sha256, to_json(artifact.inputs), to_json(artifact.outputs), subject.evaluation_key)
        compared = partial(_compared, subject, artifact, self.workers.progress)
        found = kept_json(subject.evaluation_store, name, _Compared, compared)
        # What the store knows was found for these bytes; which layers are float is the plan's to say.
        measured = replace(found.fidelity, repaired=tuple(sorted(artifact.plan.float_layers)))
        if recipe.precision == "float32" and measured.likeness < ALIKE:
            return Made(recipe, None, None, _unlike(measured))
        return replace(made, fidelity=measured, differing=found.differing)

    def _fails_on(self, artifact: Artifact) -> str:
        """An odd input that the artifact does not answer and the float file does, in words; "" where there is none."""
        if artifact.recipe.precision == "float32" or artifact.recipe.finished:
            return ""
        failed = self._odd(artifact)
        if not failed:
            return ""
        original = self._odd(self.workspace.make(targets.recipe(f"{artifact.recipe.format}-f32")))
        for name, what in failed.items():
            if name not in original:
                return f"it does not answer {fidelity.ODD_SAMPLES[name]}, which the float file does: {what}"
        return ""

    def _odd(self, artifact: Artifact) -> dict[str, str]:
        """Odd input -> why there is no finite answer to it."""
        data = hashlib.sha256(artifact.data).hexdigest()
        name = key(
            "odd inputs", data, to_json(artifact.inputs), to_json(artifact.outputs), to_json(self.subject.contract)
        )

        def failed() -> dict[str, str]:
            verdicts = fidelity.odd_inputs(artifact, self.subject.contract)
            return {verdict.name: verdict.what for verdict in verdicts if not verdict.ok}

        return kept_json(self.subject.store, name, dict[str, str], failed)


def _failed(error: EdgekitError, recipe: Recipe) -> Made:
    """The recipe's name is printed beside the reason, so it is left out of it."""
    place = "" if error.where == recipe.name else error.where
    return Made(recipe, None, None, str(EdgekitError(error.what, where=place)), advice=error.do)


def _compared(subject: Subject, artifact: Artifact, progress: Progress) -> _Compared:
    watcher = Watcher(subject.reference, subject.contract.of_caller)
    found = fidelity.compare(subject.reference, artifact, subject.evaluation, progress, watcher)
    places = subject.indexes or range(len(subject.reference))
    return _Compared(found, tuple({**item, "index": places[item["index"]]} for item in watcher.differing))


def make(maker: Maker, recipes: Sequence[Recipe]) -> list[Made]:
    """In the order of the recipes, each followed by what was made in its place. Work begins with one of each format, so
    that neither waits for the other's conversion.
    """
    places = dict[str, int]()
    ranked = []
    for recipe in recipes:
        places[recipe.format] = places.get(recipe.format, -1) + 1
        ranked.append((places[recipe.format], recipe))
    order = [recipe for _, recipe in sorted(ranked, key=lambda entry: entry[0])]
    made = maker.workers.run([partial(_possible, maker, recipe) for recipe in order])
    by_recipe = dict(zip((recipe.name for recipe in order), made, strict=True))
    found = [one for recipe in recipes for one in by_recipe[recipe.name]]
    return list({one.recipe.name: one for one in found}.values())


def _possible(maker: Maker, recipe: Recipe) -> list[Made]:
    """The recipe's outcome; where the model does not allow all of it in int8, that of its form with islands besides."""
    first = maker.make(recipe)
    quantizes = recipe.precision == "int8" and not recipe.finished
    if first.artifact is not None or not quantizes or recipe.mixed or not maker.calibrates:
        return [first]
    second = maker.make(targets.with_islands(recipe))
    return [first] if second.artifact is None else [first, second]


def _unlike(found: Fidelity) -> str:
    return (
        f"it is float32 and yet does not answer what the original does: cosine {found.likeness:.4f} on {found.items} "
        f"items, where {ALIKE} is the least; the conversion is wrong for this model"
    )
