"""Candidates of each board: what was made, with its latency and memory there.

    seen = candidates(profile, support, made, Clocks(timer(subject, store, made), workstation(store, made)))

Rules:
- this machine times once for all boards, and only if a board's MobileNetV1 time is known;
- a loop of fixed processor time shows which share of a core this thread gets; /proc/loadavg shows how many others run
  right now, because its averages would count this build's own conversions;
- times of a busy machine are marked as such, refuse nothing and are not cached.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from edgekit.boards.anchoring import can_time_here, time_here
from edgekit.building.build_subject import BuildSubject
from edgekit.building.data import key
from edgekit.building.making import RecipeResult
from edgekit_converters.choose import Candidate
from edgekit_converters.fidelity.compare import EngineTimes, measure_ms
from edgekit_converters.formats.needs import Barrier, Runtime, barriers, read_needs
from edgekit_converters.formats.workload import memory_bytes, precision_of, read_workload
from edgekit_converters.recipe.store import StageStore, cached_json, get_json, put_json
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
from edgekit_runtime.engines.registry import pick
from edgekit_runtime.system.errors import EdgekitError
from edgekit_runtime.system.strict_json import to_json

_WIDE, _ELSEWHERE = 3.0, 0.02
_LOOP_S = 0.02
_FAIR_SHARE = 0.9  # of a core; a quiet machine gives more than 98 %


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


class MachineLoad:
    """clock: wall time, seconds. share: least share of a core that was seen."""

    def __init__(
        self,
        loadavg: Path = Path("/proc/loadavg"),
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loadavg, self._cores, self._clock = loadavg, cores or os.cpu_count() or 1, clock
        self._others: list[int] = []
        self.share = 1.0

    def look(self) -> None:
        """Sample the load now; takes 20 ms of processor time."""
        self._others += self._running()
        began, own = self._clock(), time.thread_time()
        while (used := time.thread_time() - own) < _LOOP_S:
            pass
        self.share = min(self.share, used / max(used, self._clock() - began))

    @property
    def why(self) -> str:
        """Why the machine counts as busy, "" if it does not."""
        others = median(self._others) if self._others else 0
        if others >= self._cores:
            return f"{others:g} other processes wanted its {self._cores} cores"
        return f"it got {self.share:.0%} of a core" if self.share < _FAIR_SHARE else ""

    def _running(self) -> list[int]:
        try:
            running = self._loadavg.read_text().split()[3].partition("/")[0]
            return [max(0, int(running) - 1)]  # one of them is this thread
        except (OSError, IndexError, ValueError):
            return []


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
        f"this machine was busy ({why}): an answer takes about {milliseconds(middle)} ms alone, and took up to "
        f"{milliseconds(taken.p95_ms)} ms here. The time decided nothing, and the next build measures it again"
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
    if precision not in ("float32", "float16", "int8", "dynamic"):
        raise CannotEstimateError(f"nothing was timed of {precision} on boards", where=profile.name)
    work = read_workload(made.recipe.format, made.artifact.data, precision)
    known = EstimateEvidence(anchors=anchors_for(profile, anchors))
    if has_anchor(profile, work, engine, known.anchors):
        known = EstimateEvidence(ratio(made), known.anchors)
    return estimate(profile, work, engine, known=known)
