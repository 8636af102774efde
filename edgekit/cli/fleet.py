"""edgekit fleet: the page that shows what every board does."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click

from edgekit.cli import alerts, rollouts, samples
from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, print_result
from edgekit.cli.progress import until_signalled


@click.group()
def fleet() -> None:
    """Store and show what the boards of a fleet report.

    \b
    edgekit fleet serve --embedded-broker                    to try it out, with `edgekit run --telemetry`
    edgekit fleet serve --broker mqtts://ingest:PASSWORD@broker:8883
    edgekit fleet broker-config -o broker --board porch-1 --certificate broker.pem
    """


@fleet.command()
@opt.broker()
@click.option("--embedded-broker", is_flag=True, help="Run a small broker on a loopback port, to try it out.")
@click.option(
    "--broker-port", type=click.IntRange(0, 65535), default=1883, show_default=True, help="Port of the embedded broker."
)
@opt.store(help="The database: sqlite:///FILE or postgresql://...")
@opt.listen(default="127.0.0.1:8787", help="Address of the pages.")
@click.option(
    "--host", "names", multiple=True, metavar="NAME", help="A host name of this server for browsers (repeatable)."
)
@click.option("--password", metavar="SOURCE", help="Password of the pages: env:NAME or file:PATH.")
@click.option("--proxy-user-header", metavar="NAME", help="Header in which a trusted proxy names its user.")
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="The proxy's own address (repeatable).")
@click.option("--alerts", "rules", type=opt.PATH, metavar="FILE", help="Alert rules and receivers (TOML).")
@opt.share()
@click.option("--home-assistant", is_flag=True, help="Publish the boards to Home Assistant through MQTT discovery.")
@click.option("--otlp", metavar="URL", help="Send metrics to this OpenTelemetry collector.")
@opt.bundles()
@opt.as_json
def serve(
    as_json: bool, broker: str | None, embedded_broker: bool, broker_port: int, store: str, listen: str,
    names: tuple[str, ...], password: str | None, proxy_user_header: str | None, proxies: tuple[str, ...],
    rules: Path | None, share: str | None, home_assistant: bool, otlp: str | None, bundles: Path | None,
) -> None:  # fmt: skip
    """Store what boards report and serve the fleet page.

    Press Ctrl-C to stop it.

    \b
    edgekit fleet serve --broker mqtt://broker:1883
    edgekit fleet serve --broker file:/etc/edgekit/broker-url \\
        --listen 0.0.0.0:8787 --host fleet.example --password file:/etc/edgekit/fleet-password
    """
    if (broker is None) != embedded_broker:
        raise click.UsageError("Pass either --broker URL or --embedded-broker.")
    if password is not None and proxy_user_header is not None:
        raise click.UsageError("Pass either --password or --proxy-user-header.")
    if (proxy_user_header is not None and not proxies) or (proxies and password is None and proxy_user_header is None):
        raise click.UsageError("--proxy-user-header needs --proxy; --proxy needs it, or --password.")
    from edgekit.fleet.broker_config import PREFIX
    from edgekit.fleet.ingest import collect_rarely
    from edgekit.fleet.pages.access import Access
    from edgekit.fleet.serve import FleetServer, Settings

    access = None
    if password is not None:
        access = Access.by_password(opt.read_source(password, "--password"), time.monotonic, proxies)
    elif proxy_user_header is not None:
        access = Access.by_proxy(proxy_user_header, proxies)
    from edgekit.fleet.alerts.rules_file import Rules, read_rules

    read = Rules() if rules is None else read_rules(rules)
    settings = Settings(
        broker, broker_port, store, listen, names=names, access=access, rules=read, share=share, bundles=bundles,
        home_assistant=PREFIX if home_assistant else None, otlp=otlp,
    )  # fmt: skip
    collect_rarely()
    with FleetServer(settings) as server:
        # Only what a person typed for SQLite: the URL of a PostgreSQL may hold a password.
        shown = store if store.startswith("sqlite:") else server.store.where
        lines = [
            f"fleet page   {server.url}",
            f"boards       open_bundle(..., telemetry=TelemetryOptions({server.broker_url!r}, device='porch-1'))",
            f"store        {server.store.where}   (Ctrl-C stops it)",
        ]
        print_result({"url": server.url, "broker": server.broker_url, "store": shown}, lines, as_json)
        if server.exposed:
            click.echo("Pages and sign-in are unencrypted: put a TLS proxy in front of them.", err=True)
        with until_signalled() as ended:
            ended.wait()


@fleet.command("broker-config")
@opt.output("DIR", "Where mosquitto's files go.", required=True)
@click.option("--board", "boards", multiple=True, metavar="ID", help="Create a user for this board (repeatable).")
@click.option("--boards", "list_of_boards", type=opt.PATH, metavar="FILE", help="File with board ids, one per line.")
@click.option("--server", "servers", multiple=True, metavar="NAME", help="User of a fleet server. Default: ingest.")
@click.option(
    "--alert-reader", "readers", multiple=True, metavar="NAME", help="A user that receives alerts (repeatable)."
)
@click.option(
    "--home-assistant-user", "viewers", multiple=True, metavar="NAME", help="Home Assistant's user (repeatable)."
)
@opt.certificate(help="The broker's certificate (PEM).")
@opt.private_key()
@opt.unencrypted(help="Listen without TLS, on a trusted network only.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port. Default: 8883, or 1883 without TLS.")
@click.option("--address", default="", metavar="ADDRESS", help="Address to listen on. Default: all.")
@opt.as_json
def broker_config(
    as_json: bool, output: Path, boards: tuple[str, ...], list_of_boards: Path | None, servers: tuple[str, ...],
    readers: tuple[str, ...], viewers: tuple[str, ...], certificate: Path | None, key: Path | None, unencrypted: bool,
    port: int | None, address: str,
) -> None:  # fmt: skip
    """Write mosquitto's configuration and users for a fleet.

    Run it again to add boards.

    \b
    edgekit fleet broker-config -o broker --boards ids.txt --certificate broker.pem --key broker.key
    mosquitto -c broker/mosquitto.conf
    """
    if (certificate is None) != unencrypted:
        raise click.UsageError("Pass either --certificate FILE or --unencrypted.")
    from edgekit.fleet.broker_config import BrokerPlan, read_boards, write_broker_config

    ids = [*boards, *(read_boards(list_of_boards) if list_of_boards is not None else ())]
    port = port or (1883 if unencrypted else 8883)
    plan = BrokerPlan(ids, servers or ("ingest",), readers, port, address, certificate, key, viewers)
    written = write_broker_config(output, plan)
    lines = [f"wrote   {path}" for path in written.files]
    if written.made:
        lines.append(f"{len(written.made)} new users; their passwords are in users.txt, for the boards' broker URLs")
    readable = " ".join(map(str, filter(None, (output, key))))
    lines.append(f"Let mosquitto's user read them: chown -R mosquitto {readable}")
    lines.append("A running mosquitto reloads users and rights after kill -HUP")
    print_result({"files": [str(path) for path in written.files], "made": written.made}, lines, as_json)


@fleet.command()
@opt.broker(required=True)
@opt.store(required=True, default=None, help="The store that `edgekit fleet serve` uses: postgresql://...")
@opt.share(required=True, help="The NAME passed to `edgekit fleet serve --share NAME`.")
def ingest(broker: str, store: str, share: str) -> None:
    """Store what boards report, in addition to a fleet server.

    It serves no pages and needs an MQTT 5 broker. Press Ctrl-C to stop it.

    \b
    edgekit fleet ingest --broker mqtts://ingest:PASSWORD@broker:8883 --store postgresql://... --share fleet
    """
    from edgekit.fleet.ingest import Ingest, collect_rarely
    from edgekit.fleet.serve import open_store
    from edgekit_runtime.telemetry.link import Broker

    collect_rarely()
    with closing(open_store(store)) as kept, until_signalled() as ended:
        taking = Ingest(Broker.parse(broker), kept, share=share)
        taking.start()
        click.echo(f"taking in from {taking.link.broker} as one of '{share}'   (Ctrl-C stops it)")
        ended.wait()
        taking.close()


@fleet.command()
@opt.broker(required=True)
@click.option("--devices", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Number of boards.")
@click.option("--minutes", type=click.FloatRange(0, 100_000, min_open=True), default=5.0, show_default=True,
              help="Minutes to run.")  # fmt: skip
@opt.window_s(default=60.0)
@click.option(
    "--backlog", type=click.IntRange(0, 100_000), default=0, help="Windows waiting on each board, as after an outage."
)
@click.option("--sites", type=click.IntRange(0, 10_000), default=0, help="Number of sites for the boards.")
@click.option(
    "--users", type=opt.PATH, metavar="FILE", help="users.txt of broker-config: each board connects as its own user."
)
@opt.as_json
def simulate(
    as_json: bool, broker: str, devices: int, minutes: float, window_s: float, backlog: int, sites: int,
    users: Path | None,
) -> int:  # fmt: skip
    """Simulate N boards to load-test a broker and a fleet server.

    \b
    edgekit fleet simulate --devices 1000 --minutes 5 --broker mqtt://127.0.0.1:1883
    """
    from edgekit.fleet.broker_config import read_users
    from edgekit.fleet.simulated import BoardLoad, BoardLoadPlan, Outcome
    from edgekit_runtime.telemetry.link import Broker

    plan = BoardLoadPlan(
        devices, 60.0 * minutes, window_s, connect_s=max(2.0, devices / 300), backlog=backlog, sites=sites,
        passwords={} if users is None else read_users(users),
    )  # fmt: skip

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
    if not found.live:
        click.echo("Check the URL, the password, and that `edgekit fleet serve` runs on this broker", err=True)
    return 0 if found.live == devices else 1


@fleet.command()
@click.argument("boards", metavar="DEVICE...", nargs=-1, required=True)
@opt.store()
@opt.as_json
def forget(boards: tuple[str, ...], store: str, as_json: bool) -> None:
    """Remove retired boards and their history.

    A board that still reports reappears as a new one.

    \b
    edgekit fleet forget porch-1 porch-2
    """
    from edgekit.fleet.store.fleet_errors import FleetError

    with opt.opened_store(store) as opened:
        unknown = [name for name in boards if opened.device(name) is None]
        if unknown:
            do = "See the fleet page for the ids"
            raise FleetError("no such board has reported, and nothing was removed", where=" ".join(unknown), do=do)
        gone = [name for name in dict.fromkeys(boards) if opened.forget(name)]
    print_result({"forgotten": gone}, [f"removed {', '.join(gone)}"], as_json)


for _command in (*rollouts.COMMANDS, *alerts.COMMANDS, samples.samples):
    fleet.add_command(_command)
