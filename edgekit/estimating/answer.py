"""The estimate of one artifact for one board, with everything that is known, and its layers.

    told = answer(subject, load("raspberry-pi-4"), Given())
    told.estimate.high_ms, told.layers[0].ms

Rules:
- a record of `edgekit bench` of this very artifact, taken on that board as the board itself told, is `measured` and goes before everything else;
- the engine is the one that the board would have, unless another is asked for;
- a layer's time is its part of the roofline, scaled so that the layers add up to the estimate's middle: which layer costs
  most is known better than what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.estimating.records import cautions, unfit, unused_threads
from edgekit.estimating.result import Answer, LayerTime
from edgekit.estimating.subject import Subject
from edgekit_profiles import (
    CannotEstimateError,
    Estimate,
    HostTimes,
    Known,
    Profile,
    estimate,
    installable,
    layer_terms,
    measured,
)
from edgekit_profiles.anchor_file import AnchorFile, anchors_for
from edgekit_profiles.catalogue import Catalogue
from edgekit_profiles.estimate import DOMINATED
from edgekit_runtime.engines import ENGINES

__all__ = ["Given", "answer", "measured_by"]

_KINDS = {
    "pw": "1x1 convolution", "c3": "3x3 convolution", "cx": "convolution", "dw": "depthwise", "fc": "dense", "ew": "elementwise",
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What the person gave. engine, threads: None for the board's. host: taken now, before what the bundle tells.
    records: of `edgekit bench`, with the files they are from. catalogue: of the profiles that a record's board may be; None
    for those that come with edgekit."""

    engine: str | None = None
    threads: int | None = None
    host: HostTimes | None = None
    anchors: Sequence[AnchorFile] = ()
    records: Sequence[tuple[Path, Mapping[str, Any]]] = ()
    catalogue: Catalogue | None = None


def answer(subject: Subject, profile: Profile, given: Given) -> Answer:
    """Never raises for what cannot be estimated: that is an answer."""
    threads = profile.threads if given.threads is None else given.threads
    engine = given.engine or _engine(profile, subject.format)
    asked = Answer(subject.name, profile.name, engine or "", threads, None)
    try:
        if engine is None:
            reasons = dict.fromkeys(s.reason for s in installable(profile) if s.format == subject.format)
            what = f"no engine for {subject.format} installs on {profile.name}: {'; '.join(reasons)}"
            such = next(name for name, kind in ENGINES.items() if subject.format in kind.formats)
            do = f"Where you have one there all the same, as in a container, name it: --runtime {such}"
            raise CannotEstimateError(what, where=subject.name, do=do)
        found = _measured(subject, profile, asked, given)
        if found is None:
            known = Known(given.host or subject.host, anchors_for(profile, given.anchors))
            found = estimate(profile, subject.workload, engine, threads=threads, known=known)
            notes = tuple(unused_threads(given.anchors, profile, (engine, subject.precision, threads)))
            found = replace(found, notes=(*found.notes, *notes))
        return replace(asked, estimate=found, layers=_layers(subject, profile, engine, threads, found))
    except CannotEstimateError as error:
        return replace(asked, refused=error)


def measured_by(record: Mapping[str, Any], source: str) -> Estimate:
    """Of one record of `edgekit bench`: the whole request as an application sees it, which is never less than the engine."""
    stage = (record.get("stages_ms") or {}).get("engine")
    of_it = f"; the engine alone {stage:.3g} ms" if isinstance(stage, (int, float)) else ""
    least, middle, high = (float(record[name]) for name in ("min_ms", "p50_ms", "p95_ms"))
    told = f"{record['n']} requests with {record['engine']} {record['engine_version']}, {source}{of_it}"
    return replace(measured(middle, high, min_ms=least, source=told), notes=tuple(cautions(record)))


def _engine(profile: Profile, format: str) -> str | None:  # noqa: A002
    return next((s.engine for s in installable(profile) if s.ok and s.format == format), None)


def _measured(subject: Subject, profile: Profile, asked: Answer, given: Given) -> Estimate | None:
    for path, record in given.records:
        if not unfit(record, subject, asked, profile, given.catalogue):
            return measured_by(record, path.name)
    return None


def _layers(subject: Subject, profile: Profile, engine: str, threads: int, found: Estimate) -> tuple[LayerTime, ...]:
    try:
        work = subject.workload
        parts = layer_terms(profile, work, engine, threads)
    except CannotEstimateError:  # a measured time of what the roofline does not know
        return ()
    total = sum(sum(part.values()) for part in parts)
    return tuple(
        LayerTime(
            op.name or f"operation {place}",
            _KINDS[op.kind],
            op.macs,
            found.mid_ms * sum(part.values()) / total,
            sum(part.values()) / total,
            DOMINATED[max(part, key=lambda term, part=part: part[term])],  # type: ignore[misc]
        )
        for place, (op, part) in enumerate(zip(work.ops, parts, strict=True))
    )
