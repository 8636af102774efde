"""edgekit fleet: the page that shows what every board does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import click

from edgekit.cli import alerts, rollouts
from edgekit.cli.options import PATH, as_json, print_json


@click.group()
def fleet() -> None:
    """What every board of a fleet reports, stored and shown.

    \b
    edgekit fleet serve --embedded-broker                    to try it out, with `edgekit run --telemetry`
    edgekit fleet serve --broker mqtts://ingest:PASSWORD@broker:8883
    edgekit fleet broker-config -o broker --board porch-1 --certificate broker.pem
    """


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
@click.option(
    "--host", "names", multiple=True, metavar="NAME", help="A name that browsers call this server by (repeatable)."
)
@click.option("--password", metavar="SOURCE", help="Ask for this password: env:NAME or file:PATH.")
@click.option("--proxy-user-header", metavar="NAME", help="Let in users of a proxy: the header that names the user.")
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="The proxy's own address (repeatable).")
@click.option("--alerts", "rules", type=PATH, metavar="FILE", help="Rules of alerts, and where they are sent (TOML).")
@click.option("--share", metavar="NAME", help="Share what boards send with `edgekit fleet ingest --share NAME`.")
@click.option("--bundles", type=PATH, metavar="DIR", help="Bundles of roll-outs. Default: a folder beside the store.")
@as_json
def serve(
    as_json: bool, broker: str | None, embedded_broker: bool, broker_port: int, store: str, listen: str,
    names: tuple[str, ...], password: str | None, proxy_user_header: str | None, proxies: tuple[str, ...],
    rules: Path | None, share: str | None, bundles: Path | None,
) -> int:  # fmt: skip
    """Store what boards report and serve the fleet page.

    It ends with Ctrl-C.

    \b
    edgekit fleet serve --broker mqtt://broker:1883
    edgekit fleet serve --broker mqtts://ingest:PASSWORD@broker:8883 \\
        --listen 0.0.0.0:8787 --host fleet.example --password file:/etc/edgekit/fleet-password
    """
    if (broker is None) != embedded_broker:
        raise click.UsageError("Pass either --broker URL or --embedded-broker.")
    if password is not None and proxy_user_header is not None:
        raise click.UsageError("Pass either --password or --proxy-user-header.")
    if (proxy_user_header is None) != (not proxies):
        raise click.UsageError("--proxy-user-header and --proxy go together.")
    from edgekit.fleet.ingest import collect_rarely
    from edgekit.fleet.pages.access import Access, read_password
    from edgekit.fleet.serve import FleetServer, Settings

    access = None
    if password is not None:
        access = Access.by_password(read_password(password), time.monotonic)
    elif proxy_user_header is not None:
        access = Access.by_proxy(proxy_user_header, proxies)
    from edgekit.fleet.alerts.alerts import Rules, read_rules

    read = Rules() if rules is None else read_rules(rules)
    settings = Settings(
        broker, broker_port, store, listen, names=names, access=access, rules=read, share=share, bundles=bundles
    )
    collect_rarely()
    with FleetServer(settings) as server:
        # Only what a person typed for SQLite: the URL of a PostgreSQL may hold a password.
        shown = store if store.startswith("sqlite:") else server.store.where
        if as_json:
            print_json({"url": server.url, "broker": server.broker_url, "store": shown})
        else:
            click.echo(f"fleet page   {server.url}")
            click.echo(
                f"boards       open_bundle(..., telemetry=TelemetryOptions({server.broker_url!r}, device='porch-1'))"
            )
            click.echo(f"store        {server.store.where}   (Ctrl-C ends it)")
        if server.exposed:
            click.echo("Pages and sign-in travel unencrypted: put a proxy with TLS before them.", err=True)
        wait_for_ctrl_c()
    return 0


@fleet.command("broker-config")
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="Where mosquitto's files go.")
@click.option("--board", "boards", multiple=True, metavar="ID", help="A board that gets a user (repeatable).")
@click.option("--boards", "list_of_boards", type=PATH, metavar="FILE", help="Their ids, one a line.")
@click.option("--server", "servers", multiple=True, metavar="NAME", help="User of a fleet server. Default: ingest.")
@click.option("--alert-reader", "readers", multiple=True, metavar="NAME", help="User that hears alerts (repeatable).")
@click.option("--certificate", type=PATH, metavar="FILE", help="The broker's certificate (PEM).")
@click.option("--key", type=PATH, metavar="FILE", help="Its private key (PEM). Default: in the certificate's file.")
@click.option("--unencrypted", is_flag=True, help="Listen without TLS: on a network without listeners.")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: 8883, and 1883 without TLS.")
@click.option("--address", default="", metavar="ADDRESS", help="Where to listen. Default: everywhere.")
@as_json
def broker_config(
    as_json: bool, output: Path, boards: tuple[str, ...], list_of_boards: Path | None, servers: tuple[str, ...],
    readers: tuple[str, ...], certificate: Path | None, key: Path | None, unencrypted: bool, port: int | None,
    address: str,
) -> int:  # fmt: skip
    """Write mosquitto's settings, rights and users for a fleet. Run it again to add boards.

    \b
    edgekit fleet broker-config -o broker --boards ids.txt --certificate broker.pem --key broker.key
    mosquitto -c broker/mosquitto.conf
    """
    if (certificate is None) != unencrypted:
        raise click.UsageError("Pass either --certificate FILE or --unencrypted.")
    from edgekit.fleet.broker_config import BrokerPlan, read_boards, write_broker_config

    ids = [*boards, *(read_boards(list_of_boards) if list_of_boards is not None else ())]
    port = port or (1883 if unencrypted else 8883)
    plan = BrokerPlan(ids, servers or ("ingest",), readers, port, address, certificate, key)
    written = write_broker_config(output, plan)
    if as_json:
        print_json({"files": [str(path) for path in written.files], "made": written.made})
        return 0
    for path in written.files:
        click.echo(f"wrote   {path}")
    if written.made:
        click.echo(f"{len(written.made)} new users; their passwords are in users.txt, for the boards' broker URLs")
    click.echo("Let mosquitto's user read them: chown -R mosquitto " + " ".join(map(str, filter(None, (output, key)))))
    click.echo("A mosquitto that runs reads users and rights again after kill -HUP")
    return 0


@fleet.command()
@click.option("--broker", metavar="URL", required=True, help="The MQTT broker that boards report to.")
@click.option(
    "--store", required=True, metavar="URL", help="The store that `edgekit fleet serve` uses: postgresql://..."
)
@click.option("--share", required=True, metavar="NAME", help="As `edgekit fleet serve --share NAME` is called with.")
def ingest(broker: str, store: str, share: str) -> int:
    """Store what boards report, beside a fleet server.

    It serves no pages, ends with Ctrl-C, and needs a broker of MQTT 5.

    \b
    edgekit fleet ingest --broker mqtts://ingest:PASSWORD@broker:8883 --store postgresql://... --share fleet
    """
    from edgekit.fleet.ingest import Ingest, collect_rarely
    from edgekit.fleet.serve import open_store
    from edgekit_runtime.telemetry.link import Broker

    collect_rarely()
    kept = open_store(store)
    try:
        taking = Ingest(Broker.parse(broker), kept, share=share)
        taking.start()
        click.echo(f"taking in from {taking.link.broker} as one of '{share}'   (Ctrl-C ends it)")
        wait_for_ctrl_c()
        taking.close()
    finally:
        kept.close()
    return 0


@fleet.command()
@click.option("--broker", metavar="URL", required=True, help="Where they report to: mqtt://host:1883.")
@click.option("--devices", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many boards.")
@click.option(
    "--minutes", type=click.FloatRange(0, 100_000, min_open=True), default=5.0, show_default=True, help="How long."
)
@click.option(
    "--window-s", type=click.FloatRange(0.1, 86_400), default=60.0, show_default=True, help="Seconds between reports."
)
@click.option(
    "--backlog", type=click.IntRange(0, 100_000), default=0, help="Windows that wait on each: boards come back."
)
@click.option("--sites", type=click.IntRange(0, 10_000), default=0, help="Divide them among so many sites.")
@as_json
def simulate(
    as_json: bool, broker: str, devices: int, minutes: float, window_s: float, backlog: int, sites: int
) -> int:
    """Simulate N boards, to load a broker and a fleet server.

    \b
    edgekit fleet simulate --devices 1000 --minutes 5 --broker mqtt://127.0.0.1:1883
    """
    from edgekit.fleet.simulated import BoardLoad, BoardLoadPlan, Outcome
    from edgekit_runtime.telemetry.link import Broker

    plan = BoardLoadPlan(
        devices, 60.0 * minutes, window_s, connect_s=max(2.0, devices / 300), backlog=backlog, sites=sites
    )

    def show(now: Outcome) -> None:
        click.echo(
            f"{now.seconds:6.0f} s   {now.live:,} of {devices:,} boards heard from the fleet   "
            f"{now.windows - now.confirmed:,} windows wait   {now.sends_a_window:.2f} sends a window",
            err=True,
        )

    found = BoardLoad(Broker.parse(broker), plan).run(show)
    if as_json:
        print_json(found.as_json())
    else:
        show(found)
        for what, seconds in (("all live", found.live_s), ("all drained", found.drained_s)):
            if seconds is not None:
                click.echo(f"{what:<12} after {seconds:g} s")
    return 0 if found.live == devices else 1


@fleet.command()
@click.argument("boards", metavar="DEVICE...", nargs=-1, required=True)
@rollouts.STORE
@as_json
def forget(boards: tuple[str, ...], store: str, as_json: bool) -> int:
    """Remove boards that are gone, with their history.

    One that still reports comes back as a new one.

    \b
    edgekit fleet forget porch-1 porch-2
    """
    from edgekit.fleet.serve import open_store
    from edgekit.fleet.store.fleet_errors import FleetError

    opened = open_store(store, make=False)
    try:
        unknown = [name for name in boards if opened.device(name) is None]
        if unknown:
            raise FleetError(
                "no such board has reported, and nothing was removed", where=" ".join(unknown),
                do="See the fleet page for the ids",
            )  # fmt: skip
        gone = [name for name in dict.fromkeys(boards) if opened.forget(name)]
    finally:
        opened.close()
    if as_json:
        print_json({"forgotten": gone})
    else:
        click.echo(f"forgot {', '.join(gone)}")
    return 0


for _command in (*rollouts.COMMANDS, *alerts.COMMANDS):
    fleet.add_command(_command)


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
