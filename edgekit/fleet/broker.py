"""A broker inside the fleet server, for trying things out: amqtt in a thread of its own, on a loopback address.

It speaks MQTT 3.1.1, keeps nothing on disk and lets anybody in who can reach it. For a fleet, run mosquitto or EMQX.

    with EmbeddedBroker() as broker:
        broker.url              # mqtt://127.0.0.1:1883
"""

from __future__ import annotations

import logging
import socket
import threading
from types import TracebackType
from typing import Any

from edgekit.fleet.errors import FleetError
from edgekit_runtime.errors import MissingExtraError

__all__ = ["EmbeddedBroker"]


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
        try:
            import amqtt.broker  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("fleet", "the embedded broker") from error
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
