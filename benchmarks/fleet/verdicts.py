"""How often an equal version is undone, and how often a worse one, in simulated fleets.

    python benchmarks/fleet/verdicts.py --runs 1000 --boards 10,100,1000
    python benchmarks/fleet/verdicts.py --runs 1000 --boards 10,100 --against      # beside another, a day long

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

from edgekit.fleet.rollouts.comparison import BoardFigures, Figures, Verdict, compare, contrast, usual_quarters
from edgekit.fleet.rollouts.wave_figures import MOST_OF_WAVE, MOST_OTHERS
from edgekit.fleet.rollouts.waves import RolloutPlan, RolloutStanding, Tally, decide, wanted, waves_of
from edgekit_runtime.telemetry.histogram import Histogram

DAY, QUARTER = 24 * 60, 15
BURST = 20
BUCKETS = np.arange(0, 10 * 32)
LATE = np.log2(40.0) <= BUCKETS / 32
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """per_minute: requests of a board.
    errors: share of them.
    heavy_tailed: requests are Pareto's. unlike: boards differ in speed and errors, too.

    bursts: share of the time that a board fails or is slow by itself, 20 minutes at once. day: how many times as slow
    all boards are after an hour. evening: how many times the errors all boards have in the last three hours before and
    since. busy: one board has 1,000 times the requests of the others, and is quick.
    hostile: one board of the first wave, or outside it, fails every request from the roll-out on.
    """

    per_minute: float = 12.0
    errors: float = 0.001
    heavy_tailed: bool = False
    unlike: bool = False
    busy: bool = False
    bursts: float = 0.0
    day: float = 1.0
    evening: float = 1.0
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
    "ten times the errors in the evening": Law(evening=10.0),
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
        self.before = self._day_before()
        self.waves = list[Array]()  # since, of each wave before
        self.since, self._before = np.zeros((boards, 3 + len(BUCKETS))), dict[int, Figures]()

    def _day_before(self) -> Array:
        """(boards, quarters of an hour, usual or bad minutes, errors or answers in time or late answers)."""
        draw, law, boards = self.draw, self.law, len(self.rate)
        quarters = DAY // QUARTER
        bad = np.zeros((boards, DAY))
        for board, n in enumerate(draw.poisson(law.bursts * DAY / BURST, boards).tolist()):
            for start in draw.integers(1 - BURST, DAY, n).tolist():
                bad[board, max(0, start) : start + BURST] = 1
        bad = bad.reshape(boards, quarters, QUARTER).sum(2)
        minutes = np.stack([QUARTER - bad, bad], 2)
        requests = draw.poisson(self.rate[:, None, None] * minutes)
        errors = np.broadcast_to(self.errors[:, None, None], requests.shape).copy()
        errors[:, -12:] *= law.evening
        errors[:, :, 1] = np.maximum(errors[:, :, 1], 0.8)
        failed = draw.binomial(requests, np.clip(errors, 0, 1))
        late = np.stack([self._shares(np.arange(boards), slower)[:, LATE].sum(1) for slower in (1.0, 3.0)], 1)
        late = draw.binomial(requests - failed, np.clip(late[:, None, :], 0, 1))
        return np.stack([failed, requests - failed - late, late], 3)

    def _shares(self, which: NDArray[np.int64], slower: float | Array) -> Array:
        """Of answers, in each bucket: (boards, buckets)."""
        edges = (BUCKETS + 1) / 32 * np.log(2)
        middle = np.log(self.median[which] * slower)[:, None]
        below = 1 / (1 + np.exp(-(edges - middle) / self.spread[which][:, None]))
        shares = np.diff(below, prepend=0.0)
        shares[:, -1] += 1 - below[:, -1]
        return np.asarray(shares)

    def _count(self, which: NDArray[np.int64], minutes: Array, slower: Array, errors: Array) -> Array:
        """(boards, 3 + buckets)."""
        requests = self.draw.poisson(self.rate[which] * minutes)
        failed = self.draw.binomial(requests, np.clip(errors, 0, 1))
        buckets = self.draw.multinomial(requests - failed, self._shares(which, slower))
        return np.column_stack([requests - failed, failed, buckets[:, LATE].sum(1), buckets]).astype(float)

    def pass_time(self, which: NDArray[np.int64], new: NDArray[np.bool_], minutes: int) -> None:
        """new: the boards that run the new version."""
        law = self.law
        starts = self.draw.random(len(self.until)) < law.bursts * minutes / BURST
        self.until = np.where(starts & (self.until <= self.minute), self.minute + BURST, self.until)
        bad = self.until[which] > self.minute
        slower = np.where(new, self.version.slower, 1.0) * (1 + (law.day - 1) * min(1.0, self.minute / 60))
        errors = self.law.evening * self.errors[which] + np.where(new, self.version.errors, 0.0)
        slower, errors = np.where(bad, 3 * slower, slower), np.where(bad, np.maximum(errors, 0.8), errors)
        errors = np.where(which == self.hostile, 1.0, errors)
        self.since[which] += self._count(which, np.full(len(which), float(minutes)), slower, errors)
        self.minute += minutes

    def begin_wave(self, moved: NDArray[np.bool_]) -> None:
        """What was before stays so; boards that have not moved add to it."""
        self.waves.append(np.where(moved[:, None], 0, self.since))
        self.since[:] = 0
        self._before.clear()

    def figures(self, which: NDArray[np.int64]) -> Iterator[BoardFigures]:
        for board in which.tolist():
            if board not in self._before:
                self._before[board] = self._figures_before(board)
            yield BoardFigures(str(board), self._before[board], _figures(self.since[board]))

    def _figures_before(self, board: int) -> Figures:
        """As the server reads them: without quarters in which the board failed by itself."""
        rows = self.before[board]
        failed, in_time, late = rows.sum(1).T
        counted = np.column_stack([failed + in_time + late, failed, late]).astype(int).tolist()
        counted += [(int(row[0] + row[1]), int(row[1]), int(row[2])) for row in (wave[board] for wave in self.waves)]
        kept = usual_quarters([tuple(row) for row in counted])
        some = rows[[place for place in kept if place < len(rows)]].sum(0)
        total = sum(
            (self.waves[place - len(rows)][board] for place in kept if place >= len(rows)), np.zeros(len(LATE) + 3)
        )
        for bad, slower in enumerate((1.0, 3.0)):
            (shares,) = self._shares(np.array([board]), slower)
            for answers, where in ((some[bad, 1], ~LATE), (some[bad, 2], LATE)):
                if answers:
                    part = np.where(where, shares, 0.0)
                    total[3:] += self.draw.multinomial(answers, part / part.sum())
        total[0] += some[:, 1:].sum()
        total[1:3] += some[:, 0].sum(), some[:, 2].sum()
        answered = sum(row[0] > 0 for row in counted)
        return replace(_figures(total), unusual=1 - len(kept) / answered if answered else 0.0)


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


def run_beside(law: Law, version: Version, boards: int, seed: int) -> Verdict:
    """Half of the boards have the version for a day: the first look that finds a difference, or the last."""
    fleet = Fleet(law, version, boards, np.random.default_rng([seed, boards]))
    every = np.arange(boards)
    b, a = every[: (boards + 1) // 2][:MOST_OF_WAVE], every[(boards + 1) // 2 :][:MOST_OTHERS]
    which, found = np.concatenate([b, a]), Verdict("unknown")
    while fleet.minute < DAY and found.says in ("unknown", "same"):
        fleet.pass_time(which, which < (boards + 1) // 2, max(2, fleet.minute // 60))
        found = contrast(list(fleet.figures(a)), list(fleet.figures(b)), boards=len(b))
    return found


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
    parser.add_argument("--against", action="store_true")
    parser.add_argument("--from", dest="first", type=int, default=0)
    options = parser.parse_args()
    for name, law in LAWS.items():
        if options.laws and not any(part in name for part in options.laws.split(",")):
            continue
        for boards in map(int, options.boards.split(",")):
            for version_name, version in VERSIONS.items():
                runs = options.runs if version == Version() else options.worse_runs
                seeds = range(options.first, options.first + runs)
                if options.against:
                    said = Counter(run_beside(law, version, boards, seed).says for seed in seeds)
                    print(f"| {name} | {boards} | {version_name} | {dict(sorted(said.items()))} |", flush=True)
                    continue
                found = Counter(
                    (standing.state, standing.wave + 1)
                    for standing in (roll_out(law, version, boards, seed) for seed in seeds)
                )
                undone = sum(n for (state, _), n in found.items() if state == "undoing")
                where = ", ".join(f"{state} in wave {wave}: {n}" for (state, wave), n in sorted(found.items()))
                print(f"| {name} | {boards} | {version_name} | {undone} of {runs} | {where} |", flush=True)


if __name__ == "__main__":
    main()
