"""What the charts show, as plain lists for the page's script.

    device_series(row, rollups, events, since_ms)       # {"t": [...], "p99": [...], "stages": {...}, "marks": [...]}
    model_series(rollups)                               # {"1.2": {"t": [...], "p99": [...], "boards": [...]}}

Rule: milliseconds since 1970 and milliseconds; None where nothing was measured, so a line has a gap there.

What the address of a list says: the boards wanted, their order, the page.

Nothing of it is kept anywhere else.

asked = ListQuery.read({"state": "late", "sort": "-p99", "page": "2"})
asked.query                 # Query(state="late", sort="p99", descending=True, offset=100)
asked.link(state="hot")     # "?state=hot&sort=-p99": another filter begins at page 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlencode

from edgekit.fleet.pages.numbers import whole_number
from edgekit.fleet.store.store import GROUPS, SORTS, STATES, Event, FleetDevice, GroupBy, Query, Rollup, quantiles
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


PAGE = 100
_MOST_TEXT = 100
_HOUR_MS = 3600 * 1000
RANGES = {"1h": _HOUR_MS, "6h": 6 * _HOUR_MS, "1d": 24 * _HOUR_MS, "7d": 168 * _HOUR_MS, "14d": 336 * _HOUR_MS}
_EXACT = ("site", "group", "model", "version", "profile")
_WORDS = ("id", *_EXACT)
_ORDER = ("q", "state", *_EXACT, "by", "sort", "page")


@dataclass(frozen=True)
class ListQuery:
    """given: the parts that make sense, by name.
    by: what boards are grouped by, or None for a list of boards."""

    given: Mapping[str, str]
    page: int
    by: GroupBy | None

    @classmethod
    def read(cls, params: Mapping[str, str]) -> ListQuery:
        """What makes no sense is left out."""
        given = {name: params[name][:_MOST_TEXT] for name in _EXACT if name in params}
        if text := params.get("q", "")[:_MOST_TEXT]:
            given["q"] = text
        if (state := params.get("state", "")) in STATES:
            given["state"] = state
        if params.get("sort", "").removeprefix("-") in SORTS:
            given["sort"] = params["sort"]
        by = params.get("by") if params.get("by") in GROUPS else None
        page = max(1, whole_number(params.get("page", ""), 1))
        return cls(given, page, cast("GroupBy | None", by))

    @property
    def query(self) -> Query:
        sort = self.given.get("sort", "id")
        exact: dict[str, Any] = {name: self.given.get(name) for name in _EXACT}
        return Query(
            text=self.given.get("q", ""), state=self.given.get("state", ""), **exact, sort=sort.removeprefix("-"),
            descending=sort.startswith("-"), offset=(self.page - 1) * PAGE, limit=PAGE,
        )  # fmt: skip

    @property
    def narrowed(self) -> bool:
        """Whether it leaves boards out."""
        return any(name != "sort" for name in self.given)

    @property
    def exact(self) -> dict[str, str]:
        """The filters that a link sets and no field of the form shows."""
        return {name: self.given[name] for name in _EXACT if name in self.given}

    def link(self, **changes: str | int | None) -> str:
        """The address of this list with other parts.
        None leaves one out, and without a page it begins at the first."""
        parts: dict[str, str | int | None] = {**self.given, "by": self.by, **changes}
        if parts.get("page") == 1:
            parts["page"] = None
        kept = {
            name: value for name in _ORDER if (value := parts.get(name)) is not None and (value != "" or name in _EXACT)
        }
        return "?" + urlencode(kept)

    def sorted_by(self, column: str) -> str:
        """The address of the same list, sorted by this column.
        Figures begin with the largest; a second click reverses the order."""
        now = self.given.get("sort", "id")
        first, second = (column, f"-{column}") if column in _WORDS else (f"-{column}", column)
        return self.link(sort=second if now == first else first)

    def direction(self, column: str) -> str:
        """For aria-sort: ascending, descending, or none."""
        now = self.given.get("sort", "id")
        return "none" if now.removeprefix("-") != column else "descending" if now.startswith("-") else "ascending"


def range_of(params: Mapping[str, str]) -> str:
    """One of RANGES; a day where the address names none."""
    wanted = params.get("range", "1d")
    return wanted if wanted in RANGES else "1d"
