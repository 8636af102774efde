"""Roll-outs in waves: a wave's boards, when the next starts, whether its boards do worse.

    waves_of(rev, devices, (0.01, 0.1, 0.5, 1.0))           # {"porch-1": 0, "gate-2": 3, ...}
    decide(plan, standing, tally, verdict, now_ms)          # the next RolloutStanding

Rules:
- everything here is a pure function: time, tallies and figures are arguments;
- a board's wave follows from its id and the roll-out's number alone, so every server computes the same waves;
- the next wave begins once the boards of this one have committed, some time has passed, and their p99, errors and
  drift are no worse than those of the others. Fewer than LEAST_ANSWERS answers on either side decide nothing: the
  roll-out then pauses, for its operator to say more;
- more failed boards than `abort_over` of a wave, or worse figures, stop it, and send the boards that moved back;
- a board that is offline holds its wave up until the wave's deadline, and no longer.

The comparison, of the version that is rolled out with the others of the same model and profile at the same time:

- p99: at most 1 % of the new version's answers may be slower than `p99_margin` times the others' p99;
- errors and answers over budget: their share may be `ratio_margin` times the others'. Of all that went wrong on either
  side, the new version may then have the part that its answers, so weighted, are of all answers (the exact conditional
  test of two rates: Przyborowski and Wilenski, Biometrika 31, 1940). Where nothing went wrong, nothing is worse;
- worse is what chance alone would do less often than RISK;
- drift: a PSI above 0.2 that is more than 0.1 above the others'.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.fleet.store.shares import chance
from edgekit.fleet.store.store import Rollup, quantiles
from edgekit_runtime.telemetry.histogram import Histogram

LEAST_ANSWERS = 100
RISK = 0.001
RISK_EARLY = 0.00003
"""While a wave still runs it is looked at again and again, so it takes more to stop it."""
MOST_PSI = 0.2
State = Literal["running", "paused", "aborted", "undoing", "undone", "done"]
ACTIVE: tuple[State, ...] = ("running", "paused", "undoing")
Word = Literal["pause", "resume", "abort", "undo"]


@dataclass(frozen=True)
class RolloutPlan:
    """waves: shares of the boards, ascending.
    abort_over: share of a wave's boards that may fail.

    settle_s: how long a wave is watched after its boards committed. figures_s: how much longer it may take until there
    are enough answers. deadline_s: after which boards that are not done hold a wave up no more. judged: whether figures
    are asked for at all. undo: whether an abort sends boards back.
    """

    waves: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    abort_over: float = 0.05
    settle_s: float = 600.0
    figures_s: float = 3600.0
    deadline_s: float = 24 * 3600.0
    judged: bool = True
    undo: bool = True
    p99_margin: float = 1.25
    ratio_margin: float = 1.5

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.waves, self.waves[1:], strict=False))
        if not self.waves or not ascending or not self.waves[0] > 0 or self.waves[-1] > 1:
            raise FleetError(
                "the waves are no ascending shares", where="--waves", do="Write them as --waves 1%,10%,50%,100%"
            )
        if not 0 <= self.abort_over < 1:
            raise FleetError("that is no share", where="--abort-over", do="Write it as --abort-over 5%")


@dataclass(frozen=True)
class RolloutStanding:
    """wave: the one in hand, from 0.
    since_ms: when it began.
    waived: the wave whose figures the operator waived.

    why: of the last change, a sentence. by_word: an operator made it.
    """

    state: State = "running"
    wave: int = 0
    since_ms: int = 0
    waived: int = -1
    why: str = ""
    by_word: bool = False


@dataclass(frozen=True)
class Tally:
    """Boards of the wave in hand.
    last_ms: when the last of them came to an end.
    reasons: codes of failures, counted.

    moving_back: boards of any wave that were sent back and have not arrived.
    """

    boards: int
    pending: int
    committed: int
    failed: int
    last_ms: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    moving_back: int = 0


@dataclass(frozen=True)
class Figures:
    """latency: of answers by the device itself, milliseconds.
    psi: the largest, None where it is not known."""

    n: int = 0
    errors: int = 0
    over: int = 0
    latency: Histogram = field(default_factory=Histogram)
    psi: float | None = None


@dataclass(frozen=True)
class Verdict:
    """same: no worse. unknown: too few answers. why: in words, with the figures."""

    says: Literal["same", "worse", "unknown"]
    why: str = ""


def parse_share(text: str) -> float:
    """`5%` or `0.05`. Raises FleetError."""
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise FleetError(f"{text!r:.20} is no share", do="Write it as 5% or 0.05")
    return share


def waves_of(rev: int, devices: Iterable[str], waves: Sequence[float]) -> dict[str, int]:
    """Device -> the number of its wave, from 0.
    Boards beyond the last share are in none. Each wave has a board, as far as there are so many."""
    order = sorted(devices, key=lambda name: hashlib.sha256(f"{rev}:{name}".encode()).digest())
    found: dict[str, int] = {}
    begin = 0
    for number, share in enumerate(waves):
        end = max(math.ceil(share * len(order) - 1e-9), begin + 1)
        found.update(dict.fromkeys(order[begin:end], number))
        begin = min(end, len(order))
    return found


def figures_of(rows: Iterable[Rollup], psi: float | None = None) -> Figures:
    """psi: the median of the boards'.
    The windows of a fleet keep the largest, which one board decides."""
    n = errors = over = 0
    latency = Histogram()
    for row in rows:
        n, errors, over = n + row.n, errors + row.errors, over + row.over
        if "device" in row.latency:
            latency.merge(row.latency["device"])
    return Figures(n, errors, over, latency, psi)


def compare(new: Figures, rest: Figures, plan: RolloutPlan, *, early: bool = False) -> Verdict:
    """early: the wave still runs, and is compared again."""
    if new.n + new.errors < LEAST_ANSWERS or rest.n + rest.errors < LEAST_ANSWERS:
        few = f"{new.n + new.errors} answers of the new version and {rest.n + rest.errors} of the others"
        return Verdict("unknown", f"{few}; {LEAST_ANSWERS} of each are needed")
    risk = RISK_EARLY if early else RISK
    if (slower := _slower(new.latency, rest.latency, plan.p99_margin, risk)) is not None:
        return Verdict("worse", slower)
    of, of_others = new.n + new.errors, rest.n + rest.errors
    part = plan.ratio_margin * of / (plan.ratio_margin * of + of_others)
    for what, bad, others in (("errors", new.errors, rest.errors), ("answers over budget", new.over, rest.over)):
        if chance(bad, bad + others, part) < risk:
            shares = f"{bad / of:.2%} of {of:,} against {others / of_others:.2%} of {of_others:,}"
            return Verdict("worse", f"more {what}: {shares}")
    if new.psi is not None and new.psi > MOST_PSI and new.psi > (rest.psi or 0.0) + 0.1:
        others_psi = "unknown" if rest.psi is None else f"{rest.psi:.2f}"
        return Verdict("worse", f"its scores drift: PSI {new.psi:.2f}, of the others {others_psi}")
    return Verdict("same", "")


def _slower(new: Histogram, rest: Histogram, margin: float, risk: float) -> str | None:
    if new.count < LEAST_ANSWERS or rest.count < LEAST_ANSWERS:
        return None
    (p99,) = quantiles({"device": rest}, (0.99,))
    assert p99 is not None
    limit, per_octave = margin * p99, 2.0**new.scale
    beyond = sum(n for index, n in new.buckets.items() if 2.0 ** (index / per_octave) >= limit)
    if chance(beyond, new.count, 0.01) >= risk:
        return None
    (own,) = quantiles({"device": new}, (0.99,))
    took = f"{beyond / new.count:.1%} of its answers took more than {limit:.3g} ms"
    return f"slower: p99 {own:.3g} ms against {p99:.3g}; {took}"


def decide(
    plan: RolloutPlan, standing: RolloutStanding, tally: Tally, verdict: Verdict, now_ms: int
) -> RolloutStanding:
    """verdict: `early` while boards of the wave are pending.
    The same RolloutStanding where there is nothing to do."""
    if standing.state == "undoing":
        late = now_ms - standing.since_ms > 1000 * plan.deadline_s
        if tally.moving_back and not late:
            return standing
        left = f"; {tally.moving_back} boards have not answered" if tally.moving_back else ""
        return replace(standing, state="undone", why=standing.why + left)
    if standing.state not in ("running", "paused"):
        return standing
    wave = f"wave {standing.wave + 1}"
    if tally.failed > plan.abort_over * tally.boards:
        codes = ", ".join(f"{code} {n}" if n > 1 else code for code, n in tally.reasons)
        return _stopped(plan, standing, f"{tally.failed} of {tally.boards} boards of {wave} failed ({codes})", now_ms)
    if plan.judged and verdict.says == "worse":
        return _stopped(plan, standing, f"{wave}: {verdict.why}", now_ms)
    if standing.state == "paused" or (tally.pending and now_ms - standing.since_ms < 1000 * plan.deadline_s):
        return standing
    if not tally.committed and tally.boards:
        return replace(standing, state="paused", by_word=False, why=f"no board of {wave} finished in time")
    watched_s = (now_ms - max(tally.last_ms, standing.since_ms)) / 1000
    if watched_s < plan.settle_s:
        return standing
    if plan.judged and verdict.says == "unknown" and standing.waived != standing.wave:
        if watched_s < plan.settle_s + plan.figures_s:
            return standing
        return replace(standing, state="paused", by_word=False, why=f"{wave} cannot be judged: {verdict.why}")
    if standing.wave + 1 == len(plan.waves):
        return replace(standing, state="done", why="every wave has committed")
    return replace(standing, wave=standing.wave + 1, since_ms=now_ms, why=f"{wave} has committed")


def _stopped(plan: RolloutPlan, standing: RolloutStanding, why: str, now_ms: int) -> RolloutStanding:
    return replace(standing, state="undoing" if plan.undo else "aborted", since_ms=now_ms, why=why, by_word=False)


_OBEYED: dict[Word, tuple[State, ...]] = {
    "pause": ("running",),
    "resume": ("paused",),
    "abort": ("running", "paused"),
    "undo": ("running", "paused", "aborted", "done"),
}


def obey(word: Word, standing: RolloutStanding, now_ms: int) -> RolloutStanding:
    """What the operator says. Raises FleetError where it makes no sense now."""
    assert word in get_args(Word)
    if standing.state not in _OBEYED[word]:
        fitting = ", ".join(one for one, states in _OBEYED.items() if standing.state in states) or "nothing"
        raise FleetError(f"the roll-out is {standing.state}", where=word, do=f"What can be done now: {fitting}")
    by = "the operator's word"
    if word == "pause":
        return replace(standing, state="paused", why=by, by_word=True)
    if word == "resume":
        return replace(standing, state="running", since_ms=now_ms, waived=standing.wave, why=by, by_word=True)
    state: State = "aborted" if word == "abort" else "undoing"
    return replace(standing, state=state, since_ms=now_ms, why=by, by_word=True)
