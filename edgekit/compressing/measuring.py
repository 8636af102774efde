"""Artifacts of the original and of each step: made, compared, estimated and timed.

    gauge = Gauge(request, store, workers)
    rows = gauge.rows("qat", gauge.maker_of(path, subject))
    gauge.gain(before, after)                 # Gain(points=0.021, ci95=(0.008, 0.034)): outside the noise
    rows = gauge.timed(rows)                  # with here_ms, one artifact after the other

Rules:
- the estimate from file and board decides, as in a bundle; this machine's times are taken at the end, of all artifacts
  in one go, and decide nothing unless it is the board;
- times of this machine while it is busy take out no channels, and a report says so;
- a gain counts the items that both artifacts answered; it is noise if its 95 % interval contains zero.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.building.board_candidates import Clocks, candidates, is_here, lasting_estimate, timer
from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import key
from edgekit.building.making import Maker, RecipeResult, Workers
from edgekit.building.repairing import Search, with_repairs
from edgekit.compressing.compress_report import FLOATS, RECIPES, REPAIRED, Gain, MeasuredArtifact, busy_error
from edgekit.compressing.compress_request import CompressRequest
from edgekit_converters.choose import MAX_DROP, ChoiceLimits
from edgekit_converters.data.dataset import Subset
from edgekit_converters.fidelity.compare import compare
from edgekit_converters.fidelity.metrics import task_metrics
from edgekit_converters.formats.workload import read_workload
from edgekit_converters.recipe.artifact import recipe as find_recipe
from edgekit_converters.recipe.store import NO_STORE, StageStore
from edgekit_converters.sources.load import load
from edgekit_profiles import Estimate, installable
from edgekit_runtime.system.errors import EdgekitError

_FEW = 32


class Gauge:
    """Measures artifacts, and keeps them until they are timed."""

    def __init__(self, request: CompressRequest, store: StageStore, workers: Workers) -> None:
        self._request, self._store, self._workers = request, store, workers
        self._results: dict[tuple[str, str], RecipeResult] = {}
        self._subjects: dict[tuple[str, str], BuildSubject] = {}
        self._answers: dict[tuple[str, str], list[Any]] = {}

    def maker_of(self, path: Path, subject: BuildSubject) -> Maker:
        """A maker for a model of this run: it compares with the original's answers, uncached."""
        source = load(path, self._request.options)
        new = replace(subject, source=source, store=NO_STORE, scratch=None)
        return Maker(new, new.workspace(self._workers.progress), self._workers)

    def rows(self, step: str, maker: Maker, recipes: Sequence[str] = RECIPES) -> tuple[MeasuredArtifact, ...]:
        return self._rows(step, maker, maker.workers.run([partial(maker.make, find_recipe(one)) for one in recipes]))

    def in_float(self, step: str, maker: Maker) -> tuple[MeasuredArtifact, ...]:
        """A trained model's TFLite artifact in float; it need not answer as the original does."""
        made = maker.convert(find_recipe(FLOATS[0]))
        if made.artifact is not None:
            subject = maker.subject
            found = compare(subject.reference, made.artifact, subject.evaluation, self._workers.progress)
            made = replace(made, fidelity=found)
        return self._rows(step, maker, [made])

    def repaired(self, maker: Maker, plain: Sequence[MeasuredArtifact]) -> tuple[MeasuredArtifact, ...]:
        """A build's repair of plain INT8 that misses the limit; half of its items chose it."""
        limits = ChoiceLimits(max_drop=MAX_DROP if self._request.max_drop is None else self._request.max_drop)
        search = Search(limits, self._request.repair_s, self._request.jobs)
        before = [self._results[row.step, row.recipe] for row in plain]
        found = with_repairs(maker, before, search)
        new = [one for one in found if one.repair and one.artifact and one.recipe.name == one.repair["recipe"]]
        whole = [maker.compare(replace(one, fidelity=None)) for one in new]
        return self._rows(REPAIRED, maker, whole)

    def high_ms(self, subject: BuildSubject, path: Path, recipe: str) -> float | None:
        """The high end of the board's estimate for that model's artifact."""
        sets = subject.sets  # ranges change no time: a few items do
        assert sets.calibration is not None
        few = range(min(_FEW, len(sets.calibration)))
        calibration_digest = key("few", sets.calibration_digest, len(few))
        sets = replace(sets, calibration=Subset(sets.calibration, few), calibration_digest=calibration_digest)
        maker = self.maker_of(path, replace(subject, sets=sets))
        (found,) = self._estimates(maker.subject, [maker.convert(find_recipe(recipe))])
        if found is not None and found.busy:
            raise busy_error(str(self._request.model))
        return None if found is None else found.high_ms

    def timed(self, rows: Sequence[MeasuredArtifact]) -> tuple[MeasuredArtifact, ...]:
        """The rows with `here_ms`, those of one input timed together; as given if an engine fails."""
        kept = {name: one for name, one in self._results.items() if one.artifact is not None}
        inputs = {name: self._subjects[name].contract.inputs for name in kept}
        clocks = {
            of: timer(self._subjects[name], self._store, [one for other, one in kept.items() if inputs[other] == of])
            for name, of in inputs.items()
        }
        found: list[MeasuredArtifact] = []
        for row in rows:
            name = row.step, row.recipe
            try:
                time = clocks[inputs[name]](kept[name]) if name in kept else None
                found.append(replace(row, here_ms=time.mid_ms, here_busy=time.busy) if time else row)
            except EdgekitError:
                return tuple(rows)
        return tuple(found)

    def gain(self, before: MeasuredArtifact, after: MeasuredArtifact) -> Gain | None:
        """How much less the second loses than the first; None if no metric fits the labels."""
        metric = self._metric(before)
        if metric is None:
            return None
        found = metric.compare(self._kept(before), self._kept(after))
        error = not found.higher_is_better
        unit = found.original if error and found.original else 1.0
        low, high = (end / unit for end in found.ci95)
        return Gain(before.step, after.recipe, found.metric, -found.drop / unit, (-high, -low), error)

    def _metric(self, row: MeasuredArtifact) -> Any:
        """The metric for the outputs of the row's artifact; None if none fits the labels."""
        subject = self._subjects[row.step, row.recipe]
        if subject.reference.labels is None:
            return None
        metrics = task_metrics(subject.contract.of_caller, subject.reference.labels, subject.metric)
        return metrics[0] if metrics else None

    def _kept(self, row: MeasuredArtifact) -> list[Any]:
        """What the row's metric keeps of each item's answer."""
        name = row.step, row.recipe
        if name not in self._answers:
            result, subject, metric = self._results[name], self._subjects[name], self._metric(row)
            labels, kept = subject.reference.labels, list[Any]()
            assert result.artifact is not None
            assert labels is not None

            def seen(index: int, answer: Mapping[str, NDArray[Any]]) -> None:
                finite = all(np.isfinite(value).all() for value in answer.values())
                kept.append(metric.keep(answer if finite else None, labels[index]))

            compare(subject.reference, result.artifact, subject.evaluation, self._workers.progress, seen)
            self._answers[name] = kept
        return self._answers[name]

    def _rows(self, step: str, maker: Maker, results: Sequence[RecipeResult]) -> tuple[MeasuredArtifact, ...]:
        times = self._estimates(maker.subject, results)
        self._results |= {(step, one.recipe.name): one for one in results}
        self._subjects |= {(step, one.recipe.name): maker.subject for one in results}
        return tuple(_measured(step, one, time) for one, time in zip(results, times, strict=True))

    def _estimates(self, subject: BuildSubject, results: Sequence[RecipeResult]) -> list[Estimate | None]:
        """Estimates from file and board as a bundle has them, or times if this machine is the board.

        Other times of this machine, which is busy training, would differ from run to run.
        """
        profile = self._request.load_profile()
        if profile is None:
            return [None] * len(results)
        support = installable(profile)
        if not is_here(profile):
            return [lasting_estimate(profile, support, one, ()) for one in results]
        clocks = Clocks(timer(subject, self._store, results))
        return [one.estimate for one in candidates(profile, support, results, clocks)]


def _measured(step: str, made: RecipeResult, time: Estimate | None) -> MeasuredArtifact:
    found, artifact = made.fidelity, made.artifact
    if found is None or artifact is None:
        return MeasuredArtifact(step, made.recipe.name, failed=made.failed or "it was not made")
    precision: Literal["int8", "float32"] = "int8" if made.recipe.precision == "int8" else "float32"
    row = MeasuredArtifact(
        step,
        made.recipe.name,
        found.metric,
        found.original,
        found.artifact,
        found.loss,
        None if found.metric is None else found.loss_ci95,
        found.quantized_macs,
        len(artifact.data),
        read_workload(made.recipe.format, artifact.data, precision).macs,
        packed_bytes=len(lzma.compress(artifact.data)),
        error=found.is_error,
    )
    if time is None:
        return row
    return replace(row, ms=time.mid_ms, high_ms=time.high_ms, low_ms=time.low_ms, busy=time.busy)
