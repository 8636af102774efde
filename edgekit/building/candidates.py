"""What was made, as each board sees it: with its latency there, estimated, or timed where this machine is the board.

    seen = candidates(profile, support, made, Clocks(timer(subject, store, made), workstation(store, made)))

Rules: what carries over to boards is timed on this machine once for all of them, and only where a board's MobileNetV1 is
known, without which a ratio to it means nothing; a file that cannot be timed here costs the estimate its ratio, no more.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from edgekit.building.kept import key
from edgekit.building.making import Made
from edgekit.building.subject import Subject
from edgekit.estimating import can_time_here, time_here
from edgekit_converters import fidelity, workload
from edgekit_converters.choose import Candidate
from edgekit_converters.needs import Barrier, Runtime, barriers, read_needs
from edgekit_converters.store import Store, kept_json
from edgekit_profiles import (
    CannotEstimateError,
    Estimate,
    HostTimes,
    Known,
    Profile,
    RuntimeSupport,
    estimate,
    has_anchor,
    measured,
)
from edgekit_profiles.anchor_file import AnchorFile, anchors_for
from edgekit_runtime.bundle.codec import to_json
from edgekit_runtime.engines import pick
from edgekit_runtime.errors import EdgekitError

__all__ = [
    "Clocks",
    "barriers_there",
    "candidates",
    "is_here",
    "lasting_estimate",
    "runtime_of",
    "timer",
    "workstation",
]


@dataclass(frozen=True)
class Clocks:
    """What is known of an artifact's time. here: on this machine, where that is the board. ratio: against MobileNetV1 on
    this machine, None where it cannot be had. anchors: files that were measured on boards."""

    here: Callable[[Made], Estimate]
    ratio: Callable[[Made], HostTimes | None] = lambda made: None
    anchors: Sequence[AnchorFile] = ()


def candidates(
    profile: Profile, support: Sequence[RuntimeSupport], made: Sequence[Made], clocks: Clocks
) -> list[Candidate]:
    """The same artifacts as this board sees them: with its estimate, or this machine's time where it *is* the board."""
    variants = {one.variant_of: one.recipe.name for one in made if one.variant_of and one.artifact is not None}
    seen = [_candidate(profile, support, m, clocks) for m in made]
    return [replace(one, variant=variants.get(one.recipe, "")) for one in seen]


def barriers_there(profile: Profile, support: Sequence[RuntimeSupport], made: Made) -> tuple[Barrier, ...]:
    """What the runtime that the board will have stumbles over in an artifact; nothing where it has none."""
    runtime = runtime_of(profile, support, made.recipe.format)
    if runtime is None or made.artifact is None:
        return ()
    return barriers(read_needs(made.recipe.format, made.artifact.data), runtime)


def runtime_of(profile: Profile, support: Sequence[RuntimeSupport], format: str) -> Runtime | None:  # noqa: A002
    """The one that the board will use for a format: the first that installs."""
    found = next((one for one in support if one.ok and one.format == format), None)
    if found is None or found.version is None:
        return None
    delegate = os.environ.get("EDGEKIT_DELEGATE", "")
    return Runtime(found.engine, found.version, profile.arch, profile.core.type, delegate)


def lasting_estimate(
    profile: Profile, support: Sequence[RuntimeSupport], made: Made, anchors: Sequence[AnchorFile]
) -> Estimate | None:
    """What a bundle may say: of the file, the profile and what was measured on boards alone, so that another day's build
    says the same. No time of this machine is in it; None where nothing is left then."""
    try:
        return _estimate(profile, support, made, anchors)
    except CannotEstimateError:
        return None


def _candidate(profile: Profile, support: Sequence[RuntimeSupport], made: Made, clocks: Clocks) -> Candidate:
    found: Estimate | None = None
    memory: int | None = None
    why = ""
    if made.artifact is not None:
        memory = workload.memory_bytes(made.recipe.format, made.artifact.data)
        try:
            found = (
                clocks.here(made)
                if is_here(profile)
                else _estimate(profile, support, made, clocks.anchors, clocks.ratio)
            )
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
    """Whether a time taken on this machine is a time on the board: only for a profile that says `measured_here`."""
    machine = (machine or platform.machine()).lower()
    return profile.measured_here and {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine) == profile.arch


def timer(subject: Subject, store: Store, made: Sequence[Made]) -> Callable[[Made], Estimate]:
    """Times all artifacts on this machine one after the other, when the first is asked for: times of another day, when the
    machine did other work, are not compared with today's. Kept for a build of the very same artifacts.
    """
    existing = [one for one in made if one.artifact is not None]

    def taken() -> dict[str, tuple[float, float]]:
        (example,) = subject.sets.evaluation.pick([0])
        return {
            one.sha256: fidelity.measure_ms(one.artifact, subject.contract, example)
            for one in existing
            if one.artifact is not None
        }

    @cache
    def times() -> dict[str, tuple[float, float]]:
        name = key("times", sorted(one.sha256 for one in existing), _machine(), to_json(subject.contract))
        return kept_json(store, name, dict[str, tuple[float, float]], taken)

    def timed(one: Made) -> Estimate:
        p50_ms, p95_ms = times()[one.sha256]
        return measured(p50_ms, p95_ms, source=f"{pick(one.recipe.format)} on this machine")

    return timed


def workstation(store: Store, made: Sequence[Made]) -> Callable[[Made], HostTimes | None]:
    """Times what can be timed for boards and MobileNetV1 in one run, when the first is asked for. Kept for a build of the
    very same artifacts on this machine."""
    fit = [one for one in made if one.artifact and not can_time_here(one.recipe.format, one.recipe.precision)]

    def taken() -> dict[str, HostTimes]:
        asked = [(one.recipe.format, one.artifact.data, one.recipe.precision) for one in fit if one.artifact]
        return {one.sha256: times for one, times in zip(fit, time_here(asked), strict=True)}

    @cache
    def times() -> dict[str, HostTimes]:
        name = key("workstation", sorted(one.sha256 for one in fit), _machine())
        try:
            return kept_json(store, name, dict[str, HostTimes], taken)
        except EdgekitError:  # an input of any size, a busy machine, an engine that refuses what another takes
            return {}

    return lambda one: times().get(one.sha256) if one in fit else None


def _machine() -> str:
    """What a time belongs to: the processor, how much of it there is, and whose it is."""
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
    made: Made,
    anchors: Sequence[AnchorFile],
    ratio: Callable[[Made], HostTimes | None] = lambda made: None,
) -> Estimate | None:
    """With the engine that the board will have; None where it has none. Raises CannotEstimateError."""
    engine = next((s.engine for s in support if s.ok and s.format == made.recipe.format), None)
    if engine is None or made.artifact is None:
        return None
    precision = made.recipe.precision
    if precision not in ("float32", "int8", "dynamic"):
        raise CannotEstimateError(f"nothing was timed of {precision} on boards", where=profile.name)
    work = workload.read_workload(made.recipe.format, made.artifact.data, precision)
    known = Known(anchors=anchors_for(profile, anchors))
    if has_anchor(profile, work, engine, known.anchors):
        known = Known(ratio(made), known.anchors)
    return estimate(profile, work, engine, known=known)
