"""Charts of a board, a model and the fleet, from roll-ups and a board's last windows.

    device_charts(row, rollups, events, at_ms=now)      # {"Latency": Chart, "Rate": Chart, ...}
    model_charts(rollups, now)                          # {"p99 by version": Chart, ...}

Rules:
- a value stands over the time that it is of, and ends where the board last reported;
- the axis begins with the first value there is, whatever was asked for;
- a missing value is a gap, and a chart without a value is not drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from edgekit.charts.chart import HUES, Axis, Chart, Column, Step, number_axis, time_axis
from edgekit.fleet.pages.show import shown
from edgekit.fleet.store.records import Event, FleetDevice, Rollup, quantiles
from edgekit.fleet.store.schema import SUMS
from edgekit.fleet.store.sums import LARGEST
from edgekit_runtime.telemetry.histogram import Histogram

ERRORS = "Errors by code"
DEVICE_CHARTS = (
    "Latency", "Mean time per stage", "Rate", ERRORS, "Temperature", "CPU and memory",
    "Drift of the top scores: PSI", "Clipped input, answers differing from the host",
)  # fmt: skip
_SUMMED = ("n", "errors", "over", "host", "hits", "misses")
_MARKED = ("install", "rollback", "trial")
_STAGES = ("input", "queue", "transfer", "inference", "output")
_NO_CODE = "without a code"
_LEAST_MS = 60_000
_BUSIEST = 5

Span = tuple[int, int, Rollup]
"""From, to, and what a board or a fleet reported in that time."""


def mean_ms(histogram: Histogram) -> float | None:
    """Mean, with each bucket at its middle."""
    per_octave = 2.0**histogram.scale
    middle = {index: 2.0 ** ((index + 0.5) / per_octave) for index in histogram.buckets}
    n = histogram.zeros + sum(histogram.buckets.values())
    return sum(middle[index] * count for index, count in histogram.buckets.items()) / n if n else None


class _Drawing:
    """Charts over one time axis. marks: moments with their names, written above the first chart."""

    def __init__(self, subject: str, first_ms: float, at_ms: int, marks: Sequence[tuple[float, str]] = ()) -> None:
        self._subject, self._axis, self._marks = subject, time_axis(min(first_ms, at_ms - _LEAST_MS), at_ms), marks
        self.charts: dict[str, Chart] = {}

    def lines(
        self, name: str, unit: str, lines: Mapping[str, Sequence[Step]], limit: tuple[str, float | None] = ("", None),
        size: str = "small",
    ) -> None:  # fmt: skip
        drawn = {title: steps for title, steps in lines.items() if any(step[2] is not None for step in steps)}
        if not drawn:
            return
        values = [limit[1], *(step[2] for steps in drawn.values() for step in steps)]
        chart = self._chart(name, number_axis(values, unit), size)
        for place, (title, steps) in enumerate(drawn.items()):
            hue = f"h{place % HUES}" if len(lines) > 1 else "accent"
            chart.steps(title, steps, hue, unit, dash=place % HUES)
            if len(lines) > 1 or title.lower() not in name.lower():
                chart.key(title, hue, dash=place % HUES)
        if limit[1] is not None:
            chart.steps(limit[0], [(self._axis.low, self._axis.high, limit[1])], "limit", unit)
            chart.key(limit[0], "limit")

    def stack(self, name: str, unit: str, columns: Sequence[Column], names: Sequence[str]) -> None:
        if names:
            chart = self._chart(name, number_axis([sum(values.values()) for _, _, values in columns], unit), "small")
            chart.stack(names, columns, unit)

    def _chart(self, name: str, values: Axis, size: str) -> Chart:
        self.charts[name] = chart = Chart(f"{name}: {self._subject}", self._axis, values, size)
        for moment, text in self._marks:
            chart.mark(moment, text, named=not size)
        return chart


def finest(coarse: Sequence[Rollup], fine: Sequence[Rollup]) -> list[Rollup]:
    """The coarse roll-ups, and in place of one the finer ones that have all its windows."""
    found: list[Rollup] = []
    for one in coarse:
        mine = [each for each in fine if each.build == one.build]
        within = [each for each in mine if 0 <= each.start_ms - one.start_ms < one.length_ms]
        found += within if sum(each.windows for each in within) >= one.windows else [one]
    return sorted(found, key=lambda one: one.start_ms)


def spans_of(rollups: Sequence[Rollup], until_ms: int) -> list[Span]:
    """One board's roll-ups by time, each over the part of it in which the board reported."""
    found: list[Span] = []
    joined = [_together(list(same)) for _, same in groupby(rollups, key=lambda one: one.start_ms)]
    ends = [one.start_ms + one.length_ms for one in joined]
    for place, one in enumerate(joined):
        begin, end = one.start_ms, min(ends[place], until_ms)
        if not place or ends[place - 1] < begin:
            begin = max(begin, end - one.dur_ms)
        elif place + 1 == len(joined) or joined[place + 1].start_ms > ends[place]:
            end = min(end, begin + one.dur_ms)
        found.append((begin, max(end, begin + 1), one))
    return found


def _together(rollups: Sequence[Rollup]) -> Rollup:
    """One roll-up of a time's versions, called as the one with the most windows is."""
    figures: dict[str, Any] = {name: sum(getattr(one, name) for one in rollups) for name in SUMS}
    for name in LARGEST:
        figures[name] = max((at for one in rollups if (at := getattr(one, name)) is not None), default=None)
    figures |= {name: _joined([getattr(one, name) for one in rollups]) for name in ("latency", "stages")}
    codes = sum((Counter(one.error_codes) for one in rollups), Counter[str]())
    return replace(max(rollups, key=lambda one: one.windows), **figures, error_codes=codes)


def device_charts(
    row: FleetDevice, rollups: Sequence[Rollup], events: Sequence[Event] = (), since_ms: int = 0, *, at_ms: int
) -> dict[str, Chart]:
    """Those of DEVICE_CHARTS that have a value. at_ms: where the time axis ends."""
    recent = [point for point in row.recent if point[0] >= since_ms]
    spans = spans_of(rollups, max([row.seen_ms or at_ms, *(point[0] for point in recent)]))
    points: list[Any] = [
        (begin, end, *one.quantiles(0.5, 0.95, 0.99), one.rate, one.temp)
        for begin, end, one in spans
        if not recent or end <= recent[0][0]
    ]
    for moment, *values in recent:  # each is of one window, and ends it
        length, before = 1000 * row.window_s, points[-1][1] if points else 0
        points.append((before if moment - before < 1.5 * length else moment - length, moment, *values))
    if not points:
        return {}
    p50, p95, p99, rate, temp = ([(point[0], point[1], point[at]) for point in points] for at in range(2, 7))
    first = min(points[0][0], *(begin for begin, _, _ in spans), at_ms)
    drawing = _Drawing(row.id, first, at_ms, _marks(spans, events, since_ms))

    def each(read: Callable[[Rollup], float | None]) -> list[Step]:
        return [(begin, end, read(one)) for begin, end, one in spans]

    means = [(begin, end, {name: mean_ms(h) or 0.0 for name, h in one.stages.items()}) for begin, end, one in spans]
    codes = [(begin, end, {shown(code): n for code, n in _codes(one).items()}) for begin, end, one in spans]
    counted = sum((Counter(values) for _, _, values in codes), Counter[str]())
    latency, stages, rates, _, heat, system, drift, inputs = DEVICE_CHARTS
    drawing.lines(latency, " ms", {"p50": p50, "p95": p95, "p99": p99}, ("budget", row.budget_ms), size="")
    drawing.stack(stages, " ms", means, [name for name in _STAGES if any(name in values for _, _, values in means)])
    drawing.lines(rates, " /s", {"rate": rate})
    drawing.stack(ERRORS, "", codes, [code for code, _ in counted.most_common()])
    drawing.lines(heat, " °C", {"temperature": temp})
    drawing.lines(system, " %", {"processor": each(lambda one: one.cpu), "memory": each(lambda one: one.mem)})
    drawing.lines(drift, "", {"PSI": each(lambda one: one.psi)}, ("drifting", 0.2))
    drawing.lines(inputs, " %", {
        "clipped": each(lambda one: _percent(one.clipped, one.values)),
        "differs from the host": each(lambda one: _percent(one.differed, one.compared)),
    })  # fmt: skip
    return drawing.charts


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def _codes(one: Rollup) -> dict[str, int]:
    counts = {**one.error_codes, _NO_CODE: one.errors - sum(one.error_codes.values())}
    return {code: n for code, n in counts.items() if n > 0}


def _marks(spans: Sequence[Span], events: Sequence[Event], since_ms: int) -> list[tuple[float, str]]:
    """Version changes and installs."""
    marks: list[tuple[float, str]] = []
    for (_, _, before), (begin, _, after) in pairwise(spans):
        if (before.model, before.version) != (after.model, after.version):
            marks.append((begin, f"{shown(after.model)} {shown(after.version)}"))
    marks += [(one.at_ms, one.kind) for one in events if one.kind in _MARKED and one.at_ms >= since_ms]
    return sorted(marks)


def compare(rollups: Iterable[Rollup]) -> list[dict[str, Any]]:
    """A line for each version and profile over the whole time, by name."""
    groups: dict[tuple[str, str], list[Rollup]] = {}
    for rollup in rollups:
        groups.setdefault((rollup.version, rollup.profile), []).append(rollup)
    lines = []
    for (version, profile), group in sorted(groups.items()):
        sums = {name: sum(getattr(rollup, name) for rollup in group) for name in _SUMMED}
        p50, p95, p99 = _over_all(group, 0.5, 0.95, 0.99)
        token_ms = _joined([one.stages for one in group]).get("token", Histogram()).quantile(0.5)
        lines.append(sums | {
            "version": version, "profile": profile, "boards": max(rollup.boards for rollup in group),
            "p50": p50, "p95": p95, "p99": p99, "tokens_per_s": 1000 / token_ms if token_ms else None,
            "psi": max((rollup.psi for rollup in group if rollup.psi is not None), default=None),
        })  # fmt: skip
    return lines


def model_charts(rollups: Sequence[Rollup], at_ms: int) -> dict[str, Chart]:
    """p99, and which share of the boards ran each version, over all profiles."""
    if not rollups:
        return {}
    drawing = _Drawing(shown(rollups[0].model), rollups[0].start_ms, at_ms)
    drawing.lines("p99 by version", " ms", _p99(rollups, lambda one: f"version {one.version}", at_ms), size="")
    columns = []
    for begin, end, group in _moments(rollups, at_ms):
        boards: Counter[str] = Counter()
        for one in group:
            boards[f"version {shown(one.version)}"] += one.dur_ms
        columns.append((begin, end, {name: 100.0 * ms / boards.total() for name, ms in boards.items() if ms}))
    names = sorted({name for _, _, values in columns for name in values})
    drawing.stack("Share of reporting boards by version", " %", columns, names)
    return drawing.charts


def fleet_charts(rollups: Sequence[Rollup], online: int, at_ms: int) -> dict[str, Chart]:
    """Answers a second, boards, and p99 of the busiest versions. online: the boards now."""
    if not rollups:
        return {}
    drawing = _Drawing("the fleet", rollups[0].start_ms, at_ms)
    rates, boards = [], []
    for begin, end, group in _moments(rollups, at_ms):
        n, reported_ms = (sum(getattr(one, name) for one in group) for name in ("n", "dur_ms"))
        count = online if end >= at_ms else reported_ms / group[0].length_ms
        rates.append((begin, end, 1000.0 * n / max(reported_ms, 1) * count))
        boards.append((begin, end, count))
    drawing.lines("Answers per second", "", {"answers per second": rates})
    drawing.lines("p99 by version", " ms", _p99(rollups, lambda one: f"{one.model} {one.version}", at_ms))
    drawing.lines("Boards reporting", "", {"boards": boards})
    return drawing.charts


def _moments(rollups: Sequence[Rollup], at_ms: int) -> list[tuple[int, int, list[Rollup]]]:
    """Roll-ups of many boards by time; the last may be unfinished."""
    groups = [list(same) for _, same in groupby(rollups, key=lambda one: one.start_ms)]
    return [(group[0].start_ms, min(group[0].start_ms + group[0].length_ms, at_ms), group) for group in groups]


def _p99(rollups: Sequence[Rollup], name: Callable[[Rollup], str], at_ms: int) -> dict[str, list[Step]]:
    """Of the busiest names over all profiles, by name."""
    answers: Counter[str] = Counter()
    for one in rollups:
        answers[name(one)] += one.n
    moments = _moments(rollups, at_ms)
    lines: dict[str, list[Step]] = {}
    for key in sorted(key for key, _ in answers.most_common(_BUSIEST)):
        of = [(begin, end, [one for one in group if name(one) == key]) for begin, end, group in moments]
        lines[shown(key)] = [(begin, end, _over_all(mine, 0.99)[0]) for begin, end, mine in of if mine]
    return lines


def _over_all(rollups: Sequence[Rollup], *wanted: float) -> list[float | None]:
    return quantiles(_joined([one.latency for one in rollups]), wanted)


def _joined(found: Sequence[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    """By source; one of another scale stands beside its source's, because scales are not joined."""
    joined: dict[str, Histogram] = {}
    for source, histogram in (item for one in found for item in one.items()):
        known = joined.get(source, histogram)
        name = source if known.scale == histogram.scale else f"{source} {histogram.scale}"
        joined.setdefault(name, Histogram(scale=histogram.scale)).merge(histogram)
    return joined
