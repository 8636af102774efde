"""How often an equal version passes its answers in silence, and one with other answers is refused.

    python benchmarks/fleet/shadows.py --runs 1000

The rule is the fleet server's own (`rollouts.shadows`), looked at every minute for an hour and then every tenth.
Boards, answers and clock are simulated. Times are log-normal around the active version's.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np

from edgekit.fleet.rollouts.comparison import Verdict
from edgekit.fleet.rollouts.shadows import BOARDS, ShadowFigures, judge
from edgekit_runtime.telemetry.histogram import Histogram

DAY = 24 * 60


@dataclass(frozen=True)
class Law:
    """per_minute: compared answers of a board. unlike: correlation of a board's answers (beta-binomial).

    burst: equal answers in a row. heavy_tailed: answers of boards are Pareto's. hostile: one board says all differ.
    """

    per_minute: float = 1.0
    unlike: float = 0.0
    burst: int = 1
    heavy_tailed: bool = False
    hostile: bool = False


LAWS = {
    "boards alike": Law(),
    "heavy-tailed traffic, boards unlike": Law(unlike=0.02, heavy_tailed=True),
    "the same five times in a row": Law(burst=5),
    "an answer in five minutes": Law(per_minute=0.2),
    "a hostile board": Law(hostile=True),
}
"""Name -> how boards ask."""


def shadow_rollout(law: Law, boards: int, other: float, seed: int, slower: float = 1.0, minutes: int = DAY) -> Verdict:
    """The verdict at the first look that has one, else that of the last. other: share of other answers."""
    draw, some = np.random.default_rng([seed, boards]), min(BOARDS, boards)
    shares, rates = np.full(some, other), np.full(some, law.per_minute)
    if law.unlike and other:
        shares = draw.beta(other * (1 / law.unlike - 1), (1 - other) * (1 / law.unlike - 1), some)
    if law.heavy_tailed:
        rates = np.minimum(100 * rates, rates * (draw.pareto(1.1, some) + 0.1))
    n, others = np.zeros(some, int), np.zeros(some, int)
    ratios = [Histogram(scale=3) for _ in range(some)]
    found = Verdict("unknown")
    for minute in range(1, minutes):
        new = draw.poisson(rates)
        bad = np.minimum(new, draw.binomial(-(-new // law.burst), shares) * law.burst)
        if law.hostile:
            bad[0] = new[0]
        n, others = n + new, others + bad
        for place, histogram in enumerate(ratios):
            for ratio in draw.lognormal(np.log(slower), 0.2, new[place]):
                histogram.record(float(ratio))
        if minute < 60 or not minute % 10:
            figures = [
                ShadowFigures("", int(n[place]), int(n[place] - others[place]), 0, ratios[place], device=str(place))
                for place in range(some)
            ]
            found = judge(figures, of=boards)
            if found.says != "unknown":
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    for name, law in LAWS.items():
        for boards in (3, 10, 100):
            for other, slower in ((0.0, 1.0), (0.005, 1.0), (0.05, 1.0), (0.0, 2.0)):
                found = Counter(shadow_rollout(law, boards, other, seed, slower).says for seed in range(options.runs))
                says = ", ".join(f"{word} {n}" for word, n in sorted(found.items()))
                what = f"{other:.1%} other answers, {slower:g} times as long"
                print(f"| {name} | {boards} | {what} | {says} |", flush=True)


if __name__ == "__main__":
    main()
