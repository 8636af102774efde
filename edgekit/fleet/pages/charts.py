"""What the charts show, as plain lists for the page's script.

    device_series(row, rollups, events, since_ms)       # {"t": [...], "p99": [...], "stages": {...}, "marks": [...]}
    model_series(rollups)                               # {"1.2": {"t": [...], "p99": [...], "boards": [...]}}

Rule: milliseconds since 1970 and milliseconds; None where nothing was measured, so a line has a gap there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from edgekit.fleet.store import Event, FleetDevice, Rollup, quantiles
from edgekit_runtime.telemetry.histogram import Histogram

_NAMES = ("t", "p50", "p95", "p99", "rate", "temp")
_MARKED = ("install", "rollback", "trial")


def mean_ms(histogram: Histogram) -> float | None:
    """Within the buckets' own error: their middle stands for what is in them."""
    per_octave = 2.0**histogram.scale
    middle = {index: 2.0 ** ((index + 0.5) / per_octave) for index in histogram.buckets}
    n = histogram.zeros + sum(histogram.buckets.values())
    return sum(middle[index] * count for index, count in histogram.buckets.items()) / n if n else None


def device_series(
    row: FleetDevice, rollups: Sequence[Rollup], events: Sequence[Event] = (), since_ms: int = 0
) -> dict[str, Any]:
    """A point a roll-up, then one a window where the row still has them."""
    recent = [point for point in row.recent if point[0] >= since_ms]
    oldest = recent[0][0] if recent else None
    points: list[list[Any]] = [
        [r.start_ms + r.length_ms // 2, *r.quantiles(0.5, 0.95, 0.99), r.rate, r.temp]
        for r in rollups
        if oldest is None or r.start_ms + r.length_ms <= oldest
    ]
    points += recent
    columns = [list(column) for column in zip(*points, strict=True)] if points else [[] for _ in _NAMES]
    found = dict(zip(_NAMES, columns, strict=True))
    staged = [rollup for rollup in rollups if rollup.stages]
    order = ("input", "queue", "transfer", "inference", "output")
    names = [name for name in order if any(name in rollup.stages for rollup in staged)]
    means = {  # milliseconds of each stage, to be stacked
        name: [mean_ms(rollup.stages[name]) if name in rollup.stages else None for rollup in staged] for name in names
    }
    stages = {"t": [_middle(rollup) for rollup in staged], "mean": means}
    return {
        **found, "budget_ms": row.budget_ms, "stages": stages, "marks": _marks(rollups, events, since_ms),
        "rolled": _rolled(rollups), "errors": _errors(rollups),
    }  # fmt: skip


def _middle(rollup: Rollup) -> int:
    return rollup.start_ms + rollup.length_ms // 2


def _rolled(rollups: Sequence[Rollup]) -> dict[str, list[Any]]:
    """psi: the largest of a window.
    cpu, mem: too, percent.
    clipped: of the input values, percent; differed: of the host's answers that the device gave, too."""

    def percent(part: int, whole: int) -> float | None:
        return 100.0 * part / whole if whole else None

    return {
        "t": [_middle(one) for one in rollups],
        "psi": [one.psi for one in rollups],
        "clipped": [percent(one.clipped, one.values) for one in rollups],
        "differed": [percent(one.differed, one.compared) for one in rollups],
        "cpu": [one.cpu for one in rollups],
        "mem": [one.mem for one in rollups],
    }


_NO_CODE = "without a code"


def _errors(rollups: Sequence[Rollup]) -> dict[str, Any]:
    """How many by code, the most frequent first; nothing where there were none."""
    failed = [one for one in rollups if one.errors]
    counts = [{**one.error_codes, _NO_CODE: max(0, one.errors - sum(one.error_codes.values()))} for one in failed]
    sums: Counter[str] = Counter()
    for found in counts:
        sums.update(found)
    codes = {code: [found.get(code, 0) for found in counts] for code, n in sums.most_common() if n > 0}
    return {"t": [_middle(one) for one in failed], "codes": codes}


def _marks(rollups: Sequence[Rollup], events: Sequence[Event], since_ms: int) -> list[dict[str, Any]]:
    """Where another version began, and what was installed."""
    marks = [
        {"t": after.start_ms, "text": f"{after.model} {after.version}"}
        for before, after in pairwise(rollups)
        if (before.model, before.version) != (after.model, after.version)
    ]
    marks += [
        {"t": event.at_ms, "text": event.kind} for event in events if event.kind in _MARKED and event.at_ms >= since_ms
    ]
    return sorted(marks, key=lambda mark: mark["t"])


class VersionSummary:
    """One version on one profile over the whole time, beside the others."""

    def __init__(self, version: str, profile: str, rollups: Sequence[Rollup]) -> None:
        self.version, self.profile = version, profile
        self.boards = max((rollup.boards for rollup in rollups), default=0.0)
        sums = {
            name: sum(getattr(rollup, name) for rollup in rollups)
            for name in ("n", "errors", "over", "host", "hits", "misses")
        }
        self.n, self.errors, self.over = sums["n"], sums["errors"], sums["over"]
        self.host, self.hits, self.misses = sums["host"], sums["hits"], sums["misses"]
        self.p50, self.p95, self.p99 = _over_all(rollups)
        known = [rollup.psi for rollup in rollups if rollup.psi is not None]
        self.psi = max(known) if known else None


def compare(rollups: Iterable[Rollup]) -> list[VersionSummary]:
    """A line a version and profile, by name."""
    groups: dict[tuple[str, str], list[Rollup]] = {}
    for rollup in rollups:
        groups.setdefault((rollup.version, rollup.profile), []).append(rollup)
    return [VersionSummary(*key, group) for key, group in sorted(groups.items())]


def model_series(rollups: Iterable[Rollup]) -> dict[str, dict[str, list[Any]]]:
    """Of each version over all profiles."""
    versions: dict[str, dict[int, list[Rollup]]] = {}
    for rollup in rollups:
        versions.setdefault(rollup.version, {}).setdefault(rollup.start_ms, []).append(rollup)
    found: dict[str, dict[str, list[Any]]] = {}
    for version, moments in sorted(versions.items()):
        line = found[version] = {name: [] for name in ("t", "p50", "p95", "p99", "boards")}
        for start, group in sorted(moments.items()):
            p50, p95, p99 = _over_all(group)
            boards = round(sum(rollup.boards for rollup in group), 2)
            point = {"t": start + group[0].length_ms // 2, "p50": p50, "p95": p95, "p99": p99, "boards": boards}
            for name, value in point.items():
                line[name].append(value)
    return found


def _over_all(rollups: Sequence[Rollup]) -> list[float | None]:
    merged: dict[tuple[str, int], Histogram] = {}
    for rollup in rollups:
        for source, histogram in rollup.latency.items():
            key = (source, histogram.scale)
            if key not in merged:
                merged[key] = Histogram(scale=histogram.scale)
            merged[key].merge(histogram)
    return quantiles(
        {f"{source} {scale}": histogram for (source, scale), histogram in merged.items()}, (0.5, 0.95, 0.99)
    )
