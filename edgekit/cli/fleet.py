"""edgekit fleet: the page that shows what every board does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import as_json, print_json

__all__ = ["fleet", "wait_for_ctrl_c"]


@click.group()
def fleet() -> None:
    """What every board of a fleet reports, stored and shown."""


@fleet.command()
@click.option("--broker", metavar="URL", help="The MQTT broker that boards report to: mqtt://host:1883.")
@click.option(
    "--embedded-broker", is_flag=True, help="Bring a small broker along, on a loopback port: for trying it out."
)
@click.option(
    "--broker-port", type=click.IntRange(0, 65535), default=1883, show_default=True, help="Of the embedded one."
)
@click.option("--store", default="sqlite:///fleet.db", show_default=True, metavar="URL", help="What keeps it all.")
@click.option("--listen", default="127.0.0.1:8787", show_default=True, metavar="HOST:PORT", help="Where the pages are.")
@as_json
def serve(as_json: bool, broker: str | None, embedded_broker: bool, broker_port: int, store: str, listen: str) -> int:
    """Take in what boards report and serve the fleet page, until Ctrl-C.

    \b
    edgekit fleet serve --broker mqtt://broker:1883
    """
    if (broker is None) != embedded_broker:
        raise click.UsageError("Pass either --broker URL or --embedded-broker.")
    from edgekit.fleet.serve import FleetServer, Settings

    with FleetServer(Settings(broker, broker_port, store, listen)) as server:
        if as_json:
            print_json({"url": server.url, "broker": server.broker_url, "store": store})
        else:
            click.echo(f"fleet page   {server.url}")
            click.echo(
                f"boards       open_bundle(..., telemetry=TelemetryOptions({server.broker_url!r}, device='porch-1'))"
            )
            click.echo(f"store        {_path(store)}   (Ctrl-C ends it)")
        wait_for_ctrl_c()
    return 0


def wait_for_ctrl_c(seconds: float | None = None) -> None:
    """Until SIGINT or SIGTERM, or for `seconds`: both are the ordinary end of a server."""
    import signal

    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ended.wait(seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _path(store: str) -> Any:
    from edgekit.fleet.serve import store_path

    return Path(store_path(store))
