"""edgekit simulate offload: how often policies meet a budget, on a virtual clock."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import PATH, as_json, print_json, refuse_unwritable, say

SWEEPS = ("load", "rtt", "concurrency", "bursts", "outage", "slow-host", "devices")


@click.group()
def simulate() -> None:
    """Try a policy without a board.

    \b
    edgekit simulate offload --sweep load
    """


@simulate.command()
@click.option(
    "--scenario", "names", multiple=True, metavar="NAME", help="Only those whose name holds this; repeatable."
)
@click.option("--sweep", type=click.Choice(SWEEPS), help="Change one value of the first scenario instead.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests a second of each device.")
@click.option("--budget", "budget_ms", type=click.FloatRange(0, min_open=True), metavar="MS", help="Of each request.")
@click.option("--service", "service_ms", type=click.FloatRange(0, min_open=True), metavar="MS", help="Of the device.")
@click.option("--rtt", "rtt_ms", type=click.FloatRange(0, min_open=True), metavar="MS", help="Of the network.")
@click.option("--seeds", type=click.IntRange(1, 100), default=2, show_default=True, help="How many traces.")
@click.option("--first-seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--seconds", type=click.FloatRange(1, 3600), default=60.0, show_default=True, help="Of each trace.")
@click.option("--plot", type=PATH, metavar="FILE", help="Write the chart as an HTML page.")
@as_json
def offload(
    names: tuple[str, ...],
    sweep: str | None,
    seeds: int,
    first_seed: int,
    seconds: float,
    plot: Path | None,
    as_json: bool,
    **values: float | None,
) -> None:
    """Compare offload policies: shares answered in time.

    All of them get the same arrivals, service times and networks.

    \b
    edgekit simulate offload
    edgekit simulate offload --scenario "WAN 60/s" --seeds 5 --plot wan.html
    edgekit simulate offload --sweep rtt --rate 40 --budget 100 --service 35

    `edgekit` is the runtime's own code. `bound` knows the future: no policy meets more. A cell is met / offloaded.
    """
    from dataclasses import replace

    from edgekit.packaging.writer import write_whole
    from edgekit.simulate.compare import compare, page, sweep_scenarios
    from edgekit.simulate.traces import SCENARIOS

    given: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    chosen = {  # scenarios that own values made alike have one name, and one row
        _scenario_name(name, values): replace(scenario, **given)
        for name, scenario in SCENARIOS.items()
        if not names or any(part.casefold() in name.casefold() for part in names)
    }
    if not chosen:
        raise click.UsageError(f"no scenario's name holds that; there are: {', '.join(SCENARIOS)}")
    if sweep is not None:
        chosen = sweep_scenarios(next(iter(chosen.values())), sweep)
    if plot is not None:
        refuse_unwritable(plot, "--plot")
    shown = not as_json and sys.stderr.isatty()
    rows = compare(
        chosen,
        seeds=range(first_seed, first_seed + seeds),
        seconds=seconds,
        progress=lambda name: say(f"{name} ...", err=True) if shown else None,
    )
    if plot is not None:
        write_whole(plot, page(rows).encode(), "the chart")
    if as_json:
        keys = ("bound", "met", "offloaded", "wasted", "latest_ms")
        print_json({"scenarios": {name: {key: getattr(row, key) for key in keys} for name, row in rows.items()}})
        return
    policies = list(next(iter(rows.values())).met)
    say(f"{'met / offloaded, %':<22}{'bound':>7}" + "".join(f"{policy:>19}" for policy in policies))
    for name, row in rows.items():
        cells = "".join(f"{row.met[one]:>12.1%} /{row.offloaded[one]:>4.0%} "[:19].rjust(19) for one in policies)
        say(f"{name:<22}{row.bound:>7.1%}{cells}")


def _scenario_name(name: str, values: dict[str, float | None]) -> str:
    """The scenario's name with the rate and the network that were asked for."""
    rate, rtt_ms = values["rate"], values["rtt_ms"]
    if rate is not None:
        name = re.sub(r"\d+/s", f"{rate:g}/s", name)
    return name if rtt_ms is None else re.sub("LAN|WAN", f"{rtt_ms:g} ms", name)
