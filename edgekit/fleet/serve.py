"""The fleet server: broker or not, store, ingest and pages; started so, ended in reverse.

    with FleetServer(Settings(broker="mqtt://127.0.0.1", store="sqlite:///fleet.db")) as server:
        print(server.url)

Rules: the embedded broker, for trying things out, is amqtt in a thread of its own, on a loopback address. It speaks
MQTT 3.1.1, keeps nothing on disk and lets anybody in who can reach it. For a fleet, run mosquitto or EMQX.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from edgekit.fleet.errors import FleetError
from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.sqlite import SqliteStore
from edgekit_runtime.errors import MissingExtraError
from edgekit_runtime.telemetry import Broker

__all__ = ["EmbeddedBroker", "FleetServer", "Settings", "check_broker"]


def check_broker() -> None:
    """Raises MissingExtraError where the embedded broker is not installed."""
    try:
        import amqtt.broker  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("fleet", "the embedded broker") from error


class EmbeddedBroker:
    """port: 0 for a free one. Raises FleetError when it is in use, MissingExtraError without amqtt."""

    def __init__(self, port: int = 1883) -> None:
        self.port = _free(port)
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._loop: Any = None
        self._broker: Any = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="edgekit-broker", daemon=True)

    def start(self) -> None:
        check_broker()
        logging.getLogger("amqtt").setLevel(logging.CRITICAL)
        logging.getLogger("transitions").setLevel(logging.CRITICAL)
        self._thread.start()
        self._ready.wait(20)
        if self._failure is not None or not self._ready.is_set():
            raise FleetError(f"the embedded broker did not start ({self._failure})", where=self.url) from self._failure

    def close(self) -> None:
        import asyncio

        if self._loop is None or not self._thread.is_alive():
            return
        done = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        try:
            done.result(5)
        except Exception:
            logging.getLogger("edgekit.fleet").debug("the embedded broker did not stop cleanly", exc_info=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _stop(self) -> None:
        await self._broker.shutdown()

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        import asyncio

        from amqtt.broker import Broker

        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        # A client that hangs up in mid-greeting is amqtt's unhandled exception; here it is an ordinary event.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        config = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{self.port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }

        async def begin() -> None:
            self._broker = Broker(config, loop=self._loop)
            await self._broker.start()

        try:
            self._loop.run_until_complete(begin())
        except BaseException as error:  # noqa: BLE001 - it is told in `start`
            self._failure = error
            self._ready.set()
            return
        self._ready.set()
        self._loop.run_forever()
        self._loop.close()


def _free(port: int) -> int:
    """The port itself, or a free one for 0."""
    try:
        with socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise FleetError(
            f"port {port} is in use",
            where="127.0.0.1",
            do="Pass another with --broker-port, or --broker URL for the one there",
        ) from error


@dataclass(frozen=True)
class Settings:
    """broker: its URL, None for an embedded one on `broker_port` (0 for a free one). store: sqlite:///PATH.

    listen: host:port of the pages; port 0 for a free one.
    """

    broker: str | None = None
    broker_port: int = 1883
    store: str = "sqlite:///fleet.db"
    listen: str = "127.0.0.1:8787"
    pace: Pace = field(default_factory=Pace)
    every_s: float = 1.0


class FleetServer:
    """url: of the pages. broker_url: to report to, without a password."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ends = contextlib.ExitStack()
        self.url = self.broker_url = ""
        self.ingest: Ingest
        self.store: SqliteStore

    def start(self) -> None:
        """Raises FleetError, StoreError, TelemetryError, MissingExtraError; and then nothing is left running."""
        with contextlib.ExitStack() as ends:
            self._start(ends)
            self._ends = ends.pop_all()

    def _start(self, ends: contextlib.ExitStack) -> None:
        settings = self._settings
        pages = _listening(settings.listen)
        ends.callback(pages.close)
        if settings.broker is None:
            embedded = ends.enter_context(EmbeddedBroker(settings.broker_port))
            broker = Broker.parse(embedded.url)
        else:
            broker = Broker.parse(settings.broker)
        self.broker_url = str(broker)
        path = store_path(settings.store)
        self.store = SqliteStore.open(path)
        ends.callback(self.store.close)
        reader = SqliteStore.open(path)
        ends.callback(reader.close)
        self.ingest = Ingest(broker, self.store, settings.pace)
        server = _Pages(reader, self, pages, settings.every_s)
        self.ingest.start()
        ends.callback(self.ingest.close)
        server.start()
        ends.callback(server.close)
        self.url = server.url

    def health(self) -> dict[str, Any]:
        """For /healthz."""
        link = self.ingest.link
        return {"connected": link.connected, "trouble": link.trouble, "broker": self.broker_url, **self.ingest.counts}

    def close(self) -> None:
        self._ends.close()

    def __enter__(self) -> FleetServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pages:
    """uvicorn in a thread of its own, on a socket that is already bound."""

    def __init__(self, store: SqliteStore, server: FleetServer, bound: socket.socket, every_s: float) -> None:
        try:
            import uvicorn

            from edgekit.fleet.pages.app import Facts, make_app
        except ImportError as error:
            raise MissingExtraError("fleet", "serving the fleet's pages") from error
        facts = Facts(lambda: server.ingest.refused, server.health, server.broker_url, every_s)
        config = uvicorn.Config(
            make_app(store, facts), log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._bound = bound
        host, port = bound.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        self._thread = threading.Thread(target=self._server.run, args=([bound],), name="edgekit-pages", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(5)


def store_path(url: str) -> Path:
    """sqlite:///relative.db or sqlite:////absolute.db -> the path. Raises FleetError."""
    scheme, found, path = url.partition(":///")
    if scheme == "sqlite" and found and path and "?" not in path:
        return Path(path)
    raise FleetError("that is no store", where=url.split("@")[-1], do="Write it as sqlite:///fleet.db")


def _listening(listen: str) -> socket.socket:
    host, found, port = listen.rpartition(":")
    if not found or not port.isdecimal() or int(port) > 65535:
        raise FleetError("that is no address", where=listen, do="Write it as 127.0.0.1:8787")
    host = host.strip("[]")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        what = error.strerror or str(error)
        raise FleetError(
            f"cannot listen there ({what.lower()})", where=listen, do="Pass another address with --listen"
        ) from error
