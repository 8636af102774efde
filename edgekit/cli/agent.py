"""edgekit agent: a board that follows its fleet's roll-outs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from edgekit.cli import completion
from edgekit.cli.options import PATH, as_json, print_json, secret, trust


@click.command()
@click.option("--root", type=PATH, required=True, metavar="DIR", help="The install root that it keeps up to date.")
@click.option("--broker", required=True, metavar="URL", help="mqtt://host:1883 or mqtts://user:password@host:8883.")
@click.option("--device", required=True, metavar="ID", help="This board's id, the same as in its telemetry.")
@trust
@secret
@click.option(
    "--profile", shell_complete=completion.profiles, metavar="NAME", help="What this board is, as for `install`."
)
@click.option(
    "--trial",
    type=click.Choice(["here", "app"]),
    default="here",
    show_default=True,
    help="Who tries a bundle out: the agent, before the application opens it, or the application, in use.",
)
@click.option("--then", metavar="COMMAND", help="Run after each switch: 'systemctl restart camera'. No shell reads it.")
@click.option(
    "--spread", type=click.FloatRange(0, 86400), default=60.0, show_default=True, metavar="SECONDS",
    help="Wait a random part of it before a download, so that a fleet does not fetch at once.",
)  # fmt: skip
@as_json
def agent(
    root: Path, broker: str, device: str, profile: str | None, then: str | None, as_json: bool, **options: Any
) -> int:
    """Install what the fleet server orders, and report how it went, until Ctrl-C.

    Every bundle must be signed as this root or machine asks: an order alone installs nothing.

    \b
    edgekit agent --root /var/lib/edgekit/camera --broker mqtts://porch-1:secret@broker:8883 --device porch-1
    """
    import logging
    import signal
    import threading

    from edgekit.cli.install import board_of, remembered_profile
    from edgekit_runtime.agent.loop import Agent, AgentOptions
    from edgekit_runtime.errors import TelemetryError, WindowError
    from edgekit_runtime.install import InstallOptions

    asked = InstallOptions(
        trust=tuple(options["trust"]),
        profile=profile,
        board=board_of(profile or remembered_profile(root)),
        trial=options["trial"],
        secret=options["secret"],
    )
    given = AgentOptions(broker, device, root, asked, tuple(shlex.split(then or "")), options["spread"])
    try:
        running = Agent(given)
    except WindowError as error:
        raise TelemetryError(error.what, do="Pass something like --device porch-1") from error
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    stop = threading.Event()

    def end(*_: object) -> None:
        stop.set()
        running.link.wake()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if as_json:
            print_json({"device": device, "root": str(root), "broker": str(running.link.broker)})
        else:
            click.echo(f"agent of {device}: {root} follows {running.link.broker}   (Ctrl-C ends it)")
        running.run(stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
