"""What is wrong with a fleet, as a pure function of what its store says at one moment.

    found = evaluate(Rules(), snapshot, active={"p99:net:7:raspberry-pi-4"})

Rules:
- nothing here reads a clock, a store or a network: `Snapshot` has it all, so stored data can be judged as it came;
- p99 is that of 5-minute windows merged over all boards of a model, version and profile: above `over` times the budget
  in two windows running; it clears at `clear` times the budget. A window of fewer than 100 answers grows backwards
  until it has them, for MOST_GROWN_MS at most;
- no board outweighs the others: an alert names the board or two that alone are slow; and where one gives more than
  half of the answers each board counts once, so it hides nothing;
- it names the stage that grew most, and the version since which, where the one before was well;
- what falls silent has not recovered: `silent` says which findings ended for want of answers;
- a share of requests is above its bound by more than chance: three of three that fail are, two of two are not;
- boards of a site that go offline, lag, fail or throttle together are one finding, which keeps its key while it lasts;
- where p99 is a finding, late answers are not another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NamedTuple

from edgekit.fleet.alerts.rules_file import Rules
from edgekit.fleet.store.records import BoardLatency, Build, Rollup, quantiles
from edgekit_runtime.cache.bounded import chance, interval
from edgekit_runtime.telemetry.histogram import Histogram

RISK = 0.001
"""A share is above its bound where chance alone would do it less often."""
MOST_GROWN_MS = 6 * 3600 * 1000
"""How far back a window grows where requests are rare."""
_OF_ANSWERS = ("p99", "errors", "refusals", "late", "fallback", "drift")


@dataclass(frozen=True)
class Trouble:
    """A board with what is wrong, in words.
    build: that it runs; an alert of the build covers a board that fails."""

    kind: str
    device: str
    site: str
    what: str
    build: Build | None = None


@dataclass(frozen=True)
class Snapshot:
    """rollups: of the fleet, 5 minutes each, whole ones, the oldest first.
    budgets: milliseconds.

    sites: how many boards each has. rollouts: (number, words) of those that stopped. drift: the PSI of each board that
    has one, ascending. boards: each board's own p99. server: why the server cannot store, in words.
    ended: keys of alerts that ended while boards' own figures still count what they were about.
    """

    now_ms: int
    rollups: Sequence[Rollup] = ()
    budgets: Mapping[Build, float] = field(default_factory=dict)
    troubles: Sequence[Trouble] = ()
    sites: Mapping[str, int] = field(default_factory=dict)
    rollouts: Sequence[tuple[int, str]] = ()
    drift: Mapping[Build, Sequence[float]] = field(default_factory=dict)
    boards: Mapping[Build, Sequence[BoardLatency]] = field(default_factory=dict)
    server: str = ""
    ended: Collection[str] = ()


@dataclass(frozen=True)
class AlertFinding:
    """key: stable while the problem lasts.
    text: for people.
    facts: for programs."""

    key: str
    kind: str
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)


def evaluate(rules: Rules, snapshot: Snapshot, active: Collection[str] = ()) -> list[AlertFinding]:
    """Evaluate the rules. active: keys of alerts that have not cleared."""
    found: list[AlertFinding] = []
    builds: dict[Build, list[Rollup]] = {}
    for row in snapshot.rollups:
        builds.setdefault(row.build, []).append(row)
    for build, rows in builds.items():
        slow = [] if "p99" in rules.off else _slow(rules, snapshot, build, builds, active)
        found += [one for one in _shares(rules, snapshot, build, rows, active)
                  if one.kind != "late" or one.key in active or not slow]  # fmt: skip
        found += slow + _drift(rules, build, snapshot.drift.get(build, ()))
    covered = {one.key for one in found if one.kind not in rules.off}
    found += _of_boards(rules, snapshot, covered.union(snapshot.ended, active))
    found += [
        AlertFinding(f"rollout:{number}", "rollout", f"roll-out {number} stopped: {why}", {"rollout": number})
        for number, why in snapshot.rollouts
    ]
    if snapshot.server:
        found.append(server_finding(snapshot.server))
    return [one for one in found if one.kind not in rules.off]


def server_finding(why: str) -> AlertFinding:
    return AlertFinding("server:store", "server", f"the server cannot store what boards send: {why}")


def silent(rules: Rules, snapshot: Snapshot, active: Collection[str]) -> set[str]:
    """Active keys of builds without recent answers, whose recovery is unknown."""
    heard = {":".join(("drift", *build)) for build, psi in snapshot.drift.items() if psi}
    for row in _last(rules, snapshot.rollups, snapshot.now_ms):
        kinds = ("p99", "late", "fallback") * bool(row.n) + ("errors", "refusals") * bool(row.n + row.errors)
        heard |= {f"{kind}:{row.model}:{row.version}:{row.profile}" for kind in kinds}
    return {key for key in active if key.partition(":")[0] in _OF_ANSWERS and key not in heard}


def _last(rules: Rules, rows: Iterable[Rollup], now_ms: int) -> list[Rollup]:
    return [row for row in rows if row.start_ms + (rules.windows + 1) * row.length_ms > now_ms]


def _grown(
    rules: Rules, rows: Sequence[Rollup], now_ms: int, count: Callable[[Rollup], int], most: int
) -> list[list[Rollup]]:
    """Windows of `least` or more, the newest first; the earliest may have fewer.

    Empty if nothing is recent."""
    found: list[list[Rollup]] = []
    if not any(map(count, _last(rules, rows, now_ms))):
        return found
    for row in reversed(rows):
        if row.start_ms < now_ms - MOST_GROWN_MS:
            break
        if found and sum(map(count, found[-1])) < rules.least:
            found[-1].append(row)
        elif len(found) == most:
            break
        elif count(row):
            found.append([row])
    return found


def rare(rules: Rules, rows: Sequence[Rollup], now_ms: int) -> list[Build]:
    """Builds with recent requests that are too few for two windows."""
    last = Counter[Build]()
    for row in _last(rules, rows, now_ms):
        last[row.build] += _requests(row)
    return [build for build, requests in last.items() if 0 < requests < rules.windows * rules.least]


def _facts(build: Build) -> dict[str, object]:
    return dict(zip(("model", "version", "profile"), build, strict=True))


def _answers(row: Rollup) -> int:
    return row.n


def _requests(row: Rollup) -> int:
    return row.n + row.errors


def _p99(rows: Sequence[Rollup]) -> float:
    """Of all answers of these windows."""
    latency = {f"{place} {name}": one for place, row in enumerate(rows) for name, one in row.latency.items()}
    return quantiles(latency, (0.99,))[0] or 0.0


@dataclass(frozen=True)
class _Votes:
    """Each board once, whatever its share of the answers.
    slow: by their own p99.
    of: boards that answered enough.

    heaviest, share: the board with the most answers, and its share of them.
    """

    slow: Sequence[str]
    of: int
    enough: bool
    heaviest: str
    share: float

    @property
    def outweighed(self) -> bool:
        return self.share > 0.5

    def words(self) -> str:
        """A note on single boards, if needed."""
        if self.slow and not self.enough:
            verb = "is" if len(self.slow) == 1 else "are"
            return f"; only {' and '.join(self.slow)} of {self.of} boards {verb} that slow"
        if self.enough and self.outweighed:
            heavy = f"{self.heaviest} gives {self.share:.0%} of the answers"
            return f"; {len(self.slow)} of {self.of} boards are slow by their own p99, and {heavy}"
        return ""


def _votes(rules: Rules, boards: Sequence[BoardLatency], bound_ms: float) -> _Votes | None:
    """None if too few boards answered."""
    heard = [one for one in boards if one.n >= rules.least]
    if len(heard) < rules.many:
        return None
    slow = sorted(one.device for one in heard if one.p99 > bound_ms)
    heaviest = max(heard, key=lambda one: one.n)
    enough = len(slow) >= max(rules.many, min(rules.share * len(heard), _MOST_EACH))
    return _Votes(slow, len(heard), enough, heaviest.device, heaviest.n / sum(one.n for one in heard))


def _slow(
    rules: Rules, snapshot: Snapshot, build: Build, builds: Mapping[Build, Sequence[Rollup]], active: Collection[str]
) -> list[AlertFinding]:
    budget, key = snapshot.budgets.get(build), ":".join(("p99", *build))
    windows = _grown(rules, builds[build], snapshot.now_ms, _answers, rules.windows)
    # few answers clear nothing
    judged = [rows for rows in windows if key in active or sum(map(_answers, rows)) >= rules.least]
    if budget is None or not judged:
        return []
    figures = [_p99(rows) for rows in judged]
    bound_ms = (rules.p99_clear if key in active else rules.p99_over) * budget
    together = (any if key in active else all)(p99 > bound_ms for p99 in figures)
    votes = _votes(rules, snapshot.boards.get(build, ()), bound_ms)
    hidden = votes is not None and votes.enough and votes.outweighed
    if not hidden and (not together or (key not in active and len(judged) < rules.windows)):
        return []
    rows = [row for window in judged for row in window]
    now, answers, from_ms = _merged(rows), sum(map(_answers, rows)), rows[-1].start_ms
    text = "{} {} on {}: ".format(*build) + f"p99 {figures[0]:.3g} ms, {figures[0] / budget:.1f} times the budget of "
    text += f"{budget:g} ms, over {answers:,} answers"
    if len(rows) > len(judged):
        text += f" of {(snapshot.now_ms - from_ms) / 60_000:.0f} minutes"
    since, before = _before(rules, build, from_ms, builds, budget)
    facts = _facts(build) | {"p99_ms": round(figures[0], 3), "budget_ms": budget, "answers": answers}
    if votes is not None and (said := votes.words()):
        text += said
        facts |= {"boards": len(votes.slow), "of": votes.of, "named": list(votes.slow[:_MOST_EACH])}
        facts |= {"heaviest": votes.heaviest, "heaviest_share": round(votes.share, 4)} if votes.outweighed else {}
    grown = _slowed_stage(before, now)
    if grown is not None:
        stage, was, is_ = grown
        text += f"; the stage '{stage}' grew from {was:.3g} to {is_:.3g} ms"
        facts |= {"stage": stage, "stage_before_ms": round(was, 3), "stage_ms": round(is_, 3)}
    if since:
        text += f", {since}"
        facts["since"] = since
    return [AlertFinding(key, "p99", text, facts)]


def _before(
    rules: Rules, build: Build, from_ms: int, builds: Mapping[Build, Sequence[Rollup]], budget: float
) -> tuple[str, list[Rollup]]:
    """When it began, in words, and the good windows before: of this version, else the last."""
    model, version, profile = build

    def well(rows: Iterable[Rollup]) -> list[Rollup]:
        return [
            row
            for row in rows
            if row.start_ms < from_ms and row.n >= rules.least and (row.p99 or 0.0) <= rules.p99_clear * budget
        ]

    own = well(builds[build])
    if own:
        at = datetime.fromtimestamp(from_ms / 1000, timezone.utc)
        return f"since {at:%H:%M} UTC, within version {version}", own
    others = [
        (rows[-1].start_ms, name[1], good)
        for name, rows in builds.items()
        if name[0] == model and name[2] == profile and name[1] != version and (good := well(rows))
    ]
    if not others:
        return "", []
    _, before, good = max(others, key=lambda other: other[0])
    return f"since version {version}; version {before} was not slow", good


def _merged(rows: Iterable[Rollup]) -> dict[str, Histogram]:
    stages: dict[str, Histogram] = {}
    for row in rows:
        for stage, histogram in row.stages.items():
            stages.setdefault(stage, Histogram()).merge(histogram)
    return stages


def _slowed_stage(before: Iterable[Rollup], now: Mapping[str, Histogram]) -> tuple[str, float, float] | None:
    """The stage whose p99 grew most, with its p99 before and now."""
    was, grown = _merged(before), []
    for stage, histogram in now.items():
        (after,) = quantiles({stage: histogram}, (0.99,))
        if stage in was and after is not None:
            (earlier,) = quantiles({stage: was[stage]}, (0.99,))
            if earlier is not None and after > earlier:
                grown.append((after - earlier, stage, earlier, after))
    return max(grown)[1:] if grown else None


class _Share(NamedTuple):
    """bad, base: of a window. text: the share, and of how many."""

    kind: str
    bad: Callable[[Rollup], int]
    base: Callable[[Rollup], int]
    text: str

    def of(self, rows: Iterable[Rollup]) -> tuple[int, int]:
        rows = list(rows)
        return sum(map(self.bad, rows)), sum(map(self.base, rows))


_SHARES = (
    _Share("errors", lambda row: row.errors - row.blocked, _requests, "{:.1%} of {:,} requests failed"),
    _Share("refusals", lambda row: row.blocked, _requests, "{:.1%} of {:,} requests were refused by their budget"),
    _Share("late", lambda row: row.over, _answers, "{:.1%} of {:,} answers came after their budget"),
    _Share("fallback", lambda row: row.host, _answers, "a host gives {:.1%} of {:,} answers"),
)


def _shares(
    rules: Rules, snapshot: Snapshot, build: Build, rows: Sequence[Rollup], active: Collection[str]
) -> list[AlertFinding]:
    """Shares of the last windows; and of earlier ones, too, where requests are rare."""
    last, found = _last(rules, rows, snapshot.now_ms), []
    name, facts = "{} {} on {}".format(*build), _facts(build)
    for share in _SHARES:
        key, over = ":".join((share.kind, *build)), getattr(rules, f"{share.kind}_over")
        windows = _grown(rules, rows, snapshot.now_ms, share.base, rules.windows)
        judged = [last, *windows[:1]]
        if share.kind == "late":  # in two windows running, as p99: where both are high one alert opens, and not two
            high = len(windows) == rules.windows and all(is_above(*share.of(window), over) for window in windows)
            judged = [[row for window in windows for row in window]] if high or key in active else []
        for bad, of in map(share.of, judged):
            if bad > over * of if key in active else is_above(bad, of, over):
                low, most = interval(bad, of)
                text = share.text.format(bad / of, of) + (_codes(last) if share.kind == "errors" else "")
                more = {"share": round(bad / of, 4), "low": round(low, 4), "high": round(most, 4), "requests": of}
                text = f"{name}: {text}; 95% interval {low:.1%} to {most:.1%}"
                found.append(AlertFinding(key, share.kind, text, {**facts, **more}))
                break
    return found


def _drift(rules: Rules, build: Build, psi: Sequence[float]) -> list[AlertFinding]:
    """Drift of a share of the boards."""
    drifting = sum(one > rules.drift_over for one in psi)
    if not drifting or drifting < rules.share * len(psi):
        return []
    text = "{} {} on {}: the scores of ".format(*build) + f"{drifting} of {len(psi)} boards drift from those of its "
    text += f"evaluation set, or from their first answers, PSI up to {psi[-1]:.2f}"
    facts = _facts(build)
    return [AlertFinding(
        ":".join(("drift", *build)), "drift", text, {**facts, "psi": psi[-1], "boards": drifting, "of": len(psi)}
    )]  # fmt: skip


def is_above(bad: int, of: int, share: float) -> bool:
    """Whether the share is exceeded by more than chance."""
    return chance(bad, of, share) < RISK


def _codes(rows: Iterable[Rollup]) -> str:
    """The two most frequent error codes, if any."""
    counted: Counter[str] = Counter()
    for row in rows:
        counted.update(row.error_codes)
    named = ", ".join(f"{code} {n:,}" for code, n in counted.most_common(2))
    return f" ({named})" if named else ""


_MOST_EACH = 10
"""From so many boards of a site on they are one finding, whatever share of it they are."""
_TOGETHER = {
    "offline": "are offline", "lag": "report late", "throttling": "are throttled or hot", "loss": "gave up windows",
    "failing": "give no answer to many of their requests", "flapping": "go offline again and again",
}  # fmt: skip


def _of_boards(rules: Rules, snapshot: Snapshot, covered: Collection[str]) -> list[AlertFinding]:
    groups: dict[tuple[str, str], list[Trouble]] = {}
    for trouble in snapshot.troubles:
        if trouble.build and any(":".join((kind, *trouble.build)) in covered for kind in ("errors", "refusals")):
            continue
        groups.setdefault((trouble.kind, trouble.site), []).append(trouble)
    found = []
    for (kind, site), troubles in sorted(groups.items()):
        of = max(snapshot.sites.get(site, 0), len(troubles))
        if len(troubles) < max(rules.many, min(rules.share * of, _MOST_EACH)):
            for one in troubles:
                facts = {"device": one.device, "site": site}
                found.append(AlertFinding(f"{kind}:board:{one.device}", kind, f"{one.device}: {one.what}", facts))
            continue
        where = f"site {site}" if site else "boards without a site"
        text = f"{where}: {len(troubles)} of {of} boards {_TOGETHER[kind]}"
        found.append(AlertFinding(f"{kind}:site:{site}", kind, text, {"site": site, "boards": len(troubles), "of": of}))
    return found
