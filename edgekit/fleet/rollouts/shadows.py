"""Judge a version by the answers that it gave in silence, beside the active one.

    judge(boards, of=100)           # Verdict("same", "99.8% of 1,240 answers agree (99.3% to 99.9%) on 8 boards, ...")

Rules:
- it agrees if fewer than `differ` of its answers are others by more than chance; it does not if more than a fifth of
  `differ` are. Each is a likelihood ratio, so it may be looked at as often as one likes (Wald, Annals of Mathematical
  Statistics 16, 1945; Ville, 1939);
- a board counts up to its share of the bound on either side, so three boards are needed (half of a smaller fleet's, two
  at least), and none decides alone; but what speaks against agreement counts in full. One board that is alone with
  it is left out if the others show less than two fifths of `differ`: it may be hostile, or be asked other things;
- it costs too much if its engine takes SLOWER times as long, or does not run, on most of the boards;
- memory and drift are shown. They stop nothing: another training moves scores, and each board looks after its memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgekit.fleet.rollouts.comparison import LEAST_VOTE, RISK, Verdict, agreeing
from edgekit_runtime.cache.bounded import interval
from edgekit_runtime.telemetry.histogram import Histogram, ShadowWindow

BOARDS = 10
"""Boards that try it, or those of the first wave if they are more."""
SLOWER = 1.5
"""At the lowest priority times vary; the waves compare more closely."""
_TIMES = (2.0, 5.0)
_ENOUGH, _QUICK = 100, 0.25
"""Answers of a board, and the quantile of their ratios: other work makes some of them larger."""
_RESTS = ("", "hot", "busy", "budget", "memory")


@dataclass
class ShadowFigures(ShadowWindow):
    """A board's, since the roll-out began."""

    device: str = field(kw_only=True)

    @property
    def ratio(self) -> float | None:
        """How many times as long it takes, where neither of both was disturbed much."""
        return self.ratios.quantile(_QUICK) if self.n >= _ENOUGH else None


def _evidence(one: ShadowFigures, true: float, untrue: float) -> float:
    """Logarithm of how much likelier its counts are at a share `true` than at `untrue`."""
    others = one.n - one.same
    return others * math.log(true / untrue) + one.same * math.log((1 - true) / (1 - untrue))


def judge(boards: Sequence[ShadowFigures], *, of: int, differ: float = 0.05) -> Verdict:
    """Judge what these boards show.

    of: boards of the roll-out. differ: share of other answers that is too many.
    """
    heard = [one for one in boards if one.n]
    needed, allowed = max(2, agreeing(of)), differ / 5
    words = describe(boards)
    bound = math.log(len(_TIMES) / RISK)
    for times in _TIMES:
        votes = [LEAST_VOTE + (1 - LEAST_VOTE) * math.exp(min(bound, _evidence(one, times * allowed, allowed)))
                 for one in heard]  # fmt: skip
        if sum(min(bound / needed, math.log(vote)) for vote in votes) >= bound - 1e-9:
            return Verdict("worse", f"its answers differ: {words}")
    most = max(needed, len(boards) // 2 + 1)
    broken = Counter(one.rests for one in boards if one.rests not in _RESTS)
    if broken.total() >= most:
        codes = ", ".join(f"{code} {n}" for code, n in broken.most_common(2))
        return Verdict("worse", f"it does not run on {broken.total()} of {len(boards)} boards ({codes})")
    ratios = [one.ratio for one in heard if one.ratio is not None]
    if sum(ratio > SLOWER for ratio in ratios) >= max(needed, len(ratios) // 2 + 1):
        return Verdict("worse", f"it is slower: {words}")
    heard.sort(key=lambda one: _evidence(one, allowed, differ))
    against = [_evidence(one, allowed, differ) for one in heard]
    if len(against) > needed and against[0] < 0 <= against[1]:
        against = [_evidence(one, allowed, 2 * allowed) for one in heard[1:]]
    bound = -math.log(RISK)
    enough = len(ratios) >= max(needed, len(heard) // 2 + 1)
    if enough and sum(min(bound / needed, one) for one in against) >= bound - 1e-9:
        return Verdict("same", words)
    return Verdict("unknown", words)


def describe(boards: Sequence[ShadowFigures]) -> str:
    """What they show, with the exact 95 % interval."""
    heard = [one for one in boards if one.n]
    rests = Counter(one.rests for one in boards if one.rests)
    words = ", ".join(f"{word} on {n}" for word, n in rests.most_common(3))
    n, same = sum(one.n for one in heard), sum(one.same for one in heard)
    if not n:
        return f"none of {len(boards)} boards compared an answer" + (f" ({words})" if words else "")
    low, high = interval(same, n)
    times = Histogram.joined(one.ratios for one in heard).quantile(_QUICK)
    return (
        f"{same / n:.1%} of {n:,} answers agree ({low:.1%} to {high:.1%}), on {len(heard)} of {len(boards)} boards, "
        f"{times:.2f} times as long as the active version" + (f" ({words})" if words else "")
    )
