"""Candidates of each board: latency, memory, promise and evidence of what was made.

    seen = candidates(profile, support, made, Clocks(timer(subject, store, made), workstation(store, made)))
    promise_of(50.0, lasting_json(found))                      # Promise(p50_ms=31.2, p99_ms=50.0)
    manifest = with_memory(draft, manifest, {"tflite-int8": 64_000_000}, store)

Rules:
- this machine times once for all boards, and only if a board's MobileNetV1 time is known;
- a bundle's promise is the same in every build of the same inputs: it holds no time of the workstation, and six digits,
  so that the logarithm of another C library does not change the file;
- times of a busy machine are marked as such, refuse nothing and are not cached;
- memory is promised for each artifact and engine: the estimate from the file with HEADROOM, or what the trial of
  `edgekit install` took here, if that is more than the estimate allows;
- evidence (damaged layers, causes, differing answers) never fails a build.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from edgekit.boards.anchoring import can_time_here, time_here
from edgekit.building.build_report import estimate_json
from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import key
from edgekit.building.load import MachineLoad
from edgekit.building.making import RecipeResult, shown
from edgekit.packaging.writer import write_bundle
from edgekit_converters.choose import Candidate
from edgekit_converters.data.dataset import Subset
from edgekit_converters.data.statistics import SourceSamples
from edgekit_converters.fidelity.compare import EngineTimes, measure_ms
from edgekit_converters.fidelity.explain import examine, explain
from edgekit_converters.fidelity.layers import LayerError, LayerHistogram, layer_histograms, worst
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.formats.needs import Barrier, Runtime, barriers, read_needs
from edgekit_converters.formats.workload import memory_bytes, precision_of, read_workload
from edgekit_converters.recipe.progress import Progress
from edgekit_converters.recipe.store import StageStore, cached_json, get_json, put_json
from edgekit_converters.targets.workspace import Workspace
from edgekit_profiles import (
    CannotEstimateError,
    Estimate,
    EstimateEvidence,
    HostTimes,
    Profile,
    RuntimeSupport,
    has_anchor,
    measured_estimate,
    milliseconds,
)
from edgekit_profiles.anchors import AnchorFile, anchors_for
from edgekit_profiles.estimate import estimate
from edgekit_profiles.wheels import wheels
from edgekit_runtime.bundle.manifest import ArtifactEntry, Manifest, Promise
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import ENGINES, available, pick
from edgekit_runtime.install import TrialOptions
from edgekit_runtime.install.prove import prove
from edgekit_runtime.system.children import may_start
from edgekit_runtime.system.children import run as run_child
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import to_json

if TYPE_CHECKING:
    import subprocess

    from edgekit.packaging.writer import BundleDraft
    from edgekit_runtime.bundle.secrets import Secret


@dataclass(frozen=True)
class Clocks:
    """What is known of an artifact's time.

    here: on this machine, if it is the board.
    ratio: against MobileNetV1 on this machine, None if not measurable.
    anchors: files measured on boards.
    """

    here: Callable[[RecipeResult], Estimate]
    ratio: Callable[[RecipeResult], HostTimes | None] = lambda made: None
    anchors: Sequence[AnchorFile] = ()


def candidates(
    profile: Profile, support: Sequence[RuntimeSupport], made: Sequence[RecipeResult], clocks: Clocks
) -> list[Candidate]:
    """The artifacts for one board, estimated, or timed if this machine *is* the board."""
    variants = {one.variant_of: one.recipe.name for one in made if one.variant_of and one.artifact is not None}
    seen = [_candidate(profile, support, m, clocks) for m in made]
    return [replace(one, variant=variants.get(one.recipe, "")) for one in seen]


def barriers_there(profile: Profile, support: Sequence[RuntimeSupport], made: RecipeResult) -> tuple[Barrier, ...]:
    """What stops the board's runtime in an artifact; empty without a runtime."""
    runtime = runtime_of(profile, support, made.recipe.format)
    if runtime is None or made.artifact is None:
        return ()
    return barriers(read_needs(made.recipe.format, made.artifact.data), runtime)


def runtime_of(profile: Profile, support: Sequence[RuntimeSupport], format: str) -> Runtime | None:  # noqa: A002
    """The runtime that the board will use for a format: the first that installs."""
    found = next((one for one in support if one.ok and one.format == format), None)
    if found is None or found.version is None:
        return None
    delegate = os.environ.get("EDGEKIT_DELEGATE", "")
    return Runtime(found.engine, found.version, profile.arch, profile.core.type, delegate)


def lasting_estimate(
    profile: Profile, support: Sequence[RuntimeSupport], made: RecipeResult, anchors: Sequence[AnchorFile]
) -> Estimate | None:
    """The estimate that a bundle may hold: it uses no time of this machine."""
    try:
        return _estimate(profile, support, made, anchors)
    except CannotEstimateError:
        return None


def _candidate(profile: Profile, support: Sequence[RuntimeSupport], made: RecipeResult, clocks: Clocks) -> Candidate:
    found: Estimate | None = None
    memory: int | None = None
    why = ""
    if made.artifact is not None:
        memory = memory_bytes(made.recipe.format, made.artifact.data)
        try:
            here = is_here(profile)
            found = clocks.here(made) if here else _estimate(profile, support, made, clocks.anchors, clocks.ratio)
        except CannotEstimateError as error:
            why = error.what
    return Candidate(
        recipe=made.recipe.name,
        format=made.recipe.format,
        precision=made.recipe.precision,
        size_bytes=len(made.artifact.data) if made.artifact else 0,
        fidelity=made.fidelity,
        estimate=found,
        failed=made.failed,
        advice=made.advice,
        why_no_estimate=why,
        memory_bytes=memory,
        missing_extra=made.missing_extra,
        barriers=barriers_there(profile, support, made),
    )


def is_here(profile: Profile, machine: str | None = None) -> bool:
    """Whether this machine's times are the board's: only if its profile is `measured_here`."""
    machine = (machine or platform.machine()).lower()
    return profile.measured_here and {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine) == profile.arch


def timer(
    subject: BuildSubject,
    store: StageStore,
    made: Sequence[RecipeResult],
    load: Callable[[], MachineLoad] = MachineLoad,
) -> Callable[[RecipeResult], Estimate]:
    """A clock that times all artifacts on this machine at first use, under one load.

    Cached for a build of the same artifacts, unless the machine was busy."""
    existing = {one.sha256: one.artifact for one in made if one.artifact is not None}

    def fits(stored: dict[str, tuple[float, float]]) -> bool:
        return stored.keys() == existing.keys() and all(
            0 < p50_ms <= p95_ms < math.inf for p50_ms, p95_ms in stored.values()
        )

    @cache
    def times() -> dict[str, Estimate]:
        name = key("times alone", sorted(existing), _machine(), to_json(subject.contract))
        known = get_json(store, name, dict[str, tuple[float, float]], fits)
        if known is None:
            (example,) = subject.sets.evaluation.pick([0])
            seen, taken = load(), {}
            seen.look()
            for sha256, artifact in existing.items():
                taken[sha256] = measure_ms(artifact, subject.contract, example)
                seen.look()
            if why := seen.why or _spread(taken.values()):
                return {sha256: _timed_beside_others(each, seen.share, why) for sha256, each in taken.items()}
            known = {sha256: (each.p50_ms, each.p95_ms) for sha256, each in taken.items()}
            put_json(store, name, known)
        return {sha256: measured_estimate(*each) for sha256, each in known.items()}

    def timed(one: RecipeResult) -> Estimate:
        return replace(times()[one.sha256], source=f"{pick(one.recipe.format)} on this machine")

    return timed


def _spread(taken: Iterable[EngineTimes]) -> str:
    """How far apart the runs of one artifact are; "" if within a machine's usual spread."""
    widest = max((each.p95_ms / each.p50_ms for each in taken), default=1.0)
    return f"one run in twenty took {widest:.1f} times the middle one" if widest > _WIDE else ""


def _timed_beside_others(taken: EngineTimes, share: float, why: str) -> Estimate:
    """A range from the processor time to what it took.

    An engine with its own threads shows no processor time here; then the share of a core counts.
    """
    alone = taken.own_ms if taken.own_ms > _ELSEWHERE * taken.p50_ms else share * taken.p50_ms
    middle = min(alone, taken.p50_ms)
    note = (
        f"this machine was busy ({why}): alone it takes about {milliseconds(middle)} ms, and it took up to "
        f"{milliseconds(taken.p95_ms)} ms. Nothing is refused for that, and the next build times it again"
    )
    return Estimate(min(middle, taken.least_ms), middle, taken.p95_ms, "measured", notes=(note,), busy=True)


def workstation(store: StageStore, made: Sequence[RecipeResult]) -> Callable[[RecipeResult], HostTimes | None]:
    """A clock that times artifacts and MobileNetV1 in one run, at first use; cached."""
    fit = [one for one in made if one.artifact and not can_time_here(one.recipe.format, one.recipe.precision)]

    def taken() -> dict[str, HostTimes]:
        artifacts = [(one.recipe.format, one.artifact.data, one.recipe.precision) for one in fit if one.artifact]
        return {one.sha256: times for one, times in zip(fit, time_here(artifacts), strict=True)}

    def fits(stored: dict[str, HostTimes]) -> bool:
        measured = [ms for each in stored.values() for ms in (each.ms, each.reference_ms)]
        return stored.keys() == {one.sha256 for one in fit} and all(0 < ms < math.inf for ms in measured)

    @cache
    def times() -> dict[str, HostTimes]:
        name = key("workstation", sorted(one.sha256 for one in fit), _machine())
        try:
            return cached_json(store, name, dict[str, HostTimes], taken, fits)
        except EdgekitError:  # an input of any size, a busy machine, an engine that refuses what another takes
            return {}

    return lambda one: times().get(one.sha256) if one in fit else None


def _machine() -> str:
    """Identifies the machine that a time belongs to."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            model = next((line for line in file if line.startswith(("model name", "CPU part"))), "")
    except OSError:
        model = platform.processor()
    return json.dumps([platform.node(), platform.machine(), model.strip(), os.cpu_count()])


def _estimate(
    profile: Profile,
    support: Sequence[RuntimeSupport],
    made: RecipeResult,
    anchors: Sequence[AnchorFile],
    ratio: Callable[[RecipeResult], HostTimes | None] = lambda made: None,
) -> Estimate | None:
    """With the board's engine; None if it has none. Raises CannotEstimateError."""
    engine = next((s.engine for s in support if s.ok and s.format == made.recipe.format), None)
    if engine is None or made.artifact is None:
        return None
    precision = made.recipe.precision
    if precision == "int8" and precision_of(made.recipe.format, made.artifact.data) == "float32":
        precision = "float32"  # most of the work is
    if precision not in ("float32", "int8", "dynamic"):
        raise CannotEstimateError(f"nothing was timed of {precision} on boards", where=profile.name)
    work = read_workload(made.recipe.format, made.artifact.data, precision)
    known = EstimateEvidence(anchors=anchors_for(profile, anchors))
    if has_anchor(profile, work, engine, known.anchors):
        known = EstimateEvidence(ratio(made), known.anchors)
    return estimate(profile, work, engine, known=known)


_WIDE, _ELSEWHERE = 3.0, 0.02
_LEAST_P99_MS = 1.0
"""Below this, the system's scheduler and not the model decides the 99th percentile."""
HEADROOM = 1.25
"""Factor on promised memory: other engine versions and processors take a little more."""
LEAST_SPARE = 1.15
"""An estimate with less than this factor above the measurement is too small."""
STEP_MB = 16
"""A measured promise is rounded up to this, so that two builds rarely differ."""
_ANSWERS, _MOST_S, _LEAST = 20, 2.0, 3
_FIGURES = ("low_ms", "mid_ms", "high_ms")


def lasting_json(found: Estimate | None) -> dict[str, Any] | None:
    """As `--json` prints it. Raises ValueError if it rests on times of the workstation."""
    record = estimate_json(found)
    if record is None:
        return None
    if record.pop("host", None) is not None:
        raise ValueError("the estimate rests on times of this machine")
    return record | {name: _rounded(record[name]) for name in _FIGURES}


def promise_of(budget_ms: float | None, estimate: Mapping[str, Any] | None) -> Promise | None:
    """The latency that the board must keep.

    Nine in ten boards keep an estimate's upper end at the median; without a budget it stands for the 99th percentile
    too, from a millisecond up."""
    high = None if estimate is None else float(estimate["high_ms"])
    p99 = budget_ms if budget_ms is not None else None if high is None else max(high, _LEAST_P99_MS)
    p50 = None if high is None or p99 is None else min(high, p99)
    return None if p99 is None else Promise(p50, p99)


def with_memory(
    draft: BundleDraft,
    manifest: Manifest,
    estimated: Mapping[str, int | None],
    store: StageStore,
    secret: Secret | None = None,
) -> Manifest:
    """Add each artifact's memory on each board engine. estimated: recipe -> bytes."""
    ask = _InstallMeasurement(draft, manifest, store, secret)
    on_boards = {wheel.engine for wheel in wheels()}
    entries = []
    for entry in manifest.artifacts:
        if entry.role == "batch":
            entries.append(entry)
            continue
        found = {
            name: allowance_mb(estimated.get(entry.recipe), draft.size, ask.peak_mb(entry, name))
            for name, kind in ENGINES.items()
            if entry.format in kind.formats and name in on_boards
        }
        memory = {name: figure for name, figure in found.items() if figure is not None}
        entries.append(replace(entry, memory_mb=memory or None))
    most = max((figure for entry in entries for figure in (entry.memory_mb or {}).values()), default=None)
    promise = manifest.promise if most is None else replace(manifest.promise or Promise(), peak_mb=most)
    return replace(manifest, artifacts=tuple(entries), promise=promise)


def allowance_mb(estimated: int | None, bundle_bytes: int, measured_mb: float | None) -> float | None:
    """MB that a process may take. estimated: bytes of the model and the process, from its file."""
    # While a bundle is opened it is in memory twice: as it was read, and blob by blob
    by_file = 0.0 if estimated is None else HEADROOM * (estimated + 2 * bundle_bytes) / 1e6
    if measured_mb is not None and LEAST_SPARE * measured_mb > by_file:
        return math.ceil(HEADROOM * measured_mb / STEP_MB) * STEP_MB
    return _rounded(by_file) if by_file else None


@dataclass(frozen=True)
class _Peak:
    mb: float | None

    def is_possible(self) -> bool:
        return self.mb is None or 0 < self.mb < math.inf


@dataclass(frozen=True)
class _InstallMeasurement:
    """The trial of an install for each artifact and engine, cached."""

    draft: BundleDraft
    manifest: Manifest
    store: StageStore
    secret: Secret | None

    def peak_mb(self, entry: ArtifactEntry, engine: str) -> float | None:
        """None if it cannot run here."""
        version = available().get(engine)
        if version is None or not may_start():
            return None
        body = self.manifest.as_json()
        name = key(
            "memory", self.draft.digests, body["contract"], entry.blob, engine, version, self.manifest.target.threads
        )
        return cached_json(self.store, name, _Peak, lambda: _Peak(self._measured(entry, engine)), _Peak.is_possible).mb

    def _measured(self, entry: ArtifactEntry, engine: str) -> float | None:
        with TemporaryDirectory(prefix="edgekit-") as folder:
            path = Path(folder) / "bundle.ekb"
            write_bundle(path, self.draft, self.manifest)

            def run(*arguments: Any, env: Mapping[str, str], **others: Any) -> subprocess.CompletedProcess[str]:
                return run_child(*arguments, env={**env, "EDGEKIT_STATE_DIR": folder}, **others)

            how = TrialOptions(_ANSWERS, _MOST_S, _LEAST, recipe=entry.recipe, engine=engine, run=run)
            bundle = read_bundle(path, secret=self.secret)
            with contextlib.suppress(EdgekitError):  # the file alone decides if it does not run here
                seen = prove("trial", replace(bundle, manifest=replace(bundle.manifest, promise=None)), how).seen
                return seen.peak_mb if seen is not None else None
        return None


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


_SAMPLES = 10  # items that layers are compared on
_WORST = 6  # layers with histograms


def evidence(made: RecipeResult, subject: BuildSubject, workspace: Workspace, progress: Progress) -> dict[str, Any]:
    """The candidate's part of the report besides its size and fidelity; null for infinity."""
    artifact = made.artifact
    assert artifact is not None
    record: dict[str, Any] = {"plan": to_json(artifact.plan), "layers": [], "causes": [], "histograms": []}
    if made.recipe.needs_calibration:
        sets = (subject.sets.calibration_digest, subject.sets.evaluation_digest)
        name = key("layers", made.sha256, made.recipe.format, subject.source.sha256, *sets)
        compared = partial(_layers, made, subject, workspace, progress)
        record |= cached_json(subject.store, name, _LayerEvidence, compared, _LayerEvidence.is_possible).as_json()
    record["disagreements"] = shown(made.differing, subject.sets.evaluation, subject.contract)
    return record


@dataclass(frozen=True)
class _LayerCause:
    """A `Cause`, with evidence of any kind."""

    layer: str
    code: str
    what: str
    evidence: dict[str, Any]
    remedy: str
    loss_db: float
    float_layers: tuple[str, ...]


@dataclass(frozen=True)
class _LayerEvidence:
    """set, items: what the layers were compared on. unexplained: why they were not, else ""."""

    set: str = ""
    items: int = 0
    layers: tuple[LayerError, ...] = ()
    causes: tuple[_LayerCause, ...] = ()
    histograms: tuple[LayerHistogram, ...] = ()
    unexplained: str = ""

    def is_possible(self) -> bool:
        return self.items >= 0 and all(
            len(one.edges) == len(one.original) + 1 == len(one.quantized) + 1
            and all(low <= high for low, high in pairwise(one.edges))
            and math.isfinite(one.edges[0] + one.edges[-1])
            for one in self.histograms
        )

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "layers": [finite(asdict(error)) for error in self.layers],
            "causes": [finite(asdict(cause)) for cause in self.causes],
            "histograms": [
                finite({"layer": h.layer, "edges": h.edges, "original": h.original, "artifact": h.quantized})
                for h in self.histograms
            ],
        }
        if self.unexplained:
            return shown | {"unexplained": self.unexplained}
        return shown | {"layers_from": {"set": self.set, "items": self.items}}


def _layers(made: RecipeResult, subject: BuildSubject, workspace: Workspace, progress: Progress) -> _LayerEvidence:
    """Layer by layer against the float file of the same format, equalised if the artifact is."""
    artifact, form = made.artifact, made.recipe.format
    assert artifact is not None

    def said(stage: str, done: int, total: int | None) -> None:
        progress(f"{made.recipe.name} {stage}", done, total)

    try:
        steps = tuple(step for step in artifact.plan.steps if step == "equalise")
        original = workspace.ground(form, steps).graph if steps else workspace.graph(form)
        answer = open_graph(form, artifact.data)
        items, feeds = _items(subject, workspace, form)
        calibrated = workspace.ground(form, steps).statistics.ranges("minmax")
        case = examine(original, answer, feeds, _SAMPLES, said, calibrated)
        errors, causes = case.errors, explain(case)
        histograms = layer_histograms(original, answer, feeds, worst(errors, _WORST), limit=_SAMPLES)
    except (EdgekitError, ValueError, KeyError, IndexError) as error:
        return _LayerEvidence(unexplained=str(error) or type(error).__name__)
    described = tuple(_LayerCause(**vars(cause) | {"evidence": dict(cause.evidence)}) for cause in causes)
    return _LayerEvidence(items, len(feeds), tuple(errors), described, tuple(histograms))


def _items(subject: BuildSubject, workspace: Workspace, form: str) -> tuple[str, list[list[NDArray[Any]]]]:
    """The set that layers are compared on, and items spread over it, for the float file.

    It is the evaluation set, because calibration items do not show all damage; a stateful model has states for
    calibration samples only."""
    if subject.contract.state != "none":
        return "calibration", list(islice(workspace.feeds(form), _SAMPLES))
    evaluation = subject.sets.evaluation
    count = min(_SAMPLES, len(evaluation))
    chosen = Subset(evaluation, [(2 * place + 1) * len(evaluation) // (2 * count) for place in range(count)])
    samples = SourceSamples(chosen, subject.contract, subject.source)
    return "evaluation", list(islice(workspace.feeds(form, samples), _SAMPLES))


def finite(value: Any) -> Any:
    """The value with None for what is not finite, and lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
