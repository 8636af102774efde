"""Every recipe carried out once, measured once; then looked at from each board."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgekit.building.data import Sets
from edgekit_converters import calibration, fidelity, targets, workload
from edgekit_converters.choose import Candidate
from edgekit_converters.fidelity import Fidelity, Reference
from edgekit_converters.progress import Progress
from edgekit_converters.sources import SourceModel
from edgekit_converters.targets import Artifact, Recipe
from edgekit_profiles import CannotEstimateError, Estimate, Profile, RuntimeSupport, estimate, measured
from edgekit_runtime.contract import Contract
from edgekit_runtime.engines import pick
from edgekit_runtime.errors import EdgekitError

__all__ = ["Made", "candidates", "make"]


ALIKE = 0.99
"""The least mean cosine of a float32 artifact: it only rounds otherwise, so anything below is another network."""


@dataclass(frozen=True)
class Made:
    """One recipe's outcome: the artifact and how far it drifted, or why there is none."""

    recipe: Recipe
    artifact: Artifact | None
    fidelity: Fidelity | None
    failed: str | None


@dataclass(frozen=True)
class Subject:
    """What every recipe is made from and compared with."""

    source: SourceModel
    contract: Contract
    sets: Sets
    reference: Reference


def make(subject: Subject, recipes: Sequence[Recipe], progress: Progress) -> list[Made]:
    """Convert and compare; a recipe that fails is a reason, never the end of the build."""
    return [_make(subject, recipe, progress) for recipe in recipes]


def _make(subject: Subject, recipe: Recipe, progress: Progress) -> Made:
    sets, samples = subject.sets, None
    if recipe.needs_calibration:
        if sets.calibration is None:
            return Made(recipe, None, None, "int8 needs representative data: give --calibration")
        samples = calibration.source_samples(sets.calibration, subject.contract, subject.source)

    def converting(stage: str, done: int, total: int | None) -> None:
        progress(f"{recipe.name} {stage}", done, total)

    try:
        artifact = targets.convert(subject.source, recipe, samples, converting)
        evaluation = fidelity.Evaluation(subject.contract, sets.evaluation, held_out=sets.held_out)
        found = fidelity.compare(subject.reference, artifact, evaluation, progress)
    except EdgekitError as error:
        return Made(recipe, None, None, str(error))
    if recipe.precision == "float32" and found.cosine < ALIKE:
        return Made(recipe, None, None, _unlike(found))
    return Made(recipe, artifact, found, None)


def _unlike(found: Fidelity) -> str:
    return (
        f"it is float32 and yet does not answer what the original does: cosine {found.cosine:.4f} on {found.items} items, "
        f"where {ALIKE} is the least; the conversion is wrong for this model"
    )


def candidates(
    profile: Profile, support: Sequence[RuntimeSupport], made: Sequence[Made], timed: Callable[[Made], Estimate]
) -> list[Candidate]:
    """The same artifacts as this board sees them: with its estimate, or this machine's time where it *is* the board."""
    return [_candidate(profile, support, m, timed if is_here(profile) else None) for m in made]


def _candidate(
    profile: Profile, support: Sequence[RuntimeSupport], made: Made, timed: Callable[[Made], Estimate] | None
) -> Candidate:
    found: Estimate | None = None
    why = ""
    if made.artifact is not None:
        try:
            found = timed(made) if timed is not None else _estimate(profile, support, made)
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
        why_no_estimate=why,
    )


def is_here(profile: Profile, machine: str | None = None) -> bool:
    """Whether a time taken on this machine is a time on the board: only for a profile that says `measured_here`."""
    machine = (machine or platform.machine()).lower()
    return profile.measured_here and {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine) == profile.arch


def timer(subject: Subject) -> Callable[[Made], Estimate]:
    """Times each artifact on this machine at most once."""
    times: dict[str, Estimate] = {}
    (example,) = subject.sets.evaluation.pick([0])

    def timed(made: Made) -> Estimate:
        assert made.artifact is not None
        if made.recipe.name not in times:
            p50_ms, p95_ms = fidelity.measure_ms(made.artifact, subject.contract, example)
            times[made.recipe.name] = measured(p50_ms, p95_ms, source=f"{pick(made.recipe.format)} on this machine")
        return times[made.recipe.name]

    return timed


def _estimate(profile: Profile, support: Sequence[RuntimeSupport], made: Made) -> Estimate | None:
    """With the engine that the board will have; None where it has none. Raises CannotEstimateError."""
    engine = next((s.engine for s in support if s.ok and s.format == made.recipe.format), None)
    if engine is None or made.artifact is None:
        return None
    work = workload.read_workload(made.recipe.format, made.artifact.data, made.recipe.precision)
    return estimate(profile, work, engine)
