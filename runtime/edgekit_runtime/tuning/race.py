"""Which candidate is the fastest: the order of trials and when to stop, without a clock or an engine in it.

    race = Race(candidates=6, bound_s=5.0)
    while (step := race.next(elapsed_s)) is not None:
        ...                                   # Enter: load and try it; Duel: run both in turn; Leave: free it
    race.champion

Rules:
- most promising first: the first that passes its self-test is the champion, the others challenge it one after another,
  so that no more than two are in memory;
- champion and challenger run in turn within a round, and the ratio of the round is what counts: a neighbour that takes
  the processor takes it from both;
- effort goes where it is close: a challenger twice as slow is sent away after two rounds, a clear loser or winner after
  three, and only the near ones run all rounds;
- to take over, a challenger must be faster by more than the noise; at a tie the more promising one stays;
- when the bound is over nobody else enters, and who was being compared is judged by what is known.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

__all__ = ["Duel", "Enter", "Leave", "Race", "Step"]

ROUNDS = 7
LEAST_GAIN = 0.05
"""A challenger must be faster by this share."""
HOPELESS = 4.0
"""A candidate that takes this many times as long does not get a round."""
_CLEAR = 0.15
_FEWEST = 3


@dataclass(frozen=True)
class Enter:
    """Load the candidate, replay its golden examples, time a few runs; then `entered` or `refused`."""

    candidate: int


@dataclass(frozen=True)
class Duel:
    """Run both in turn, each for about `block_s`; then `dueled`."""

    champion: int
    challenger: int
    block_s: float


@dataclass(frozen=True)
class Leave:
    """Free the candidate; it is out."""

    candidate: int


Step = Enter | Duel | Leave


class Race:
    """candidates: how many there are, 0 being the most promising. bound_s: how long all of it may take."""

    def __init__(self, candidates: int, bound_s: float) -> None:
        self._waiting = deque(range(candidates))
        self._bound_s = bound_s
        self._block_s = min(0.1, max(0.002, bound_s / max(1, candidates) / (2 * ROUNDS) / 2))
        self._challenger: int | None = None
        self._ratios: list[float] = []
        self._leaving: deque[int] = deque()
        self.champion: int | None = None
        self.ratios: dict[int, float] = {}
        """Candidate -> its median ratio to the champion of its time; above 1 is slower."""

    def next(self, elapsed_s: float) -> Step | None:
        """What to do now; None when it is over."""
        late = elapsed_s >= self._bound_s
        if self._challenger is not None and (late or self._decided()):
            self._settle()
        if self._leaving:
            return Leave(self._leaving.popleft())
        if self._challenger is not None:
            assert self.champion is not None
            return Duel(self.champion, self._challenger, self._block_s)
        if self._waiting and (self.champion is None or not late):
            return Enter(self._waiting.popleft())
        return None

    def entered(self, candidate: int, seconds: float, champion_s: float | None = None) -> None:
        """It passed. seconds: of one run, champion_s: what the champion took before it; a hopeless one does not duel."""
        if self.champion is None:
            self.champion = candidate
            return
        if champion_s is not None and seconds > HOPELESS * champion_s:
            self.ratios[candidate] = seconds / champion_s
            self._leaving.append(candidate)
            return
        self._challenger, self._ratios = candidate, []

    def refused(self, candidate: int) -> None:
        """It cannot be loaded, fails its self-test, or does not fit: as if it had never been there."""

    def dueled(self, champion_s: float, challenger_s: float) -> None:
        """The medians of one round, in seconds a run."""
        self._ratios.append(challenger_s / max(champion_s, 1e-9))

    @property
    def left(self) -> tuple[int, ...]:
        """Those that never came to their turn."""
        return tuple(self._waiting)

    def _decided(self) -> bool:
        rounds, middle = len(self._ratios), statistics.median(self._ratios or [1.0])
        if rounds >= ROUNDS:
            return True
        if rounds == 2 and min(self._ratios) > 2:
            return True
        return rounds >= _FEWEST and abs(middle - 1) > _CLEAR

    def _settle(self) -> None:
        assert self._challenger is not None
        assert self.champion is not None
        challenger, self._challenger = self._challenger, None
        if not self._ratios:  # the bound was over before its first round: nothing is known of it
            self._leaving.append(challenger)
            return
        ratio = statistics.median(self._ratios)
        self.ratios[challenger] = ratio
        if ratio < 1 - LEAST_GAIN and len(self._ratios) >= _FEWEST:
            challenger, self.champion = self.champion, challenger
        self._leaving.append(challenger)
