"""The server: listens, keeps its connections within bounds, and ends without cutting anybody off.

    server = Server(Api(repository), Limits())
    await server.start(sock)
    ...
    await server.stop()

One event loop, one thread; each Runtime's engine has its own. It speaks HTTP/1.1 in the clear and knows no passwords:
on anything but a trusted network it stands behind a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping

from edgekit.host.api import Api
from edgekit.host.connection import Connection, Patience
from edgekit.host.errors import RequestError, ServeError
from edgekit.host.http1 import Limits
from edgekit.host.models import Repository

__all__ = ["Server", "bind", "serve"]

DRAIN_S = 10.0
_SWEEP_S = 1.0


class Server:
    """Belongs to one event loop."""

    def __init__(
        self,
        api: Api,
        limits: Limits | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.api = api
        self.limits = limits or Limits()
        self.patience = patience or Patience()
        self.clock = clock
        self.draining = False
        self._connections: set[Connection] = set()
        self._reserved = 0
        self._gone = asyncio.Event()
        self._listening: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket. Raises ServeError."""
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(lambda: Connection(self), sock=sock, backlog=128)
        except OSError as error:  # bound by two, listened to by another
            raise _cannot_listen("{}:{}".format(*sock.getsockname()[:2]), error) from error
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no new connection, answer what was asked, then close everything; after drain_s without waiting."""
        self.draining = self.api.draining = True
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            if not connection.busy:
                connection.end()
        if self._connections:
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), drain_s)
        for connection in list(self._connections):
            connection.end()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.sleep(0)  # lets what was just ended say goodbye

    # What connections call.

    def welcome(self, connection: Connection) -> bool:
        """Whether there is room for one more. It is counted either way, until its goodbye."""
        self._connections.add(connection)
        return len(self._connections) <= self.limits.connections

    def goodbye(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def reserve(self, size: int) -> None:
        """Room for a body or an answer. Raises RequestError(503) when all of them together would be too much."""
        if self._reserved + size > self.limits.bodies_bytes:
            raise RequestError(503, "too many large requests at one time", close=True)
        self._reserved += size

    def release(self, size: int) -> None:
        self._reserved -= size

    def check(self, now: float) -> None:
        """End every connection that has kept still for too long."""
        for connection in list(self._connections):
            connection.check(now)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.check(self.clock())


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 for any free one. Raises ServeError."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ServeError(
            f"'{host}' is no address of this machine", where=where, do="Pass --listen ADDRESS:PORT"
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(where, error) from error
    return sock


def _cannot_listen(where: str, error: OSError) -> ServeError:
    return ServeError(
        f"the server cannot listen there: {os.strerror(error.errno) if error.errno else error}",
        where=where,
        do="Stop what listens on that port, or pass another one, such as --listen 127.0.0.1:0 for any that is free",
    )


def serve(repository: Repository, sock: socket.socket, ready: Callable[[], None]) -> tuple[int, str]:
    """Serve until SIGINT or SIGTERM. ready: called once requests are answered.

    Returns the exit code (130 after SIGINT, else 0) and a line on what was done. A second signal ends the draining.
    """
    return asyncio.run(_serve(repository, sock, ready))


async def _serve(repository: Repository, sock: socket.socket, ready: Callable[[], None]) -> tuple[int, str]:
    api = Api(repository)
    server = Server(api)
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, signals.put_nowait, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(signals.put_nowait, received))
    await server.start(sock)
    ready()
    told = await signals.get()
    stopping = asyncio.ensure_future(server.stop())
    again = asyncio.ensure_future(signals.get())
    await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await server.stop(drain_s=0)
    again.cancel()
    return (130 if told == signal.SIGINT else 0), _summary(api.counts)


def _summary(counts: Mapping[int, int]) -> str:
    """`120 answered, 3 refused (404: 1, 413: 2)`."""
    refused = {status: n for status, n in sorted(counts.items()) if status >= 400}
    text = f"{sum(counts.values()) - sum(refused.values())} answered"
    if refused:
        text += f", {sum(refused.values())} refused ({', '.join(f'{status}: {n}' for status, n in refused.items())})"
    return text
