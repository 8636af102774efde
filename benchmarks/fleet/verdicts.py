"""How often an equal version is undone, and how often a worse one, in simulated fleets.

    python benchmarks/fleet/verdicts.py --runs 1000 --boards 10,100,1000

The rule is the fleet server's own (`comparison` and `waves`, with the default plan); boards and clock are simulated.
A wave is compared every other minute, or each sixtieth of its time if that is more. Latencies are log-logistic.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgekit.fleet.rollouts.comparison import BoardFigures, Figures, Verdict, compare
from edgekit.fleet.rollouts.wave_figures import MOST_OF_WAVE, MOST_OTHERS
from edgekit.fleet.rollouts.waves import RolloutPlan, RolloutStanding, Tally, decide, wanted, waves_of
from edgekit_runtime.telemetry.histogram import Histogram

DAY = 24 * 60
BURST = 20
BUCKETS = np.arange(0, 10 * 32)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """per_minute: requests of a board.
    errors: share of them.
    heavy_tailed: requests are Pareto's. unlike: boards differ in speed and errors, too.

    bursts: share of the time that a board fails or is slow by itself, 20 minutes at once. day: how many times as slow
    all boards are after an hour. busy: one board has 1,000 times the requests of the others, and is quick.
    hostile: one board of the first wave, or outside it, fails every request from the roll-out on.
    """

    per_minute: float = 12.0
    errors: float = 0.001
    heavy_tailed: bool = False
    unlike: bool = False
    busy: bool = False
    bursts: float = 0.0
    day: float = 1.0
    hostile: str = ""


LAWS = {
    "equal boards": Law(),
    "heavy-tailed traffic": Law(heavy_tailed=True),
    "one busy board": Law(busy=True),
    "rare errors (1e-5)": Law(errors=1e-5),
    "no errors": Law(errors=0.0),
    "one request a minute": Law(per_minute=1.0),
    "boards unlike each other": Law(unlike=True, heavy_tailed=True),
    "bursts, 1 % of the time": Law(bursts=0.01),
    "bursts, 5 % of the time": Law(bursts=0.05),
    "all slower within an hour, 1.5 times": Law(day=1.5),
    "a hostile board in the first wave": Law(hostile="wave"),
    "a hostile board outside it": Law(hostile="others"),
}
"""Name -> how boards behave with the former version."""


@dataclass(frozen=True)
class Version:
    """slower: times. errors: more of the requests, a share."""

    slower: float = 1.0
    errors: float = 0.0


VERSIONS = {"equal": Version(), "1.4 times slower": Version(slower=1.4), "2 % more errors": Version(errors=0.02)}


class Fleet:
    """Boards in the order of their waves, with answers, errors, late ones, and buckets."""

    def __init__(self, law: Law, version: Version, boards: int, draw: np.random.Generator) -> None:
        self.law, self.version, self.draw, self.minute = law, version, draw, 0
        self.median, self.spread = np.full(boards, 20.0), np.full(boards, 0.11)
        self.rate, self.errors = np.full(boards, law.per_minute), np.full(boards, law.errors)
        if law.heavy_tailed:
            self.rate = np.minimum(100 * self.rate, self.rate * (draw.pareto(1.1, boards) + 0.1))
        if law.unlike:
            self.median, self.spread = draw.uniform(9, 90, boards), draw.uniform(0.05, 0.2, boards)
            self.errors = np.minimum(0.01, self.errors * draw.lognormal(0, 2, boards))
            self.errors[draw.random(boards) < 0.02] = 1.0
        if law.busy:
            busy = draw.integers(boards)
            self.rate[busy], self.median[busy] = 1000 * law.per_minute, 2.0
        self.hostile = {"": -1, "wave": 0, "others": boards - 1}[law.hostile]
        self.until = np.full(boards, -1.0)
        every = np.arange(boards)
        bad = draw.binomial(DAY, law.bursts, boards) if law.bursts else np.zeros(boards)
        self.before = self._count(every, DAY - bad, np.ones(boards), self.errors)
        if law.bursts:
            self.before += self._count(every, bad, np.full(boards, 3.0), np.full(boards, 0.8))
        self.since, self._before = np.zeros_like(self.before), dict[int, Figures]()

    def _count(self, which: NDArray[np.int64], minutes: Array, slower: Array, errors: Array) -> Array:
        """(boards, 3 + buckets)."""
        requests = self.draw.poisson(self.rate[which] * minutes)
        failed = self.draw.binomial(requests, np.clip(errors, 0, 1))
        edges = (BUCKETS + 1) / 32 * np.log(2)
        below = 1 / (1 + np.exp(-(edges - np.log(self.median[which] * slower)[:, None]) / self.spread[which][:, None]))
        shares = np.diff(below, prepend=0.0)
        shares[:, -1] += 1 - below[:, -1]
        buckets = self.draw.multinomial(requests - failed, shares)
        late = buckets @ (np.log2(40.0) <= BUCKETS / 32)
        return np.column_stack([requests - failed, failed, late, buckets]).astype(float)

    def pass_time(self, which: NDArray[np.int64], new: NDArray[np.bool_], minutes: int) -> None:
        """new: the boards that run the new version."""
        law = self.law
        starts = self.draw.random(len(self.until)) < law.bursts * minutes / BURST
        self.until = np.where(starts & (self.until <= self.minute), self.minute + BURST, self.until)
        bad = self.until[which] > self.minute
        slower = np.where(new, self.version.slower, 1.0) * (1 + (law.day - 1) * min(1.0, self.minute / 60))
        errors = self.errors[which] + np.where(new, self.version.errors, 0.0)
        slower, errors = np.where(bad, 3 * slower, slower), np.where(bad, np.maximum(errors, 0.8), errors)
        errors = np.where(which == self.hostile, 1.0, errors)
        self.since[which] += self._count(which, np.full(len(which), float(minutes)), slower, errors)
        self.minute += minutes

    def begin_wave(self, moved: NDArray[np.bool_]) -> None:
        """What was before stays so; boards that have not moved add to it."""
        self.before[~moved] += self.since[~moved]
        self.since[:] = 0
        self._before.clear()

    def figures(self, which: NDArray[np.int64]) -> Iterator[BoardFigures]:
        for board in which.tolist():
            if board not in self._before:
                self._before[board] = _figures(self.before[board])
            yield BoardFigures(str(board), self._before[board], _figures(self.since[board]))


def _figures(row: Array) -> Figures:
    (there,) = row[3:].nonzero()
    histogram = Histogram(dict(zip((there + BUCKETS[0]).tolist(), row[3 + there].astype(int).tolist(), strict=True)))
    return Figures(int(row[0]), int(row[1]), int(row[2]), histogram)


def roll_out(law: Law, version: Version, boards: int, seed: int, plan: RolloutPlan | None = None) -> RolloutStanding:
    """One roll-out to its end, or until it pauses."""
    plan, draw = plan or RolloutPlan(), np.random.default_rng([seed, boards])
    fleet = Fleet(law, version, boards, draw)
    waves = np.array(sorted(waves_of(seed, map(str, range(boards)), plan.waves).values()))
    standing = RolloutStanding()
    while standing.state == "running":
        wave = np.flatnonzero(waves == standing.wave)
        others = np.flatnonzero(waves > standing.wave)
        others = draw.permutation(others if len(others) else np.flatnonzero(waves < standing.wave))[:MOST_OTHERS]
        fleet.begin_wave(waves < standing.wave)
        before = standing
        while standing == before:
            which = np.concatenate([wave[:MOST_OF_WAVE], others])
            fleet.pass_time(
                which, waves[which] <= standing.wave, max(2, (fleet.minute - standing.since_ms // 60_000) // 60)
            )
            verdict = _verdict(fleet, wave[:MOST_OF_WAVE], others, boards, plan, standing)
            now, spare = fleet.minute * 60_000, np.flatnonzero(waves > standing.wave)
            size = len(wave)
            tally = Tally(size, 0, size, 0, standing.since_ms, spare=len(spare), all=boards)
            if more := wanted(tally, verdict):
                fleet.begin_wave(waves <= standing.wave)
                waves[spare[:more]] = standing.wave
                wave = np.flatnonzero(waves == standing.wave)
                others = np.setdiff1d(others, wave)
                before = standing = replace(standing, since_ms=now)
                continue
            standing = decide(plan, standing, tally, verdict, now)
    return standing


def _verdict(
    fleet: Fleet,
    wave: NDArray[np.int64],
    others: NDArray[np.int64],
    boards: int,
    plan: RolloutPlan,
    standing: RolloutStanding,
) -> Verdict:
    return compare(
        list(fleet.figures(wave)), list(fleet.figures(others)), boards=boards, waves=len(plan.waves),
        p99_margin=plan.p99_margin, ratio_margin=plan.ratio_margin, earlier=standing.evidence,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--worse-runs", type=int, default=200)
    parser.add_argument("--boards", default="10,100,1000")
    parser.add_argument("--laws", default="")
    options = parser.parse_args()
    for name, law in LAWS.items():
        if options.laws and not any(part in name for part in options.laws.split(",")):
            continue
        for boards in map(int, options.boards.split(",")):
            for version_name, version in VERSIONS.items():
                runs = options.runs if version == Version() else options.worse_runs
                found = Counter(
                    (standing.state, standing.wave + 1)
                    for standing in (roll_out(law, version, boards, seed) for seed in range(runs))
                )
                undone = sum(n for (state, _), n in found.items() if state == "undoing")
                where = ", ".join(f"{state} in wave {wave}: {n}" for (state, wave), n in sorted(found.items()))
                print(f"| {name} | {boards} | {version_name} | {undone} of {runs} | {where} |", flush=True)


if __name__ == "__main__":
    main()
