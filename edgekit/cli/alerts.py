"""edgekit fleet alerts, acknowledge, silence, check: what is wrong, and rules tried."""

from __future__ import annotations

import getpass
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import click

from edgekit.cli.options import PATH, as_json, print_json, shared, store

hours = shared("--hours", type=click.FloatRange(0, 48), default=24.0, show_default=True, help="How many hours back.")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include cleared alerts.")
@store()
@as_json
def alerts(everything: bool, store: str, as_json: bool) -> int:
    """List open alerts. Exits 1 if there are any.

    \b
    edgekit fleet alerts
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.serve import open_store

    with closing(open_store(store, make=False)) as opened:
        found = AlertTables(opened).list(active=not everything)
    if as_json:
        print_json({"alerts": [one.as_json("cleared" if one.cleared_ms else "opened") for one in found]})
    else:
        for one in found:
            state = (
                f"until {_at(one.cleared_ms)}"
                if one.cleared_ms
                else f"handled by {one.taken_by}"
                if one.taken_by
                else ""
            )
            click.echo(f"{one.id:>4}  {_at(one.opened_ms)}  {one.text}  {state}".rstrip())
        if not found:
            click.echo("no open alerts")
    return 1 if any(not one.cleared_ms for one in found) else 0


@click.command()
@click.argument("number", type=int)
@click.option("--by", metavar="NAME", help="Who is handling it. Default: your user name.")
@store()
@as_json
def acknowledge(number: int, by: str | None, store: str, as_json: bool) -> int:
    """Acknowledge alert NUMBER: you are handling it.

    \b
    edgekit fleet acknowledge 12
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.serve import open_store

    with closing(open_store(store, make=False)) as opened:
        taken = AlertTables(opened).acknowledge(number, by or getpass.getuser(), _now_ms())
    if as_json:
        print_json({"alert": taken.id, "by": taken.taken_by})
    else:
        click.echo(f"{taken.taken_by} is handling alert {taken.id}: {taken.text}")
    return 0


@click.command()
@click.argument("what")
@hours(default=2.0, type=click.FloatRange(0, 24 * 365), help="How many hours.")
@store()
@as_json
def silence(what: str, hours: float, store: str, as_json: bool) -> int:
    """Send no messages about an alert or a kind of alert.

    WHAT is the alert's key or kind. An alert that is still open when the silence ends is sent then.

    \b
    edgekit fleet silence offline --hours 8
    edgekit fleet silence p99:net:7:raspberry-pi-4
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.serve import open_store

    until_ms = _now_ms() + int(hours * 3_600_000)
    with closing(open_store(store, make=False)) as opened:
        AlertTables(opened).silence(what, until_ms)
    if as_json:
        print_json({"silenced": what, "until_ms": until_ms})
    else:
        click.echo(f"no messages about {what} until {_at(until_ms)}")
    return 0


@click.command()
@click.argument("rules", type=PATH, required=False)
@hours()
@store()
@as_json
def check(rules: Path | None, hours: float, store: str, as_json: bool) -> int:
    """Try alert RULES on the stored data.

    Prints the alerts that they would have raised; without RULES, those of the defaults. Says how many boards the open
    files of a broker on this machine bear.

    \b
    edgekit fleet check alerts.toml --hours 24
    """
    from edgekit.fleet.alert_runner import replay
    from edgekit.fleet.alerts.rules_file import Rules, read_rules
    from edgekit.fleet.open_files import bearing
    from edgekit.fleet.serve import open_store

    read = read_rules(rules) if rules is not None else Rules()
    now = _now_ms()
    with closing(open_store(store, make=False)) as opened:
        found, boards = list(replay(opened, read, now - int(hours * 3_600_000), now)), opened.totals().devices
    limits = bearing()
    if as_json:
        findings = [{"at_ms": at, "event": event, "key": one.key, "text": one.text} for at, event, one in found]
        files = [{"process": file.process, "limit": file.limit, "boards": file.boards} for file in limits]
        print_json({"told": findings, "boards": boards, "open_files": files})
        return 0
    for at, event, one in found:
        click.echo(f"{_at(at)}  {event:<7}  {one.text}")
    opened_n = sum(event == "opened" for _, event, _ in found)
    left_out = "lag, throttling, failing boards and each board's own p99 are not stored"
    click.echo(f"{opened_n} alerts in {hours:g} hours; {left_out}")
    for file in limits:
        few = f", and the store has {boards:,}: raise its LimitNOFILE" if boards > file.boards else ""
        click.echo(
            f"open files: {file.process} may have {file.limit:,}, for {file.boards:,} connections of boards{few}"
        )
    return 0


COMMANDS: tuple[click.Command, ...] = (alerts, acknowledge, silence, check)


def _at(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"


def _now_ms() -> int:
    return int(time.time() * 1000)
