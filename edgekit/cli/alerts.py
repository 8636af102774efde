"""edgekit fleet alerts, acknowledge, silence, check: what is wrong, and rules tried."""

from __future__ import annotations

import getpass
import time
from datetime import datetime, timezone
from pathlib import Path

import click

from edgekit.cli.options import PATH, as_json, print_json
from edgekit.cli.rollouts import STORE


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that cleared.")
@STORE
@as_json
def alerts(everything: bool, store: str, as_json: bool) -> int:
    """List what is wrong now. Exits 1 where something is.

    \b
    edgekit fleet alerts
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.serve import open_store

    opened = open_store(store, make=False)
    try:
        found = AlertTables(opened).list(active=not everything)
    finally:
        opened.close()
    if as_json:
        print_json({"alerts": [one.as_json("cleared" if one.cleared_ms else "opened") for one in found]})
    else:
        for one in found:
            state = (
                f"until {_at(one.cleared_ms)}" if one.cleared_ms else f"{one.taken_by} has it" if one.taken_by else ""
            )
            click.echo(f"{one.id:>4}  {_at(one.opened_ms)}  {one.text}  {state}".rstrip())
        if not found:
            click.echo("nothing is wrong")
    return 1 if any(not one.cleared_ms for one in found) else 0


@click.command()
@click.argument("number", type=int)
@click.option("--by", metavar="NAME", help="Who has it. Default: your user name.")
@STORE
@as_json
def acknowledge(number: int, by: str | None, store: str, as_json: bool) -> int:
    """Acknowledge alert NUMBER: you look after it.

    \b
    edgekit fleet acknowledge 12
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.serve import open_store

    opened = open_store(store, make=False)
    try:
        taken = AlertTables(opened).acknowledge(number, by or getpass.getuser(), _now_ms())
    finally:
        opened.close()
    if as_json:
        print_json({"alert": taken.id, "by": taken.taken_by})
    else:
        click.echo(f"{taken.taken_by} has alert {taken.id}: {taken.text}")
    return 0


@click.command()
@click.argument("what")
@click.option("--hours", type=click.FloatRange(0, 24 * 365), default=2.0, show_default=True, help="How long.")
@STORE
@as_json
def silence(what: str, hours: float, store: str, as_json: bool) -> int:
    """Send no messages about an alert, or a kind of alert.

    WHAT is the alert's key or the kind. An alert that is still open at the end is sent then.

    \b
    edgekit fleet silence offline --hours 8
    edgekit fleet silence p99:net:7:raspberry-pi-4
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.serve import open_store

    until_ms = _now_ms() + int(hours * 3_600_000)
    opened = open_store(store, make=False)
    try:
        AlertTables(opened).silence(what, until_ms)
    finally:
        opened.close()
    if as_json:
        print_json({"silenced": what, "until_ms": until_ms})
    else:
        click.echo(f"no message about {what} until {_at(until_ms)}")
    return 0


@click.command()
@click.argument("rules", type=PATH, required=False)
@click.option("--hours", type=click.FloatRange(0, 48), default=24.0, show_default=True, help="How far back.")
@STORE
@as_json
def check(rules: Path | None, hours: float, store: str, as_json: bool) -> int:
    """Try alert RULES on the stored data.

    Prints the alerts that they would have raised; without RULES, those of the default bounds.

    \b
    edgekit fleet check alerts.toml --hours 24
    """
    from edgekit.fleet.alerting import replay
    from edgekit.fleet.alerts.alerts import Rules, read_rules
    from edgekit.fleet.serve import open_store

    read = read_rules(rules) if rules is not None else Rules()
    opened = open_store(store, make=False)
    now = _now_ms()
    try:
        found = list(replay(opened, read, now - int(hours * 3_600_000), now))
    finally:
        opened.close()
    if as_json:
        findings = [{"at_ms": at, "event": event, "key": one.key, "text": one.text} for at, event, one in found]
        print_json({"told": findings})
        return 0
    for at, event, one in found:
        click.echo(f"{_at(at)}  {event:<7}  {one.text}")
    opened_n = sum(event == "opened" for _, event, _ in found)
    left_out = "lag, throttling, failing boards and each board's own p99 are not in stored data"
    click.echo(f"{opened_n} alerts in {hours:g} hours; {left_out}")
    return 0


COMMANDS: tuple[click.Command, ...] = (alerts, acknowledge, silence, check)


def _at(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"


def _now_ms() -> int:
    return int(time.time() * 1000)
