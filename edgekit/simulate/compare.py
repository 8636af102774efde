"""Every policy on the same traces.
Shares met, offloaded and wasted, the bound, and the time of recovery.

rows = compare(sweep_scenarios(SCENARIOS["LAN 35/s"], "load"), seeds=(1,), seconds=60.0)
recovery("busy host", seeds=(1, 2)).longest_s
page(rows)       # an HTML document with its script: the share met of each policy, a group of bars a scenario
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from statistics import fmean
from typing import Any

from edgekit.report.html import plotly_script
from edgekit.simulate.policies import POLICIES, bound, play
from edgekit.simulate.traces import Scenario, Spells, Trace, draw

SWEEPS: dict[str, tuple[str, tuple[float, ...]]] = {
    "load": ("rate", (7.5, 15.0, 25.0, 35.0, 50.0, 75.0)),
    "rtt": ("rtt_ms", (5.0, 12.0, 25.0, 40.0, 80.0)),
    "concurrency": ("host_slots", (1, 2, 4, 16)),
    "bursts": ("burst", (1.0, 2.0, 4.0, 8.0, 16.0)),
    "outage": ("outage_s", (0.0, 5.0, 15.0, 30.0)),
    "slow-host": ("slow_factor", (1.0, 3.0, 8.0, 20.0)),
    "devices": ("devices", (1, 2, 4, 8, 16)),
}
"""Name -> (field of a scenario, its values)."""
_AS_ONE = 280.0
"""Requests a second of all devices together, from which a scenario's time is shortened."""


@dataclass
class ScenarioRow:
    """One scenario.
    met, offloaded, wasted: policy -> share, the mean of the seeds; wasted of the device's time.
    bound: the share that no policy exceeds.
    latest_ms: policy -> how long after its deadline the last caller had its answer."""

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


def sweep_scenarios(scenario: Scenario, name: str) -> dict[str, Scenario]:
    """The scenario with one value changed, by name.
    Raises KeyError for an unknown sweep."""
    of, values = SWEEPS[name]
    return {f"{of} {value:g}": replace(scenario, **{of: value}) for value in values}  # type: ignore[arg-type]


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


@dataclass(frozen=True)
class RecoveryTime:
    """Seconds from the end of each trouble to the first request that was answered well again."""

    seconds: tuple[float, ...]

    @property
    def longest_s(self) -> float:
        return max(self.seconds, default=0.0)


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


def recovery(name: str, *, seeds: Sequence[int], seconds: float = 60.0) -> RecoveryTime:
    """Seconds from the end of this trouble to the first answer from the right place."""
    scenario, spells, source = RECOVERIES[name]
    found = []
    for seed in seeds:
        trace = draw(scenario, seed, int(scenario.rate * seconds))
        sources = sorted(play(trace, "edgekit").sources)
        for end in spells(trace).ends_between(0.0, trace.seconds - 5.0):
            found.append(next(answered - end for answered, by in sources if answered >= end and by == source))
    return RecoveryTime(tuple(found))


def figure(rows: Mapping[str, ScenarioRow]) -> dict[str, Any]:
    """The chart, as plotly takes it."""
    names = list(rows)
    policies = list(next(iter(rows.values())).met) if rows else []
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": policy,
            "x": names,
            "y": [rows[name].met[policy] for name in names],
            "customdata": [rows[name].offloaded[policy] for name in names],
            "hovertemplate": "%{x}<br>%{y:.1%} met, %{customdata:.0%} offloaded",
        }
        for policy in policies
    ]
    bound = {"color": "black", "symbol": "line-ew-open", "size": 24}
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "bound",
            "x": names,
            "y": [row.bound for row in rows.values()],
            "marker": bound,
        }
    )
    layout = {
        "barmode": "group",
        "yaxis": {"title": "met within the budget", "tickformat": ".0%", "range": [0, 1.02]},
        "margin": {"t": 10},
    }
    return {"data": data, "layout": layout}


def page(rows: Mapping[str, ScenarioRow]) -> str:
    """Raises MissingExtraError without plotly."""
    shown = json.dumps(figure(rows)).replace("<", "\\u003c")
    cells = "".join(
        f"<tr><td>{escape(name)}<td>{row.bound:.1%}"
        + "".join(f"<td>{row.met[one]:.1%} / {row.offloaded[one]:.0%}" for one in row.met)
        for name, row in rows.items()
    )
    head = "".join(f"<th>{escape(one)}" for one in (next(iter(rows.values())).met if rows else ()))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Offload policies</title>'
        "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
        "td:first-child{text-align:left}</style><h1>Offload policies, met / offloaded</h1>"
        f'<div id="chart" style="height:480px"></div><table><tr><th><th>bound{head}{cells}</table>'
        f"<script>{plotly_script()}</script>"
        f"<script>const f={shown};Plotly.newPlot('chart',f.data,f.layout,{{responsive:true}})</script></html>"
    )
