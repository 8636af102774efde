"""The fleet server: broker or not, store, ingest and pages; started so, ended in reverse.

    with FleetServer(Settings(broker="mqtt://127.0.0.1", store="sqlite:///fleet.db")) as server:
        print(server.url)

Rules: the embedded broker, for trying things out, is amqtt in a thread of its own, on a loopback address. It speaks
MQTT 3.1.1, keeps nothing on disk and lets anybody in who can reach it. For a fleet, run mosquitto or EMQX.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import threading
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.fleet.alerts.alert_tables import AlertTables
from edgekit.fleet.alerts.rules_file import Rules
from edgekit.fleet.home_assistant import HomeAssistant
from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.open_files import raise_limit
from edgekit.fleet.otlp import OtlpExport
from edgekit.fleet.pages.access import Access
from edgekit.fleet.rollout_runner import Rolling, RollingPace
from edgekit.fleet.rollouts.rollout_tables import RolloutTables
from edgekit.fleet.store.databases import PostgresStore, SqliteStore
from edgekit.fleet.store.fleet_errors import FleetError, store_errors
from edgekit.fleet.store.sql import SqlStore
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.files import take
from edgekit_runtime.telemetry.link import Broker

if TYPE_CHECKING:
    import uvicorn

    from edgekit.fleet.pages.live import Live


def check_broker() -> None:
    """Raises ModuleNotFoundError where the embedded broker is not installed."""
    import amqtt.broker  # noqa: F401


class EmbeddedBroker:
    """port: 0 for a free one. Raises FleetError if in use, ModuleNotFoundError without amqtt."""

    def __init__(self, port: int = 1883) -> None:
        self.port = _free(port)
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._loop: Any = None
        self._stop: Any = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="edgekit-broker", daemon=True)

    def __enter__(self) -> EmbeddedBroker:
        check_broker()
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)
        logging.getLogger("transitions").setLevel(logging.CRITICAL)
        self._thread.start()
        self._ready.wait(20)
        if self._failure is not None or not self._ready.is_set():
            raise FleetError(f"the embedded broker did not start ({self._failure})", where=self.url) from self._failure
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        import asyncio

        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `__enter__` raises it
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        import asyncio

        from amqtt.broker import Broker

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # A client that hangs up in mid-greeting is amqtt's unhandled exception; here it is an ordinary event.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        broker = Broker({
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{self.port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }, loop=self._loop)  # fmt: skip
        await broker.start()
        self._ready.set()
        await self._stop.wait()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(broker.shutdown(), 5)


def _free(port: int) -> int:
    """The port itself, or a free one for 0."""
    try:
        with socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        do = "Pass another with --broker-port, or use the broker there with --broker URL"
        raise FleetError(f"port {port} is in use", where="127.0.0.1", do=do) from error


@dataclass(frozen=True)
class Settings:
    """Settings of a fleet server.

    broker: URL, None for an embedded one on `broker_port` (0 for a free one).
    store: sqlite:///PATH or postgresql://...
    listen: host:port of the pages; port 0 for a free one.
    names: other host names that browsers may use.
    bundles: folder of the roll-outs' bundles; None for one next to the store.
    rules: of the alerts.
    access: who may look; None admits everyone, on loopback only.
    request_s: how long a browser may take to send a request.
    share: group of ingestors that share the boards' messages; None for this one alone.
    home_assistant: prefix of its discovery; None shows it nothing.
    otlp: URL of a collector of OpenTelemetry.
    """

    broker: str | None = None
    broker_port: int = 1883
    store: str = "sqlite:///fleet.db"
    listen: str = "127.0.0.1:8787"
    pace: Pace = field(default_factory=Pace)
    every_s: float = 1.0
    bundles: Path | None = None
    rolling: RollingPace = field(default_factory=RollingPace)
    rules: Rules = field(default_factory=Rules)
    names: tuple[str, ...] = ()
    access: Access | None = None
    request_s: float = 10.0
    most_connections: int = 256
    most_a_peer: int = 64
    share: str | None = None
    home_assistant: str | None = None
    otlp: str | None = None


class FleetServer(ClosedOnExit["FleetServer"]):
    """url: of the pages. broker_url: without a password. exposed: other machines reach them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ends = contextlib.ExitStack()
        self.url = self.broker_url = ""
        self.exposed = False
        self.ingest: Ingest
        self.rolling: Rolling
        self.store: SqlStore

    def start(self) -> None:
        """Raises FleetError, StoreError, TelemetryError, ModuleNotFoundError; then nothing runs."""
        with contextlib.ExitStack() as ends:
            self._start(ends)
            self._ends = ends.pop_all()

    def _start(self, ends: contextlib.ExitStack) -> None:
        settings = self._settings
        raise_limit()
        pages = _listening(settings)
        ends.callback(pages.close)
        if settings.broker is None:
            embedded = ends.enter_context(EmbeddedBroker(settings.broker_port))
            broker = Broker.parse(embedded.url)
        else:
            broker = Broker.parse(settings.broker)
        self.broker_url = str(broker)
        ends.enter_context(_lock(settings.store))
        self.store, reader, steps = (ends.enter_context(closing(open_store(settings.store))) for _ in range(3))
        self.ingest = ends.enter_context(closing(Ingest(broker, self.store, settings.pace, share=settings.share)))
        self.rolling = ends.enter_context(closing(Rolling(
            broker, steps, settings.rolling, settings.rules, lambda: self.ingest.trouble
        )))  # fmt: skip
        if settings.home_assistant is not None:
            seen = ends.enter_context(closing(open_store(settings.store)))
            ends.enter_context(closing(HomeAssistant(broker, seen, settings.home_assistant))).start()
        if settings.otlp is not None:
            kept = ends.enter_context(closing(open_store(settings.store)))
            ends.enter_context(closing(OtlpExport(kept, settings.otlp))).start()
        server, live = self._pages(reader)
        self.ingest.start()
        self.rolling.start()
        thread = threading.Thread(target=server.run, args=([pages],), name="edgekit-pages", daemon=True)
        thread.start()
        ends.callback(thread.join, 5)
        ends.callback(setattr, server, "should_exit", True)
        ends.callback(live.close)
        host, port = pages.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        self.exposed = not _is_loopback(pages)

    def _pages(self, store: SqlStore) -> tuple[uvicorn.Server, Live]:
        import uvicorn

        from edgekit.fleet.pages.app import Facts, make_app
        from edgekit.fleet.pages.guard import Names
        from edgekit.fleet.web import MOST_HEAD_BYTES, BundleFiles, bounded, bundle_route, bundles_beside

        settings = self._settings
        facts = Facts(lambda: self.ingest.refused, self.health, self.broker_url, settings.every_s)
        names = Names.of(settings.listen.rpartition(":")[0].strip("[]"), settings.names)
        files = BundleFiles(settings.bundles or bundles_beside(settings.store))
        tables = RolloutTables(store)
        app = make_app(
            store, facts, settings.access, names, (bundle_route(files, tables.knows),), tables, AlertTables(store)
        )
        http = bounded(
            request_s=settings.request_s, most=settings.most_connections, most_a_peer=settings.most_a_peer,
            exempt=settings.access.proxies if settings.access else (),
        )  # fmt: skip
        config = uvicorn.Config(
            app, http=http, loop="asyncio", h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            proxy_headers=False, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        return uvicorn.Server(config), app.state.live

    def health(self) -> dict[str, Any]:
        """For /healthz."""
        link = self.ingest.link
        return {
            "connected": link.connected, "trouble": link.trouble, "broker": self.broker_url, **self.ingest.counts,
            "intake": self.ingest.intake.figures(), "shared": bool(self._settings.share),
            "store_error": self.ingest.trouble or self.rolling.trouble,
        }  # fmt: skip

    def close(self) -> None:
        self._ends.close()

    def __enter__(self) -> FleetServer:
        self.start()
        return self


def open_store(url: str, *, make: bool = True) -> SqlStore:
    """Open sqlite:///relative.db, sqlite:////absolute.db or postgresql://...

    make: create a missing file. Raises FleetError, StoreError.
    """
    scheme, found, path = url.partition("://")
    if scheme == "sqlite" and path[:1] == "/" and path[1:] and "?" not in path:
        if not make and not Path(path[1:]).exists():
            raise FleetError("no such store", where=path[1:], do="Pass the URL that `edgekit fleet serve --store` uses")
        return SqliteStore.open(Path(path[1:]))
    if scheme in ("postgresql", "postgres") and found and path:
        return PostgresStore.open(url)
    do = "Write it as sqlite:///fleet.db or postgresql://user@host/name"
    raise FleetError("not a store URL", where=url.split("@")[-1], do=do)


def _lock(url: str) -> AbstractContextManager[object]:
    """Held by the one server of an SQLite file, as two would alert twice. Raises FleetError."""
    path = Path(f"{url.partition(':///')[2]}.lock")
    if not url.startswith("sqlite:///") or not path.parent.is_dir():  # opening the store says so
        return contextlib.nullcontext()
    with store_errors(str(path), ()):
        path.touch(0o600)
        held = path.open("rb")
    if take(held.fileno()) is not False:
        return held
    held.close()
    do = "Stop that one, or pass another --store; to share the work see `edgekit fleet ingest`"
    raise FleetError("another `edgekit fleet serve` uses this store", where=str(path.with_suffix("")), do=do)


def _is_loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def _listening(settings: Settings) -> socket.socket:
    """Raises FleetError, also if the network could see the fleet without access control."""
    listen = settings.listen
    host, found, port = listen.rpartition(":")
    if not found or not port.isdecimal() or int(port) > 65535:
        raise FleetError("not an address", where=listen, do="Write it like 127.0.0.1:8787")
    host = host.strip("[]")
    try:
        bound = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        what = f"port {port} is in use" if in_use else f"cannot listen ({(error.strerror or str(error)).lower()})"
        do = f"Pass another one: --listen {listen.rpartition(':')[0]}:PORT"
        raise FleetError(what, where=listen, do=do) from error
    if not _is_loopback(bound) and (settings.access is None or not settings.access.restricted):
        bound.close()
        do = "Pass --password file:PATH, or --proxy-user-header with --proxy; or listen on 127.0.0.1"
        raise FleetError("pages reachable from other machines require a sign-in", where=listen, do=do)
    return bound
