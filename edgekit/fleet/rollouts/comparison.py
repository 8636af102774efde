"""Compare the boards of a wave with themselves before it, and with others meanwhile.

    compare(wave, others, boards=100)          # Verdict("worse", "more errors: 2.1% of 4,210 against 0.1% before ...")

Rules:
- a board is compared with its own answers of the day before, so no board's traffic or speed counts for another's.
  Quarters of an hour in which it failed or was late by itself are left out (`usual_quarters`);
- each board has one vote on each figure, from LEAST_VOTE to the third root of the bound, so three boards can stop a
  roll-out (half of them, if it has fewer than five), and one can neither stop it nor outvote the others;
- votes are divided by the mean vote of boards outside the wave, their strongest left out: what befalls every board,
  or some at any time, is not the version's. In a wave of many it is at least what boards that fail by themselves as
  often as in the day before would give, since few others may fail just now;
- counts decide nothing before these boards would have shown the same, by LEAST_ANSWERS at most, or the wave has all
  that it needs;
- the evidence is the product of the votes, and of those of the waves before if they made it stronger. It is worse than
  chance at the bound, which spends RISK over all figures and waves, however often they are looked at;
- a wave with much evidence against it is watched longer before it is no worse: looking more often costs no risk;
- no errors are never worse, and a board without answers before has no vote;
- `contrast` asks the same of a version that runs beside another, in both directions, and spends half of RISK on each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low, stdev
from typing import Any, Literal, NamedTuple

from edgekit_profiles import milliseconds
from edgekit_runtime.cache.bounded import chance, interval
from edgekit_runtime.telemetry.histogram import Histogram

RISK = 0.01
"""Chance that a version which is no worse is undone."""
LEAST_ANSWERS = 300
"""Answers a board, of as many boards as can stop it, or as many of more, before a wave is no worse."""
LEAST_VOTE = 0.2
ALLOWANCE = 0.001
"""Share of the requests that may fail, or come late, beyond the margin."""
MOST_PSI = 0.2
TIMES = (2.0, 8.0)
"""How many times the share that is no worse a worse version has: each is tested."""
_FEW = 20
_MANY = 3
"""Times as many boards as can stop a roll-out: of so many some fail by themselves."""
_ENOUGH_BAD = 25
"""Bad answers that others would have given, were they as bad as the wave's."""
_SURE = 2.0
"""Standard errors that are added to the mean vote of the others."""
_SUSPICIOUS, _LONGER = 0.35, 4
"""Share of the evidence that decides from which a wave is watched longer, and how many times as long.

One board alone has a third of it."""
_UNUSUAL, _BY_CHANCE = 0.2, 1e-4
"""Share of its quarters in which a board may fail by itself; chance below which one is no chance."""


@dataclass(frozen=True)
class Figures:
    """n: answers.
    over: those over budget.
    latency: of answers by the device itself, milliseconds.
    psi: the largest, None if unknown.
    unusual: share of quarters that were left out, in which the board failed by itself."""

    n: int = 0
    errors: int = 0
    over: int = 0
    latency: Histogram = field(default_factory=Histogram)
    psi: float | None = None
    unusual: float = 0.0

    @property
    def requests(self) -> int:
        return self.n + self.errors


@dataclass(frozen=True)
class BoardFigures:
    """before, since: the wave began.
    gone: offline since then."""

    device: str
    before: Figures
    since: Figures
    gone: bool = False


@dataclass(frozen=True)
class ComparedFigure:
    """What was counted of one figure.

    wave, others: (bad before, of, bad since, of), empty if it is not counted.
    worse: boards of the wave that vote against the version, of those that have a vote.
    sure: its evidence, 1 where it decides.
    """

    name: str
    wave: tuple[int, ...]
    others: tuple[int, ...]
    worse: int
    votes: int
    sure: float

    def cells(self) -> tuple[str, ...]:
        """Before and since, of the wave and of others, with exact 95 % intervals; votes; evidence."""
        shares = [_words(*counts[half : half + 2]) for counts in (self.wave, self.others) for half in (0, 2)]
        return *shares, f"{self.worse} of {self.votes}", f"{max(0.0, self.sure):.0%}"


@dataclass(frozen=True)
class Verdict:
    """same: no worse. unknown: too few answers. better: only of `contrast`.

    why: in words, with the figures.
    evidence: logarithm for each test; the next wave adds to it. doubt: most boards have their
    strongest vote against it, and are too few. figures: what was compared, one of each kind.
    """

    says: Literal["same", "worse", "better", "unknown"]
    why: str = ""
    evidence: tuple[float, ...] = ()
    doubt: bool = False
    figures: tuple[ComparedFigure, ...] = ()


def agreeing(boards: int) -> int:
    """How many boards of a roll-out can stop it."""
    return min(3, (boards + 1) // 2)


class BadCounts(NamedTuple):
    """How many were bad, of how many."""

    bad_before: float
    before: int
    bad: int
    since: int


def likelihood_ratio(counts: BadCounts, times: float, margin: float = 1.0, allowance: float = 0.0) -> float:
    """How much likelier these counts are if the version is worse than if it is just no worse.

    No worse is a share up to `margin` times the one before, plus `allowance`; worse is `times` that. The ratio is at
    most 1 on average if the version is no worse, whatever the share before: with shrink = log g and times = t,
    E[(tg)^bad] E[g^bad_before] <= exp(since * share * (tg - 1) + before * share_before * (g - 1))
    <= g^-(allowance * before / margin).
    """
    shrink = math.log((margin * counts.since + counts.before) / (margin * times * counts.since + counts.before))
    weight = counts.bad_before + counts.bad + allowance * counts.before / margin
    return math.exp(min(50.0, counts.bad * math.log(times) + shrink * weight))


def _words(bad: int = 0, of: int = 0) -> str:
    if not of:
        return "-"
    low, high = interval(min(bad, of), of)
    return f"{bad / of:.2%} of {of:,} ({low:.2%} to {high:.2%})"


def beyond(before: Histogram, since: Histogram, share: float, margin: float) -> BadCounts:
    """Answers slower than the slowest `share` of those before, times `margin`.

    The limit is the end of a bucket. Of those before it counts `share`, and one more because they chose the limit.
    """
    left, first = share * before.count, math.inf
    for index in sorted(before.buckets, reverse=True):
        left -= before.buckets[index]
        if left <= 0:
            first = math.log2(margin) * 2.0**since.scale + (index + 1) * 2.0 ** (since.scale - before.scale) - 1e-9
            break
    bad = sum([n for index, n in since.buckets.items() if index >= first])
    return BadCounts(share * before.count + 1, before.count, bad, since.count)


def usual_quarters(quarters: Sequence[tuple[int, int, int]]) -> list[int]:
    """Places of the quarters of an hour in which a board did as it usually does.

    quarters: requests, errors and late answers of each. Left out are up to a fifth: those with more errors or late
    answers than a margin of 1.5 and chance make of the others. A board that fails for some minutes a day has these
    minutes in its mean, and a version that fails a little all the time would hide behind them.
    """
    kept = [place for place, (requests, _, _) in enumerate(quarters) if requests]
    most = len(kept) - int(_UNUSUAL * len(kept))
    for kind in (1, 2):
        kept.sort(key=lambda place: quarters[place][kind] / quarters[place][0])
        requests, bad = (sum(quarters[place][column] for place in kept) for column in (0, kind))
        while len(kept) > most:
            worst = quarters[kept[-1]]
            requests, bad = requests - worst[0], bad - worst[kind]
            if chance(worst[kind], worst[0], min(1.0, 1.5 * bad / requests + ALLOWANCE)) > _BY_CHANCE:
                break
            kept.pop()
    return kept


class _BoardVotes(NamedTuple):
    """counts: True or False of a figure that is not counted.
    votes: one for each of `times`."""

    board: BoardFigures
    counts: BadCounts | bool
    votes: list[float]


@dataclass(frozen=True)
class _Question:
    """A figure that may have become worse, or better.
    describe: of the boards where it did.

    counts: of a board; instead of them True if it is worse, False if not; None for no vote.
    """

    name: str
    worse: str
    better: str
    counts: Callable[[BoardFigures], BadCounts | bool | None]
    describe: Callable[[Sequence[BoardFigures]], str]
    margin: float = 1.0
    allowance: float = 0.0
    times: tuple[float, ...] = TIMES

    def votes(self, some: Iterable[BoardFigures], most: float) -> list[_BoardVotes]:
        found = []
        for one in some:
            counts = self.counts(one)
            if isinstance(counts, BadCounts) and counts.before and counts.since:
                ratios = [likelihood_ratio(counts, times, self.margin, self.allowance) for times in self.times]
            elif isinstance(counts, bool):
                ratios = [math.inf if counts else 0.0]
            else:
                continue
            votes = [min(most, LEAST_VOTE + (1.0 - LEAST_VOTE) * ratio) for ratio in ratios]
            found.append(_BoardVotes(one, counts, votes))
        return found


def _share(what: str, bad: Callable[[Figures], int], margin: float) -> _Question:
    def counts(one: BoardFigures) -> BadCounts:
        return BadCounts(bad(one.before), one.before.requests, bad(one.since), one.since.requests)

    def describe(some: Sequence[BoardFigures]) -> str:
        before, of_before, now, of = map(sum, zip(*map(counts, some), strict=True))
        return f"{now / of:.2%} of {of:,} against {before / of_before:.2%} of {of_before:,} before"

    return _Question(what, f"more {what}", f"fewer {what}", counts, describe, margin, ALLOWANCE)


def _slow(share: float, margin: float) -> _Question:
    name, quantile = f"p{100 - 100 * share:.0f}", 1.0 - share

    def describe(some: Sequence[BoardFigures]) -> str:
        both = [one.since.latency for one in some], [one.before.latency for one in some]
        new, old = (milliseconds(Histogram.joined(half).quantile(quantile) or 0.0) for half in both)
        return f"{name} {new} ms against {old} before"

    def counts(one: BoardFigures) -> BadCounts:
        return beyond(one.before.latency, one.since.latency, share, margin)

    return _Question(f"beyond {margin:.3g} times {name}", "slower", "faster", counts, describe)


def _drifts(one: BoardFigures) -> bool | None:
    psi = one.since.psi
    return None if psi is None else psi > MOST_PSI and psi > (one.before.psi or 0.0) + 0.1


def _questions(p99_margin: float, ratio_margin: float) -> tuple[_Question, ...]:
    return (
        _share("errors", lambda figures: figures.errors, ratio_margin),
        _share("answers over budget", lambda figures: figures.over, ratio_margin),
        _slow(0.01, p99_margin),
        _slow(0.1, p99_margin),
        _Question("drift", "scores drift", "scores drift less", _drifts, _psi, times=(1,)),
        _Question("offline", "offline since they installed it", "", lambda one: one.gone, lambda _: "", times=(1,)),
    )


def _psi(some: Sequence[BoardFigures]) -> str:
    now, before = max(one.since.psi or 0.0 for one in some), max(one.before.psi or 0.0 for one in some)
    return f"PSI up to {now:.2f} against {before:.2f} before"


def compare(
    wave: Sequence[BoardFigures],
    others: Sequence[BoardFigures],
    *,
    boards: int,
    waves: int = 1,
    p99_margin: float = 1.25,
    ratio_margin: float = 1.5,
    earlier: Sequence[float] = (),
    better: bool = False,
) -> Verdict:
    """boards, waves: of the whole roll-out. better: times are exchanged.

    earlier: evidence of the waves before."""
    questions = _questions(p99_margin * _slowdown(others), ratio_margin)
    tests = sum(len(one.times) for one in questions)
    bound = waves * tests / RISK
    most = bound ** (1.0 / agreeing(boards))
    found, doubt, before = list[float](), False, list(earlier or [0.0] * tests)
    figures = list[ComparedFigure]()
    worse = ""
    answers = sum(min(one.before.requests, one.since.requests, LEAST_ANSWERS) for one in wave)
    wanted = LEAST_ANSWERS * min(agreeing(boards), max(1, len(wave)))
    heard = [one.since.requests for one in others if one.before.requests]
    many = [*wave, *others] if len(wave) > _MANY * agreeing(boards) else []
    unusual = fmean([max(one.before.unusual, one.since.unusual) for one in many] or [0.0])
    for question in questions:
        mine, theirs = question.votes(wave, most), question.votes(others, most)
        sums, sure, against = _sums(mine), 0.0, 0.0
        for place in range(len(question.times)):
            usual = max(_usual([one.votes[place] for one in theirs], most), 1.0 + unusual * (most - 1.0))
            found.append(max(0.0, before[len(found)]) + sum(math.log(one.votes[place] / usual) for one in mine))
            voters = [one.board for one in mine if one.votes[place] > 1.0]
            sure, against = max(sure, found[-1] / math.log(bound)), max(against, len(voters))
            early = bool(heard) and answers < wanted and sum(heard) < _shows(sums)
            if found[-1] > math.log(bound) - 1e-9 and not early and not worse:
                words = question.better if better else question.worse
                text = question.describe([_swapped(one) for one in voters] if better else voters)
                worse = f"{words}{': ' * bool(text)}{text}, on {len(voters)} of {len(mine)} boards"
            doubt = doubt or 2 * sum(one.votes[place] / usual >= most for one in mine) > len(wave)
        figures.append(ComparedFigure(question.name, sums, _sums(theirs), int(against), len(mine), sure))
    seen = tuple(found), doubt and (answers >= wanted or len(wave) < agreeing(boards)), tuple(figures)
    if worse:
        return Verdict("worse", worse, *seen)
    if answers < wanted:
        few = f"its boards gave {answers} answers that can be compared with those before, and {wanted} are needed"
        return Verdict("unknown", few, *seen)
    sure = max(found) / math.log(bound)
    longer = sum(min(one.since.requests, _LONGER * LEAST_ANSWERS) for one in wave if one.before.requests)
    if sure > _SUSPICIOUS and longer < _LONGER * wanted:
        few = f"the evidence against it is {sure:.0%} of what decides, so {_LONGER * wanted} answers are needed"
        return Verdict("unknown", few, *seen)
    return Verdict("same", "", *seen)


def contrast(a: Sequence[BoardFigures], b: Sequence[BoardFigures], *, boards: int, **given: Any) -> Verdict:
    """Whether version B became worse or better on its boards, beside boards that kept A.

    a, b: boards of each, before B came and since. Better is worse with the times exchanged. boards, given: as of
    `compare`."""
    given["waves"] = 2 * given.get("waves", 1)
    worse = compare(b, a, boards=boards, **given)
    if worse.says == "worse":
        return worse
    given.pop("earlier", None)
    found = compare([*map(_swapped, b)], [*map(_swapped, a)], boards=boards, better=True, **given)
    return replace(worse, says="better", why=found.why) if found.says == "worse" else worse


def _swapped(one: BoardFigures) -> BoardFigures:
    """With what came before and since exchanged."""
    return BoardFigures(one.device, one.since, one.before)


def _sums(votes: Iterable[_BoardVotes]) -> tuple[int, ...]:
    """Bad before, of, bad since, of; empty if the figure is not counted."""
    columns = zip(*(one.counts for one in votes if isinstance(one.counts, BadCounts)), strict=True)
    return tuple(round(sum(column)) for column in columns)


def _shows(sums: tuple[int, ...]) -> float:
    """From how many answers on others would show what the wave does; 0 without counts."""
    _, _, bad, since = sums or (0, 0, 0, 0)
    return min(LEAST_ANSWERS, _ENOUGH_BAD * since / bad) if bad else 0.0


def _slowdown(others: Sequence[BoardFigures]) -> float:
    """How many times as slow half of the other boards became at least, by their p90; at least 1."""
    factors = []
    for one in others:
        before, since = one.before.latency.quantile(0.9), one.since.latency.quantile(0.9)
        if before and since and one.since.latency.count >= _FEW:
            factors.append(since / before)
    return max(1.0, median_low(factors)) if len(factors) > 1 else 1.0


def _usual(votes: Sequence[float], most: float) -> float:
    """The vote that counts as none: the mean of these plus two standard errors, at least 1.

    `most` if a third of them are worse. A single one that is worse is left out, so that one board hides nothing.
    """
    worse = sum(vote > 1.0 for vote in votes)
    if worse <= 1:
        return 1.0
    if 3 * worse > len(votes):
        return most
    return max(1.0, fmean(votes) + _SURE * stdev(votes) / math.sqrt(len(votes)))
