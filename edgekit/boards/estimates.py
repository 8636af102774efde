"""The estimate of one artifact for one board, with its layers; or a bench record instead.

    answered = answer(subject, load("raspberry-pi-4"), EstimateOptions())
    answered.estimate.high_ms if answered.estimate else answered.refused

Rules:
- a record of `edgekit bench` of this artifact on that board is `measured` and precedes every estimate;
- a record proves its board by `conditions.board`, never by the bundle's profile; one without it is refused, as is one
  with more than a tenth of failed requests, and one that fits nothing that was requested;
- the engine is the board's unless another is named;
- a layer's time is its share of the roofline of the estimate's middle: the order of layers is more certain than their
  times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from edgekit.bench.compare import RecordError, read_record
from edgekit.bench.conditions import board as described
from edgekit.bench.conditions import facts_of
from edgekit.boards.subject import EstimateSubject
from edgekit_profiles import (
    CannotEstimateError,
    Estimate,
    EstimateEvidence,
    HostTimes,
    Profile,
    installable,
    layer_terms,
    measured_estimate,
)
from edgekit_profiles.anchors import AnchorFile, anchors_for
from edgekit_profiles.catalogue import Catalogue, built_in
from edgekit_profiles.detect import stands_for
from edgekit_profiles.errors import AnchorError
from edgekit_profiles.estimate import DOMINATED, estimate
from edgekit_profiles.facts import BoardFacts
from edgekit_runtime.engines.registry import ENGINES

_FEW = 5
_FAILED = 0.1
_OTHERS = 0.2
"""Share of the cores above which a note mentions other processes."""
_AGAIN = "Measure again on the board: edgekit bench BUNDLE -o RECORD.json"


def open_record(path: Path) -> dict[str, Any]:
    """Raises RecordError for any other file, and for impossible figures."""
    record = read_record(path)
    figures = [record.get(name) for name in ("min_ms", "p50_ms", "p95_ms")]
    times = [float(ms) for ms in figures if isinstance(ms, (int, float)) and not isinstance(ms, bool)]
    n, requests, errors = record.get("n"), record.get("asked"), record.get("errors") or {}
    why = ""
    if type(n) is not int or n < 1 or len(times) < 3:
        why = "has no timings: none of its requests succeeded"
    else:
        counts = list(errors.values()) if isinstance(errors, dict) else []
        sound = isinstance(errors, dict) and all(type(count) is int and count >= 0 for count in counts)
        failed = sum(counts) if sound else n
        least, middle, high = times
        if failed > _FAILED * max(n + failed, requests if type(requests) is int else 0):
            why = f"is mostly errors: {failed} of {n + failed} requests failed"
        elif not (0 < least <= middle <= high and math.isfinite(high)):
            why = f"has impossible timings: least {least:g}, median {middle:g}, 95th percentile {high:g} ms"
    if why:
        raise RecordError(why, where=str(path), do=_AGAIN)
    return record


def board_of(record: Mapping[str, Any]) -> BoardFacts | None:
    return facts_of((record.get("conditions") or {}).get("board"))


def is_of(board: BoardFacts | None, profile: Profile, catalogue: Catalogue | None = None) -> bool:
    """Whether a board is the profile's; `measured_here` profiles are of this machine alone."""
    if board is None:
        return False
    if profile.measured_here:
        here = facts_of(described())
        return here is not None and _without_clocks(here) == _without_clocks(board)
    return stands_for(profile, board, catalogue or built_in())


def _without_clocks(board: BoardFacts) -> tuple[Any, ...]:
    cores = tuple((cluster.type, cluster.count) for cluster in board.clusters)
    return board.model, board.compatible, board.machine, cores


def cautions(record: Mapping[str, Any]) -> Iterator[str]:
    """Conditions of a record that a reader must know."""
    during = (record.get("conditions") or {}).get("during") or {}
    load = record.get("load") or {}
    if during.get("throttled"):
        yield f"the board was slowed down meanwhile: {', '.join(map(str, during.get('throttled_by') or []))}"
    others = during.get("others_cpu")
    if isinstance(others, (int, float)) and others > _OTHERS:
        yield f"other processes took {others:.0%} of the cores meanwhile: an idle board is faster"
    callers = load.get("concurrency")
    if type(callers) is int and callers > 1:
        yield f"{callers} callers asked at once: the times include waiting for each other"
    if failed := sum((record.get("errors") or {}).values()):
        yield f"{failed} requests failed and are in no figure"


class Misfit(NamedTuple):
    """Why a record does not fit. apart: how far it is from fitting."""

    apart: int
    why: str
    do: str


def misfit_of(
    record: Mapping[str, Any],
    subject: EstimateSubject,
    result: EstimateResult,
    profile: Profile,
    catalogue: Catalogue | None,
) -> Misfit | None:
    """Why a record is not of this artifact, run like this, on that board; None if it is."""
    if record.get("artifact_sha256") not in (subject.sha256, subject.blob or subject.sha256):
        of = f"{record.get('recipe') or 'unnamed'} of {Path(str(record.get('bundle'))).name}"
        return Misfit(3, f"is of another artifact ({of})", "Pass the bundle that it was taken with")
    if (record.get("engine"), record.get("threads")) != (result.engine, result.threads):
        ran, wanted = _run(record.get("engine"), record.get("threads")), _run(result.engine, result.threads)
        do = "Name what was run: --runtime ENGINE --threads N"
        return Misfit(2, f"was taken with {ran}, and what is asked for is {wanted}", do)
    board = board_of(record)
    if board is None:
        return Misfit(1, "does not say on which board it was taken", f"It is of an earlier edgekit. {_AGAIN}")
    if not is_of(board, profile, catalogue):
        do = "Omit it, or name its board: --profile NAME"
        cores = f"a machine with {board.clusters[0].type} cores" if board.clusters else "an unnamed machine"
        name = f"{board.model or cores}{f' ({board.machine})' if board.machine else ''}"
        return Misfit(0, f"was taken on {name}, which is not {profile.name}", do)
    return None


def _run(engine: object, threads: object) -> str:
    return f"{engine} and {threads} thread{'' if threads == 1 else 's'}"


def refuse_unused(
    records: Sequence[tuple[Path, Mapping[str, Any]]],
    asked: Sequence[tuple[EstimateSubject, EstimateResult, Profile]],
    catalogue: Catalogue | None = None,
) -> None:
    """Raises RecordError, with the nearest reason, for a record that no answer used."""
    for path, record in records:
        misfits = [misfit_of(record, subject, result, profile, catalogue) for subject, result, profile in asked]
        found = [misfit for misfit in misfits if misfit is not None]
        if found and len(found) == len(misfits):
            nearest = min(found)
            raise RecordError(nearest.why, where=str(path), do=nearest.do)


def refuse_unused_anchors(
    files: Sequence[AnchorFile], asked: Sequence[tuple[EstimateSubject, EstimateResult, Profile]]
) -> None:
    """Raises AnchorError for a file without a time of any requested engine and precision.
    Other threads are a note of the answer."""
    wanted = list(dict.fromkeys((result.engine, subject.precision) for subject, result, _ in asked))
    for file in files:
        held = list(dict.fromkeys((one.engine, one.precision) for one in file.times))
        if wanted and not set(wanted) & set(held):
            words = [", ".join(" ".join(pair) for pair in pairs) for pairs in (held, wanted)]
            what = f"holds times of {words[0]}, and what is asked for is {words[1]}"
            raise AnchorError(what, where=file.where, do="Omit it, or name its engine: --runtime ENGINE")


def unused_threads(files: Sequence[AnchorFile], profile: Profile, run: tuple[str, str, int]) -> Iterator[str]:
    """A note for each file of the board with this engine and precision at other threads."""
    engine, precision, threads = run
    for file in files:
        if not anchors_for(profile, [file]):
            continue
        held = sorted({one.threads for one in file.times if (one.engine, one.precision) == (engine, precision)})
        if held and threads not in held:
            have = " and ".join(map(str, held))
            yield (
                f"{Path(file.where).name} was not used: it holds {engine} {precision} with {have} "
                f"thread{'' if held == [1] else 's'}, and {threads} {'is' if threads == 1 else 'are'} asked for"
            )


@dataclass(frozen=True)
class LayerTime:
    """ms: of the estimate's middle. share: 0 to 1. bound_by: what takes longest, in words."""

    name: str
    kind: str
    macs: int
    ms: float
    share: float
    bound_by: str


@dataclass(frozen=True)
class EstimateResult:
    """estimate: None with the reason in refused. layers: in the file's order, empty if unknown."""

    subject: str
    profile: str
    engine: str
    threads: int
    estimate: Estimate | None
    layers: tuple[LayerTime, ...] = ()
    refused: CannotEstimateError | None = None

    def shown(self, every: bool) -> Sequence[LayerTime]:
        """All layers in the file's order, or the slowest ones, slowest first."""
        return self.layers if every else sorted(self.layers, key=lambda layer: -layer.ms)[:_FEW]

    def as_json(self, every_layer: bool) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "profile": self.profile,
            "engine": self.engine or None,
            "threads": self.threads,
            "estimate": asdict(self.estimate) if self.estimate else None,
            "layers": [asdict(layer) for layer in self.shown(every_layer)],
            "refused": self.refused.as_json() if self.refused else None,
        }


_KINDS = {
    "pw": "1x1 convolution", "c3": "3x3 convolution", "cx": "convolution", "dw": "depthwise", "fc": "dense",
    "ew": "elementwise",
}  # fmt: skip


@dataclass(frozen=True)
class EstimateOptions:
    """engine, threads: None for the board's
    host: times taken now, preferred to the bundle's
    records: of `edgekit bench`, with their files
    catalogue: profiles that a record's board may be; None for the built-in ones
    """

    engine: str | None = None
    threads: int | None = None
    host: HostTimes | None = None
    anchors: Sequence[AnchorFile] = ()
    records: Sequence[tuple[Path, Mapping[str, Any]]] = ()
    catalogue: Catalogue | None = None


def answer(subject: EstimateSubject, profile: Profile, given: EstimateOptions) -> EstimateResult:
    """The estimate, or the reason for its absence."""
    threads = profile.threads if given.threads is None else given.threads
    installed = next((s.engine for s in installable(profile) if s.ok and s.format == subject.format), None)
    such = next((name for name, kind in ENGINES.items() if subject.format in kind.formats), None)
    engine = given.engine or installed or (such if profile.kind == "phone" else None)  # an app brings its own
    result = EstimateResult(subject.name, profile.name, engine or "", threads, None)
    try:
        if engine is None:
            reasons = dict.fromkeys(s.reason for s in installable(profile) if s.format == subject.format)
            what = f"no engine for {subject.format} installs on {profile.name}: {'; '.join(reasons)}"
            do = f"Where you have one there all the same, as in a container, name it: --runtime {such}"
            raise CannotEstimateError(what, where=subject.name, do=do)
        fitting = ((p, r) for p, r in given.records if not misfit_of(r, subject, result, profile, given.catalogue))
        measured_there = next(fitting, None)
        if measured_there is not None:
            found = measured_by_record(measured_there[1], measured_there[0].name)
        else:
            known = EstimateEvidence(given.host or subject.host, anchors_for(profile, given.anchors))
            found = estimate(profile, subject.workload, engine, threads=threads, known=known)
            notes = tuple(unused_threads(given.anchors, profile, (engine, subject.precision, threads)))
            found = replace(found, notes=(*found.notes, *notes))
    except CannotEstimateError as error:
        return replace(result, refused=error)
    try:
        work = subject.workload
        parts = layer_terms(profile, work, engine, threads)
    except CannotEstimateError:  # a measured time of what the roofline does not know
        return replace(result, estimate=found)
    total, layers = sum(sum(part.values()) for part in parts), []
    for place, (op, part) in enumerate(zip(work.ops, parts, strict=True)):
        cost = sum(part.values())
        bound_by = DOMINATED[max(part, key=lambda term, part=part: part[term])]  # type: ignore[misc]
        name = op.name or f"operation {place}"
        layers.append(LayerTime(name, _KINDS[op.kind], op.macs, found.mid_ms * cost / total, cost / total, bound_by))
    return replace(result, estimate=found, layers=tuple(layers))


def measured_by_record(record: Mapping[str, Any], source: str) -> Estimate:
    """The latency in a record of `edgekit bench`, of whole requests."""
    stage = (record.get("stages_ms") or {}).get("engine")
    of_it = f"; the engine alone {stage:.3g} ms" if isinstance(stage, (int, float)) else ""
    least, middle, high = (float(record[name]) for name in ("min_ms", "p50_ms", "p95_ms"))
    basis = f"{record['n']} requests with {record['engine']} {record['engine_version']}, {source}{of_it}"
    return replace(measured_estimate(middle, high, min_ms=least, source=basis), notes=tuple(cautions(record)))
