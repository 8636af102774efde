"""What is wrong with a fleet, as a pure function of what its store says at one moment.

    found = evaluate(Rules(), snapshot, active={"p99:net:7:raspberry-pi-4"})

Rules:
- nothing here reads a clock, a store or a network: `Snapshot` has it all, so stored data can be judged as it came;
- p99 is that of 5-minute windows merged over all boards of a model, version and profile: above `over` times the budget
  in two windows running, each of 100 answers or more; it clears at `clear` times the budget;
- no board outweighs the others: an alert names the board or two that alone are slow; and where one gives more than
  half of the answers each board counts once, so it hides nothing;
- it names the stage that grew most, and the version since which, where the one before was well;
- what falls silent has not recovered: `silent` says which findings ended for want of answers;
- a share of requests is above its bound by more than chance: three of three that fail are, two of two are not;
- boards of a site that go offline, lag, fail or throttle together are one finding, which keeps its key while it lasts.

The rules of alerts in a TOML file; without a file every rule has its usual bounds.

rules = read_rules(Path("alerts.toml"))

off = ["throttling"]            # kinds that are not looked at
webhooks = ["https://chat.example/hook"]
topic = "ek/alerts"             # published there, too

[p99]
over = 2.0                      # times the budget, in two windows of 5 minutes running
clear = 1.5
least = 100                     # answers in a window

[bounds]
errors = 0.05                   # shares of the requests
refusals = 0.05
fallback = 0.05
drift = 0.2
offline_s = 300
lag_s = 3600

[site]
many = 3                        # from so many boards of a site on, and from this share, they are one alert
share = 0.2
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.shares import chance
from edgekit.fleet.store.store import BoardLatency, Rollup, quantiles
from edgekit_profiles.schema import Table, parse_toml
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.telemetry.histogram import Histogram

KINDS = (
    "p99", "errors", "refusals", "fallback", "drift", "offline", "lag", "throttling", "failing", "loss", "rollout"
)  # fmt: skip
RISK = 0.001
"""A share is above its bound where chance alone would do it less often."""
_OF_ANSWERS = ("p99", "errors", "refusals", "fallback", "drift")
Build = tuple[str, str, str]
"""Model, version, profile."""


@dataclass(frozen=True)
class Boards:
    """From how many boards of a site on, and from which share of them, they are one finding."""

    many: int = 3
    share: float = 0.2


@dataclass(frozen=True)
class Rules:
    """p99_over, p99_clear: times the budget.
    least: answers of a window.
    windows: running. *_over: shares, or the PSI.

    offline_s: how long a board is gone. lag_s: how old its oldest report. off: kinds that are not looked at.
    webhooks: URLs. topic: of MQTT, empty for none.
    """

    p99_over: float = 2.0
    p99_clear: float = 1.5
    least: int = 100
    windows: int = 2
    errors_over: float = 0.05
    refusals_over: float = 0.05
    fallback_over: float = 0.05
    drift_over: float = 0.2
    offline_s: float = 300.0
    lag_s: float = 3600.0
    boards: Boards = field(default_factory=Boards)
    off: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    topic: str = ""


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
    has one, ascending. boards: each board's own p99.
    """

    now_ms: int
    rollups: Sequence[Rollup] = ()
    budgets: Mapping[Build, float] = field(default_factory=dict)
    troubles: Sequence[Trouble] = ()
    sites: Mapping[str, int] = field(default_factory=dict)
    rollouts: Sequence[tuple[int, str]] = ()
    drift: Mapping[Build, Sequence[float]] = field(default_factory=dict)
    boards: Mapping[Build, Sequence[BoardLatency]] = field(default_factory=dict)


@dataclass(frozen=True)
class AlertFinding:
    """key: of what is wrong, the same as long as it lasts.
    text: a sentence for a person.
    facts: for a program."""

    key: str
    kind: str
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)


def evaluate(rules: Rules, snapshot: Snapshot, active: Collection[str] = ()) -> list[AlertFinding]:
    """active: keys of what was found before and has not cleared."""
    found: list[AlertFinding] = []
    builds: dict[Build, list[Rollup]] = {}
    for row in snapshot.rollups:
        builds.setdefault((row.model, row.version, row.profile), []).append(row)
    for build, rows in builds.items():
        last = _last(rules, rows, snapshot.now_ms)
        if "p99" not in rules.off:
            found += _slow(rules, snapshot, build, last, builds, active)
        found += _shares(rules, build, last, snapshot.drift.get(build, ()), active)
    found += _of_boards(rules, snapshot, {one.key for one in found if one.kind not in rules.off})
    found += [
        AlertFinding(f"rollout:{number}", "rollout", f"roll-out {number} stopped: {why}", {"rollout": number})
        for number, why in snapshot.rollouts
    ]
    return [one for one in found if one.kind not in rules.off]


def silent(rules: Rules, snapshot: Snapshot, active: Collection[str]) -> set[str]:
    """The keys about builds that gave no answer lately, so that recovery is unknown."""
    heard = {":".join(("drift", *build)) for build, psi in snapshot.drift.items() if psi}
    for row in _last(rules, snapshot.rollups, snapshot.now_ms):
        kinds = ("p99", "fallback") * bool(row.n) + ("errors", "refusals") * bool(row.n + row.errors)
        heard |= {f"{kind}:{row.model}:{row.version}:{row.profile}" for kind in kinds}
    return {key for key in active if key.partition(":")[0] in _OF_ANSWERS and key not in heard}


def _last(rules: Rules, rows: Iterable[Rollup], now_ms: int) -> list[Rollup]:
    return [row for row in rows if row.start_ms + (rules.windows + 1) * row.length_ms > now_ms]


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
        """What a reader must know of single boards, or nothing."""
        if self.slow and not self.enough:
            verb = "is" if len(self.slow) == 1 else "are"
            return f"; only {' and '.join(self.slow)} of {self.of} boards {verb} that slow"
        if self.enough and self.outweighed:
            heavy = f"{self.heaviest} gives {self.share:.0%} of the answers"
            return f"; {len(self.slow)} of {self.of} boards are slow by their own p99, and {heavy}"
        return ""


def _votes(rules: Rules, boards: Sequence[BoardLatency], bound_ms: float) -> _Votes | None:
    """None where fewer boards answered than one finding of several takes."""
    heard = [one for one in boards if one.n >= rules.least]
    if len(heard) < rules.boards.many:
        return None
    slow = sorted(one.device for one in heard if one.p99 > bound_ms)
    heaviest = max(heard, key=lambda one: one.n)
    enough = len(slow) >= max(rules.boards.many, min(rules.boards.share * len(heard), _MOST_EACH))
    return _Votes(slow, len(heard), enough, heaviest.device, heaviest.n / sum(one.n for one in heard))


def _slow(
    rules: Rules, snapshot: Snapshot, build: Build, last: Sequence[Rollup], builds: Mapping[Build, Sequence[Rollup]],
    active: Collection[str],
) -> list[AlertFinding]:  # fmt: skip
    budget, key = snapshot.budgets.get(build), ":".join(("p99", *build))
    least = 1 if key in active else rules.least  # few answers clear nothing
    judged = [row for row in last if row.n >= least]
    if budget is None or not judged:
        return []
    figures = [row.p99 or 0.0 for row in judged]
    bound_ms = (rules.p99_clear if key in active else rules.p99_over) * budget
    together = (any if key in active else all)(p99 > bound_ms for p99 in figures)
    votes = _votes(rules, snapshot.boards.get(build, ()), bound_ms)
    hidden = votes is not None and votes.enough and votes.outweighed
    if not hidden and (not together or (key not in active and len(judged) < rules.windows)):
        return []
    model, version, profile = build
    now, answers = _merged(judged), sum(row.n for row in judged)
    text = f"{model} {version} on {profile}: p99 {figures[-1]:.3g} ms, {figures[-1] / budget:.1f} times the budget of "
    text += f"{budget:g} ms, over {answers:,} answers"
    since, before = _before(rules, build, judged[0].start_ms, builds, budget)
    facts: dict[str, object] = {
        "model": model, "version": version, "profile": profile, "p99_ms": round(figures[-1], 3), "budget_ms": budget,
        "answers": answers,
    }  # fmt: skip
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
    return f"since version {version}; {before} was well", good


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


def _shares(
    rules: Rules, build: Build, last: Sequence[Rollup], psi: Sequence[float], active: Collection[str]
) -> list[AlertFinding]:
    """Requests that failed, were refused or a host answered, and drift.
    Of the last windows together; drift of a share of the boards."""
    n, errors, refused, host = (sum(getattr(row, name) for row in last) for name in ("n", "errors", "blocked", "host"))
    drifting = sum(one > rules.drift_over for one in psi)
    name, found = "{} {} on {}".format(*build), []
    facts = dict(zip(("model", "version", "profile"), build, strict=True))
    for kind, bad, of, over, text in (
        ("errors", errors - refused, n + errors, rules.errors_over, "{:.1%} of {:,} requests failed" + _codes(last)),
        ("refusals", refused, n + errors, rules.refusals_over, "{:.1%} of {:,} requests were refused by their budget"),
        ("fallback", host, n, rules.fallback_over, "a host gives {:.1%} of {:,} answers"),
    ):
        key = ":".join((kind, *build))
        if bad > over * of if key in active else is_above(bad, of, over):
            text = f"{name}: {text.format(bad / of, of)}"
            found.append(AlertFinding(key, kind, text, {**facts, "share": round(bad / of, 4), "requests": of}))
    if drifting and drifting >= rules.boards.share * len(psi):
        text = f"{name}: the scores of {drifting} of {len(psi)} boards drift from those of its evaluation set, or from "
        text += f"their first answers, PSI up to {psi[-1]:.2f}"
        more = {"psi": psi[-1], "boards": drifting, "of": len(psi)}
        found.append(AlertFinding(":".join(("drift", *build)), "drift", text, {**facts, **more}))
    return found


def is_above(bad: int, of: int, share: float) -> bool:
    """By more than chance."""
    return chance(bad, of, share) < RISK


def _codes(rows: Iterable[Rollup]) -> str:
    """The two most frequent codes of what failed, or nothing."""
    counted: Counter[str] = Counter()
    for row in rows:
        counted.update(row.error_codes)
    named = ", ".join(f"{code} {n:,}" for code, n in counted.most_common(2))
    return f" ({named})" if named else ""


_MOST_EACH = 10
"""From so many boards of a site on they are one finding, whatever share of it they are."""
_TOGETHER = {
    "offline": "are offline", "lag": "report late", "throttling": "are throttled or hot", "loss": "gave up windows",
    "failing": "give no answer to many of their requests",
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
        if len(troubles) < max(rules.boards.many, min(rules.boards.share * of, _MOST_EACH)):
            for one in troubles:
                facts = {"device": one.device, "site": site}
                found.append(AlertFinding(f"{kind}:board:{one.device}", kind, f"{one.device}: {one.what}", facts))
            continue
        where = f"site {site}" if site else "boards without a site"
        text = f"{where}: {len(troubles)} of {of} boards {_TOGETHER[kind]}"
        found.append(AlertFinding(f"{kind}:site:{site}", kind, text, {"site": site, "boards": len(troubles), "of": of}))
    return found


_MOST_BYTES = 1 << 20
_MANY = 100_000_000
_TOPIC = re.compile(r"[^$+#\x00][^+#\x00]{0,199}\Z")


def read_rules(path: Path) -> Rules:
    """Raises FleetError, with every mistake of the file."""
    try:
        top = Table(parse_toml(read_regular(path, _MOST_BYTES).decode("utf-8")), str(path), mistake=_mistake)
    except (OSError, ValueError, RecursionError) as error:
        raise FleetError(f"the rules cannot be read ({error})", where=str(path), do="Check the file") from error
    usual = Rules()
    p99, bounds, site = (top.table(name, {}) for name in ("p99", "bounds", "site"))
    rules = replace(
        usual,
        off=top.texts("off", ()),
        webhooks=top.texts("webhooks", ()),
        topic=top.text("topic", ""),
        p99_over=p99.real("over", usual.p99_over),
        p99_clear=p99.real("clear", usual.p99_clear),
        least=p99.integer("least") if p99.has("least") else usual.least,
        errors_over=bounds.real("errors", usual.errors_over),
        refusals_over=bounds.real("refusals", usual.refusals_over),
        fallback_over=bounds.real("fallback", usual.fallback_over),
        drift_over=bounds.real("drift", usual.drift_over),
        offline_s=bounds.real("offline_s", usual.offline_s),
        lag_s=bounds.real("lag_s", usual.lag_s),
        boards=Boards(
            site.integer("many") if site.has("many") else usual.boards.many, site.real("share", usual.boards.share)
        ),
    )
    for kind in rules.off:
        if kind not in KINDS:
            top.wrong("off", f"names '{kind}', which is no kind of alert", f"Known: {', '.join(KINDS)}")
    if not 1.0 <= rules.p99_clear <= rules.p99_over:
        p99.wrong("clear", "is not between 1 and 'over'", "Write a smaller number than over = ...")
    for url in rules.webhooks:
        if not _is_webhook(url):
            top.wrong("webhooks", "names what is no http or https URL", "Write https://...")
    if rules.topic and not _TOPIC.match(rules.topic):
        top.wrong("topic", "is no topic to publish to", "Write it as ek/alerts: no +, # or $, at most 200 characters")
    for table, key, value, least, most in (
        (p99, "least", rules.least, 1, _MANY),
        (bounds, "errors", rules.errors_over, 0, 1),
        (bounds, "refusals", rules.refusals_over, 0, 1),
        (bounds, "fallback", rules.fallback_over, 0, 1),
        (bounds, "drift", rules.drift_over, 0, 100),
        (bounds, "offline_s", rules.offline_s, 1, _MANY),
        (bounds, "lag_s", rules.lag_s, 1, _MANY),
        (site, "many", rules.boards.many, 1, _MANY),
        (site, "share", rules.boards.share, 0, 1),
    ):
        if not least <= value <= most:
            table.wrong(key, f"is {value:g}", f"Write a number from {least} to {most:,}")
    for table in (top, p99, bounds, site):
        table.done()
    top.refuse()
    return rules


def _is_webhook(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def _mistake(file: str, path: str, key: str, what: str, do: str) -> FleetError:
    dotted = f"{path}.{key}" if path else key
    return FleetError(f"'{dotted}' {what}", where=file, do=do)
