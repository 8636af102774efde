"""Twelve scenarios on held-out seeds: every policy, the bound, and how soon trouble is over. No board, no waiting.

    .venv/bin/python benchmarks/fallback/simulate.py            # writes simulate.json, prints README.md's tables

The seeds are not those that the policy's constants were looked at with (1 to 3). A virtual clock: load of this machine
changes nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

from policies import POLICIES, bound, play
from traces import SCENARIOS, Scenario, Spells, Trace, draw

HERE = Path(__file__).parent
SEEDS = (11, 12, 13, 14)
HOME_S, AGAIN_S = 2.0, 1.0
_AS_ONE = 280.0
"""Requests a second of all devices together, from which a scenario's time is shortened."""


@dataclass
class ScenarioRow:
    """One scenario; shares are means of the seeds.

    met, offloaded: policy -> share of the requests
    wasted: policy -> share of the device's time
    latest_ms: policy -> how long after its deadline the last caller had its answer
    bound: the share that no policy exceeds
    """

    met: dict[str, float] = field(default_factory=dict)
    offloaded: dict[str, float] = field(default_factory=dict)
    wasted: dict[str, float] = field(default_factory=dict)
    latest_ms: dict[str, float] = field(default_factory=dict)
    bound: float = 1.0

    @property
    def against_simple(self) -> float:
        """edgekit's share less the greater one of always-device and always-host."""
        return self.met["edgekit"] - max(self.met["always device"], self.met["always host"])

    @property
    def to_bound(self) -> float:
        return self.bound - self.met["edgekit"]


def compare(
    scenarios: Mapping[str, Scenario],
    *,
    seeds: Sequence[int],
    seconds: float,
    policies: Sequence[str] = POLICIES,
    progress: Callable[[str], object] = lambda name: None,
) -> dict[str, ScenarioRow]:
    """Play every scenario. seconds: of each trace; shorter where many devices ask."""
    rows = {}
    for name, scenario in scenarios.items():
        progress(name)
        rate = scenario.rate * scenario.devices
        requests = max(50, int(min(rate, _AS_ONE / 4 if rate >= _AS_ONE else rate) * seconds))
        traces = [draw(scenario, seed, requests) for seed in seeds]
        row = ScenarioRow(bound=fmean(bound(trace) for trace in traces))
        for policy in policies:
            played = [play(trace, policy) for trace in traces]
            row.met[policy] = fmean(one.share for one in played)
            row.offloaded[policy] = fmean(one.offload for one in played)
            row.wasted[policy] = fmean(one.wasted_s / one.busy_s if one.busy_s else 0.0 for one in played)
            row.latest_ms[policy] = max(max(one.at_ms) for one in played) - scenario.budget_ms
        rows[name] = row
    return rows


_STEADY = Scenario(60.0, hot_s=0.0, bad_s=0.0, loss=0.0)
RECOVERIES: dict[str, tuple[Scenario, Callable[[Trace], Spells], str]] = {
    "503 is over": (replace(_STEADY, busy_s=3.0), lambda trace: trace.busy, "host"),
    "the slow host is fast": (replace(_STEADY, slow_factor=40.0), lambda trace: trace.slow, "host"),
    "the outage is over": (replace(_STEADY, outage_s=20.0), lambda trace: trace.gone, "host"),
    "the device is cool": (
        replace(_STEADY, rate=35.0, hot_s=8.0, hot_every_s=20.0, hot_factor=6.0),
        lambda trace: trace.hot,
        "device",
    ),
}
"""Trouble -> the scenario, its spells, and who answers once they are over."""


def recovery(name: str, *, seeds: Sequence[int], seconds: float = 60.0) -> list[float]:
    """Seconds from the end of each trouble to the first answer from the right place."""
    scenario, spells, source = RECOVERIES[name]
    found = []
    for seed in seeds:
        trace = draw(scenario, seed, int(scenario.rate * seconds))
        sources = sorted(play(trace, "edgekit").sources)
        for end in spells(trace).ends_between(0.0, trace.seconds - 5.0):
            found.append(next(answered - end for answered, by in sources if answered >= end and by == source))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "simulate.json")
    options = parser.parse_args()
    rows = compare(SCENARIOS, seeds=SEEDS, seconds=options.seconds, progress=print)
    after = {name: recovery(name, seeds=SEEDS) for name in RECOVERIES}
    found = {
        "seeds": SEEDS,
        "seconds": options.seconds,
        "scenarios": {name: asdict(row) for name, row in rows.items()},
        "worst_against_simple": min(row.against_simple for row in rows.values()),
        "mean_to_bound": fmean(row.to_bound for row in rows.values()),
        "offloaded_at_0.3_of_capacity": rows["LAN 15/s"].offloaded["edgekit"],
        "latest_ms": max(row.latest_ms["edgekit"] for row in rows.values()),
        "recovery_s": {
            name: {"mean": fmean(one), "longest": max(one), "times": len(one)} for name, one in after.items()
        },
    }
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join([*table(rows), "", *summary(found)]))


def table(rows: dict[str, ScenarioRow]) -> list[str]:
    lines = [f"| scenario | bound | {' | '.join(POLICIES)} |", "|---|---" + "|---" * len(POLICIES) + "|"]
    for name, row in rows.items():
        cells = [f"{100 * row.met[one]:.1f} / {100 * row.offloaded[one]:.0f}" for one in POLICIES]
        lines.append(f"| {name} | {100 * row.bound:.1f} | {' | '.join(cells)} |")
    return lines


def summary(found: dict) -> list[str]:
    lines = [
        "| figure | reached | wanted |",
        "|---|---|---|",
        f"| worst against the better of device and host | {100 * found['worst_against_simple']:+.1f} points | >= -1 |",
        f"| mean distance to the bound | {100 * found['mean_to_bound']:.1f} points | <= 3 |",
        f"| offloaded at 0.3 of capacity | {100 * found['offloaded_at_0.3_of_capacity']:.0f} % | <= 20 % |",
        f"| latest word to a caller after its deadline | {max(0.0, round(found['latest_ms'], 6)):g} ms | 0 |",
    ]
    for name, one in found["recovery_s"].items():
        wanted = HOME_S if "device" in name else AGAIN_S
        lines.append(
            f"| {name}: seconds until it answers again, mean and longest of {one['times']} | "
            f"{one['mean']:.2f}, {one['longest']:.2f} | < {wanted:g} |"
        )
    return lines


if __name__ == "__main__":
    main()
