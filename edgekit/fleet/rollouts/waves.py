"""Roll-outs in waves: a wave's boards, when the next starts, whether its boards do worse.

    waves_of(rev, devices, (0.01, 0.1, 0.5, 1.0))           # {"porch-1": 0, "gate-2": 3, ...}
    decide(plan, standing, tally, verdict, now_ms)          # the next RolloutStanding

Rules:
- with a shadow share the first step is not a wave: some boards shadow it, and `shadows` judges it;
- everything here is a pure function: time, tallies and figures are arguments;
- a board's wave follows from its id and the roll-out's number alone, so every server computes the same waves;
- the next wave begins once the boards of this one have committed, some time has passed, and `comparison` finds them no
  worse. Where it cannot say, the roll-out waits, and pauses in the end for its operator to say more;
- more failed boards than `abort_over` of a wave, or worse figures, stop it, and send the boards that moved back. One
  board alone does not, unless the roll-out has two at most: more boards join its wave instead;
- a board that is offline before it began is replaced by one of a later wave; where there is none it holds its wave up
  until the wave's deadline, and no longer. A wave of absent boards alone then passes, unless it is the first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from edgekit.fleet.rollouts.comparison import Verdict, agreeing
from edgekit.fleet.store.fleet_errors import FleetError

State = Literal["running", "paused", "aborted", "undoing", "undone", "done"]
ACTIVE: tuple[State, ...] = ("running", "paused", "undoing")
Word = Literal["pause", "resume", "abort", "undo"]
SHADOW = -1
UNWAIVED = -2


@dataclass(frozen=True)
class RolloutPlan:
    """waves: shares of the boards, ascending.
    abort_over: share of a wave's boards that may fail.

    settle_s: how long a wave is watched after its boards committed. figures_s: how much longer it may take until there
    are enough answers. deadline_s: after which boards that are not done hold a wave up no more. judged: whether figures
    are asked for at all. undo: whether an abort sends boards back. margins: as those of `compare`. shadow: share of the
    requests that boards shadow before the first wave, 0 for none; differ: as that of `shadows.judge`.
    against: a label and its value, of boards that keep what they run and are the others of every comparison.
    """

    waves: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    abort_over: float = 0.05
    settle_s: float = 600.0
    figures_s: float = 24 * 3600.0
    deadline_s: float = 24 * 3600.0
    judged: bool = True
    undo: bool = True
    p99_margin: float = 1.25
    ratio_margin: float = 1.5
    shadow: float = 0.0
    differ: float = 0.05
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.waves, self.waves[1:], strict=False))
        if not self.waves or not ascending or not self.waves[0] > 0 or self.waves[-1] > 1:
            raise FleetError(
                "the waves are not ascending shares", where="--waves", do="Write them as --waves 1%,10%,50%,100%"
            )
        if not 0 <= self.abort_over < 1:
            raise FleetError("not a share", where="--abort-over", do="Write it as --abort-over 5%")
        if not 0 < self.differ < 0.5:
            raise FleetError("not a share below a half", where="--differ", do="Write it as --differ 5%")
        if self.against and (len(self.against) != 2 or self.against[0] not in ("site", "group") or not self.against[1]):
            raise FleetError("not a label", where="--against", do="Write it as --against group=NAME or site=NAME")


@dataclass(frozen=True)
class RolloutStanding:
    """wave: the one in hand, from 0; SHADOW before it.
    since_ms: when it began.
    waived: the wave whose figures the operator waived.

    why: of the last change, a sentence. by_word: an operator made it. evidence: of the waves before.
    """

    state: State = "running"
    wave: int = 0
    since_ms: int = 0
    waived: int = UNWAIVED
    why: str = ""
    by_word: bool = False
    evidence: tuple[float, ...] = ()


@dataclass(frozen=True)
class Tally:
    """Boards of the wave in hand.
    last_ms: when the last of them came to an end.
    reasons: codes of failures, counted.

    moving_back: boards of any wave that were sent back and have not arrived. absent: of those pending, boards that went
    offline before they began. spare: boards of later waves that are online. all: of the roll-out.
    """

    boards: int
    pending: int
    committed: int
    failed: int
    last_ms: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    moving_back: int = 0
    absent: int = 0
    spare: int = 0
    all: int = 0


def parse_share(text: str) -> float:
    """`5%` or `0.05`. Raises FleetError."""
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise FleetError(f"{text!r:.20} is not a share", do="Write it as 5% or 0.05")
    return share


def place_of(rev: int, device: str) -> bytes:
    """What boards are sorted by, at random but the same on every server."""
    return hashlib.sha256(f"{rev}:{device}".encode()).digest()


def waves_of(rev: int, devices: Iterable[str], waves: Sequence[float], absent: Collection[str] = ()) -> dict[str, int]:
    """Device -> number of its wave, from 0; absent boards come last.

    Boards beyond the last share are left out.
    """
    order = sorted(devices, key=lambda name: (name in absent, place_of(rev, name)))
    found: dict[str, int] = {}
    begin = 0
    for number, share in enumerate(waves):
        end = max(math.ceil(share * len(order) - 1e-9), begin + 1)
        found.update(dict.fromkeys(order[begin:end], number))
        begin = min(end, len(order))
    return found


def wanted(tally: Tally, verdict: Verdict) -> int:
    """How many boards of later waves should join this one."""
    lone = agreeing(tally.all) - tally.boards if tally.failed or verdict.doubt else 0
    doubt = int(verdict.doubt and not tally.pending)
    return min(tally.spare, max(tally.absent, lone, doubt))


def decide(
    plan: RolloutPlan, standing: RolloutStanding, tally: Tally, verdict: Verdict, now_ms: int
) -> RolloutStanding:
    """The next standing; the same one if there is nothing to do."""
    if standing.state == "undoing":
        late = now_ms - standing.since_ms > 1000 * plan.deadline_s
        if tally.moving_back and not late:
            return standing
        left = f"; {tally.moving_back} boards have not answered" if tally.moving_back else ""
        return replace(standing, state="undone", why=standing.why + left)
    if standing.state not in ("running", "paused"):
        return standing
    if standing.wave == SHADOW:
        return _shadow(plan, standing, verdict, now_ms)
    wave = f"wave {standing.wave + 1}"
    if tally.failed > plan.abort_over * tally.boards and tally.failed >= min(2, agreeing(tally.all)):
        codes = ", ".join(f"{code} {n}" if n > 1 else code for code, n in tally.reasons)
        return _stopped(plan, standing, f"{tally.failed} of {tally.boards} boards of {wave} failed ({codes})", now_ms)
    if plan.judged and verdict.says == "worse":
        return _stopped(plan, standing, f"{wave}: {verdict.why}", now_ms)
    if standing.state == "paused" or wanted(tally, verdict):
        return standing
    waived, absent = standing.waived == standing.wave, 0 < tally.boards == tally.absent
    if tally.pending and now_ms - standing.since_ms < 1000 * plan.deadline_s and not (absent and waived):
        return standing
    if not tally.committed and tally.boards and not (absent and (waived or standing.wave)):
        return replace(standing, state="paused", by_word=False, why=f"no board of {wave} finished in time")
    watched_s = (now_ms - max(tally.last_ms, standing.since_ms)) / 1000
    if watched_s < plan.settle_s:
        return standing
    if plan.judged and tally.committed and verdict.says == "unknown" and not waived:
        if watched_s < plan.settle_s + plan.figures_s:
            return standing
        return replace(standing, state="paused", by_word=False, why=f"{wave} cannot be judged: {verdict.why}")
    if standing.wave + 1 == len(plan.waves):
        rest = f"; {tally.pending} boards install it when they come back" if tally.pending else ""
        better = f"; {verdict.why}" if verdict.says == "better" else ""
        return replace(standing, state="done", why=f"every wave has committed{rest}{better}")
    why, evidence = f"{wave} has committed", verdict.evidence or standing.evidence
    return replace(standing, wave=standing.wave + 1, since_ms=now_ms, why=why, evidence=evidence)


def _shadow(plan: RolloutPlan, standing: RolloutStanding, verdict: Verdict, now_ms: int) -> RolloutStanding:
    """Before the first wave: no board has moved, so none has to go back."""
    if verdict.says == "worse":
        return replace(standing, state="aborted", since_ms=now_ms, why=f"shadow: {verdict.why}", by_word=False)
    waited_s = (now_ms - standing.since_ms) / 1000
    if standing.state == "paused" or (standing.waived != SHADOW and waited_s < plan.settle_s):
        return standing
    if verdict.says == "same" or standing.waived == SHADOW:
        return replace(standing, wave=0, since_ms=now_ms, why=f"shadow: {verdict.why}")
    if waited_s < plan.settle_s + plan.figures_s:
        return standing
    return replace(standing, state="paused", by_word=False, why=f"shadow: cannot be judged: {verdict.why}")


def _stopped(plan: RolloutPlan, standing: RolloutStanding, why: str, now_ms: int) -> RolloutStanding:
    return replace(standing, state="undoing" if plan.undo else "aborted", since_ms=now_ms, why=why, by_word=False)


_OBEYED: dict[Word, tuple[State, ...]] = {
    "pause": ("running",),
    "resume": ("paused",),
    "abort": ("running", "paused"),
    "undo": ("running", "paused", "aborted", "done"),
}


def possible(state: State) -> list[Word]:
    """Actions of an operator that make sense now."""
    return [word for word, states in _OBEYED.items() if state in states]


def obey(word: Word, standing: RolloutStanding, now_ms: int) -> RolloutStanding:
    """Apply an operator's action. Raises FleetError if it is not possible now."""
    assert word in get_args(Word)
    if standing.state not in _OBEYED[word]:
        fitting = ", ".join(possible(standing.state)) or "nothing"
        raise FleetError(f"the roll-out is {standing.state}", where=word, do=f"Possible now: {fitting}")
    by = "by the operator"
    if word == "pause":
        return replace(standing, state="paused", why=by, by_word=True)
    if word == "resume":
        return replace(standing, state="running", since_ms=now_ms, waived=standing.wave, why=by, by_word=True)
    state: State = "aborted" if word == "abort" else "undoing"
    return replace(standing, state=state, since_ms=now_ms, why=by, by_word=True)
