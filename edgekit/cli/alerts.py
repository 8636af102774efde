"""edgekit fleet alerts, acknowledge, silence, check: what is wrong, and rules tried."""

from __future__ import annotations

import getpass
from datetime import datetime, timezone
from pathlib import Path

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result

hours = opt.shared(
    "--hours", type=click.FloatRange(0, 48), default=24.0, show_default=True, help="How many hours back."
)


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include cleared alerts.")
@opt.store()
@opt.as_json
def alerts(everything: bool, store: str, as_json: bool) -> int:
    """List open alerts. Exits 1 if there are any.

    \b
    edgekit fleet alerts
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables

    with opt.opened_store(store) as opened:
        found = AlertTables(opened).list(active=not everything)
    lines = []
    for one in found:
        state = f"handled by {one.taken_by}" if one.taken_by else ""
        state = f"until {_at(one.cleared_ms)}" if one.cleared_ms else state
        lines.append(f"{one.id:>4}  {_at(one.opened_ms)}  {one.text}  {state}".rstrip())
    record = {"alerts": [one.as_json("cleared" if one.cleared_ms else "opened") for one in found]}
    print_result(record, lines or ["no open alerts"], as_json)
    return 1 if any(not one.cleared_ms for one in found) else 0


@click.command()
@click.argument("number", type=int)
@click.option("--by", metavar="NAME", help="Who is handling it. Default: your user name.")
@opt.store()
@opt.as_json
def acknowledge(number: int, by: str | None, store: str, as_json: bool) -> None:
    """Acknowledge alert NUMBER: you are handling it.

    \b
    edgekit fleet acknowledge 12
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.store.records import now_ms

    with opt.opened_store(store) as opened:
        taken = AlertTables(opened).acknowledge(number, by or getpass.getuser(), now_ms())
    line = f"{taken.taken_by} is handling alert {taken.id}: {taken.text}"
    print_result({"alert": taken.id, "by": taken.taken_by}, [line], as_json)


@click.command()
@click.argument("what")
@hours(default=2.0, type=click.FloatRange(0, 24 * 365), help="How many hours.")
@opt.store()
@opt.as_json
def silence(what: str, hours: float, store: str, as_json: bool) -> None:
    """Send no messages about an alert or a kind of alert.

    WHAT is the alert's key or kind. An alert that is still open when the silence ends is sent then.

    \b
    edgekit fleet silence offline --hours 8
    edgekit fleet silence p99:net:7:raspberry-pi-4
    """
    from edgekit.fleet.alerts.alert_tables import AlertTables
    from edgekit.fleet.store.records import now_ms

    until_ms = now_ms() + int(hours * 3_600_000)
    with opt.opened_store(store) as opened:
        AlertTables(opened).silence(what, until_ms)
    line = f"no messages about {what} until {_at(until_ms)}"
    print_result({"silenced": what, "until_ms": until_ms}, [line], as_json)


@click.command()
@click.argument("rules", type=opt.PATH, required=False)
@hours()
@opt.store()
@opt.as_json
def check(rules: Path | None, hours: float, store: str, as_json: bool) -> None:
    """Try alert RULES on the stored data.

    Prints the alerts that they would have raised; without RULES, those of the defaults. Says how many boards the open
    files of a broker on this machine bear.

    \b
    edgekit fleet check alerts.toml --hours 24
    """
    from edgekit.fleet.alert_runner import replay
    from edgekit.fleet.alerts.rules_file import Rules, read_rules
    from edgekit.fleet.open_files import bearing
    from edgekit.fleet.store.records import now_ms

    read = read_rules(rules) if rules is not None else Rules()
    now = now_ms()
    with opt.opened_store(store) as opened:
        found, boards = list(replay(opened, read, now - int(hours * 3_600_000), now)), opened.totals().devices
    limits = bearing()
    findings = [{"at_ms": at, "event": event, "key": one.key, "text": one.text} for at, event, one in found]
    files = [{"process": file.process, "limit": file.limit, "boards": file.boards} for file in limits]
    lines = [f"{_at(at)}  {event:<7}  {one.text}" for at, event, one in found]
    opened_n = sum(event == "opened" for _, event, _ in found)
    left_out = "lag, throttling, failing boards and each board's own p99 are not stored"
    lines.append(f"alerts in {hours:g} hours: {opened_n}; {left_out}")
    for file in limits:
        few = f", and the store has {boards:,}: raise its LimitNOFILE" if boards > file.boards else ""
        may = f"{file.process} may have {file.limit:,}, for {file.boards:,} connections of boards"
        lines.append(f"open files: {may}{few}")
    print_result({"told": findings, "boards": boards, "open_files": files}, lines, as_json)


COMMANDS: tuple[click.Command, ...] = (alerts, acknowledge, silence, check)


def _at(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"
