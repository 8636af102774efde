"""The server: listens, bounds its connections, and ends without cutting off an answer.

    server = Server(Api(repository), HttpLimits())
    await server.start(sock)
    ...
    await server.stop()

Rules:
- one event loop in one thread; each Runtime's engine has its own;
- beyond loopback it needs TLS 1.2 or later, unless the owner allows clear text; with a client authority every client
  needs its certificate. Only the owner may be able to replace the key;
- certificates and tokens are read again when their files change;
- one address (IPv6: /64) has a bounded number of connections without a complete head or TLS handshake; one more ends
  the oldest of them;
- when all places are taken, the address with the most waiting connections gives up its oldest; the newcomer is refused
  if all are busy, or were a second ago and no address has more than its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.host.access import Tokens
from edgekit.host.api import Api
from edgekit.host.connection import Connection, Patience, PendingConnection
from edgekit.host.http1 import HttpLimits, RequestError, ServeError
from edgekit.host.models import Repository
from edgekit.peers import peer_of
from edgekit_runtime.system import files as pem
from edgekit_runtime.system.files import first_unsafe

DRAIN_S = 10.0
_SWEEP_S = 1.0
_PAUSE_S = 0.1
_SPARE_S = 1.0
"""A client that has been waited for for less is at work: it sends, reads or asks again at once."""
_BACKLOG = 128
_REFUSED_AT_ONCE = 64
"""Connections beyond the limit, which get a response before they are closed."""
_SWITCH_S = 0.0005
"""How long the event loop and an engine's thread may keep each other from the interpreter. With Python's 5 ms a server
at ten times its capacity took more than twice as long to refuse."""

_LOG = logging.getLogger("edgekit.host")
_Stamp = tuple[int, int, int]


class Reread:
    """Files that are replaced while the server runs: certificates and clients.

    The caller has read what is there at the start. A replacement that is wrong changes nothing, and is logged once.
    load: reads the files; it may raise ServeError.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], None]) -> None:
        self._paths, self._load = paths, load
        self._seen = self._stamps()

    def check(self) -> None:
        """Read the files again if one of them is another than before."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._load()
        except ServeError as error:
            _LOG.error("%s; what was read before stays in use", error)
        else:
            _LOG.info("read again: %s", ", ".join(map(str, self._paths)))

    def _stamps(self) -> list[_Stamp | None]:
        stamps: list[_Stamp | None] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return stamps


class Server:
    """Belongs to one event loop."""

    def __init__(
        self,
        api: Api,
        limits: HttpLimits | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        tls: ssl.SSLContext | None = None,
        rereads: Sequence[Reread] = (),
    ) -> None:
        self.api = api
        self.limits = limits or HttpLimits()
        self.patience = patience or Patience()
        self.clock = clock
        self.draining = False
        self._tls, self._rereads = tls, rereads
        self._connections: set[Connection] = set()
        self._reserved = 0
        self._turning = self._read = False
        self._came = self._next_turn = 0.0
        self._gone = asyncio.Event()
        self._listening: socket.socket | None = None
        self._opening: set[PendingConnection] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket. Raises ServeError."""
        loop = asyncio.get_running_loop()
        try:
            sock.listen(_BACKLOG)
        except OSError as error:  # bound by two, listened to by another
            raise _cannot_listen("{}:{}".format(*sock.getsockname()[:2]), error) from error
        sock.setblocking(False)
        self._listening = sock
        self._accepting, self._sweeper = loop.create_task(self._accept(sock)), loop.create_task(self._sweep())

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no new connection, answer what was asked, then close everything.
        After drain_s without waiting."""
        self.draining = self.api.draining = True
        await _cancelled(self._accepting, *(one.task for one in self._opening))
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
        await _cancelled(self._sweeper)
        await asyncio.sleep(0)  # lets what was just ended say goodbye

    # What connections call.

    def welcome(self, connection: Connection) -> None:
        self._opening.discard(connection.pending)
        self._connections.add(connection)

    def goodbye(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def reserve(self, size: int) -> None:
        """Room for a body or an answer.
        Raises RequestError(503) when all of them together would be too much."""
        if self._reserved + size > self.limits.bodies_bytes:
            raise RequestError(503, "too many large requests at one time", close=True)
        self._reserved += size

    def release(self, size: int) -> None:
        self._reserved -= size

    def came(self) -> float:
        """When bytes that are read now came, at the earliest: the loop may have been busy since."""
        if not self._turning:
            self._turning, self._came = True, self.clock()
            self._next_turn = self._came
            asyncio.get_running_loop().call_soon(self._turn)
        self._read = True
        return self._came

    def _turn(self) -> None:
        """The loop begins another turn; without anything read in the last one it was idle."""
        self._turning, self._read = self._read, False
        if self._turning:
            self._came, self._next_turn = self._next_turn, self.clock()
            asyncio.get_running_loop().call_soon(self._turn)

    def check(self, now: float) -> None:
        """End every connection that has kept still for too long."""
        for connection in list(self._connections):
            connection.check(now)

    async def _accept(self, sock: socket.socket) -> None:
        """Take connections.
        Those that have not spoken TLS yet count, too: a client needs no certificate for them."""
        loop, silent = asyncio.get_running_loop(), True
        while True:
            try:
                accepted, address = await loop.sock_accept(sock)
                silent = True
            except OSError as error:  # no file descriptor is left, or the client has gone
                if silent and not isinstance(error, ConnectionError):
                    _LOG.error("no connection can be taken: %s", error.strerror)
                    silent = False
                await asyncio.sleep(_PAUSE_S)
                continue
            pending = PendingConnection(peer_of(str(address[0])), accepted, self.clock)
            taken = self._make_room(pending.peer)
            pending.fits = taken < self.limits.connections
            if taken < self.limits.connections + _REFUSED_AT_ONCE:
                self._opening.add(pending)
                pending.task = loop.create_task(self._open(pending))
            else:
                accepted.close()
            await asyncio.sleep(0)  # a flood of connections leaves the others their turns

    def _make_room(self, peer: str) -> int:
        """For one more connection of this address. How many places are taken then."""
        limits = self.limits
        taken: list[Connection | PendingConnection] = [*self._connections, *self._opening]
        if len(taken) < min(limits.half_open_a_peer, limits.connections):
            return len(taken)
        waited = [one for one in taken if one.peer == peer and one.half_open]
        if len(waited) < limits.half_open_a_peer:
            if len(taken) < limits.connections:
                return len(taken)
            waited = [one for one in taken if one.waiting_s >= 0]
        each = Counter(one.peer for one in waited)
        longest = max(
            (
                one
                for one in waited
                if one.half_open or one.waiting_s >= _SPARE_S or each[one.peer] > limits.half_open_a_peer
            ),
            key=lambda one: (each[one.peer], one.waiting_s),
            default=None,
        )
        if longest is None:
            return len(taken)
        longest.end()
        if isinstance(longest, Connection):
            self._connections.discard(longest)
        else:
            self._opening.discard(longest)
        return len(taken) - 1

    async def _open(self, pending: PendingConnection) -> None:
        patience_s = None if self._tls is None else self.patience.head
        try:
            with contextlib.suppress(OSError):  # it went, or speaks no TLS
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: Connection(self, pending), pending.sock, ssl=self._tls, ssl_handshake_timeout=patience_s
                )
        finally:
            self._opening.discard(pending)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.check(self.clock())
            for reread in self._rereads:
                reread.check()


async def _cancelled(*tasks: asyncio.Task[None] | None) -> None:
    """Return once they have ended."""
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.gather(*filter(None, tasks), return_exceptions=True)


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


@dataclass(frozen=True)
class Protection:
    """How a server is protected; all None on loopback.
    certificate, key, client_ca: PEM.
    tokens: see `Tokens`."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None

    def check(self) -> None:
        """Read every file once. Raises ServeError: better now than after the bundles were opened."""
        if self.certificate is not None:
            tls_context(self.certificate, self.key, self.client_ca)
        if self.tokens is not None:
            Tokens.read(self.tokens)


def check_exposure(sock: socket.socket, *, encrypted: bool) -> None:
    """Raises ServeError (serve-unencrypted) for an address beyond loopback without TLS."""
    address = sock.getsockname()[0]
    if not encrypted and not ipaddress.ip_address(address.split("%")[0]).is_loopback:
        raise ServeError(
            "other machines reach this address, and could read requests, answers and tokens: there is no TLS",
            where=address,
            do="Pass --certificate, listen on 127.0.0.1, or pass --unencrypted where the network is trusted",
            code="serve-unencrypted",
        )


def serve(
    repository: Repository, sock: socket.socket, ready: Callable[[], None], protection: Protection | None = None
) -> tuple[int, str]:
    """Serve until SIGINT or SIGTERM. ready: called once requests are answered.

    Returns the exit code (130 after SIGINT, else 0) and a line on what was done. A second signal ends the draining.
    Raises ServeError.
    """
    sys.setswitchinterval(_SWITCH_S)
    return asyncio.run(_serve(repository, sock, ready, protection or Protection()))


def protected(api: Api, protection: Protection) -> Server:
    """A server of the api, protected so; its files are read again when they change.
    Raises ServeError."""
    rereads, tls, path = [], None, protection.tokens
    if path is not None:
        api.tokens = Tokens.read(path)
        rereads.append(Reread((path,), lambda: setattr(api, "tokens", Tokens.read(path, api.tokens))))
    certificate, key = protection.certificate, protection.key
    if certificate is not None:
        tls = context = tls_context(certificate, key, protection.client_ca)
        files = (certificate,) if key is None else (certificate, key)
        rereads.append(Reread(files, lambda: load_certificate(context, certificate, key)))
    return Server(api, tls=tls, rereads=rereads)


async def _serve(
    repository: Repository, sock: socket.socket, ready: Callable[[], None], protection: Protection
) -> tuple[int, str]:
    api = Api(repository)
    server = protected(api, protection)
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, signals.put_nowait, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(signals.put_nowait, received))
    await server.start(sock)
    ready()
    received = await signals.get()
    stopping = asyncio.ensure_future(server.stop())
    again = asyncio.ensure_future(signals.get())
    await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await server.stop(drain_s=0)
    again.cancel()
    return (130 if received == signal.SIGINT else 0), _summary(api.counts)


def _summary(counts: Mapping[int, int]) -> str:
    """`120 answered, 3 refused (404: 1, 413: 2)`."""
    refused = {status: n for status, n in sorted(counts.items()) if status >= 400}
    text = f"{sum(counts.values()) - sum(refused.values())} answered"
    if refused:
        text += f", {sum(refused.values())} refused ({', '.join(f'{status}: {n}' for status, n in refused.items())})"
    return text


def tls_context(certificate: Path, key: Path | None = None, client_ca: Path | None = None) -> ssl.SSLContext:
    """certificate: PEM, the server's first, and its key where `key` is None.
    Raises ServeError (serve-certificate)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate, key)
    if client_ca is not None:
        try:
            with pem.pem_errors(client_ca):
                context.load_verify_locations(client_ca)
        except pem.PemError as error:
            raise _unusable(error, "Give the authorities' certificates, in PEM") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """What new connections get from now on. Raises ServeError (serve-certificate)."""
    if unsafe := first_unsafe(key or certificate):
        raise ServeError(unsafe.what, where=str(unsafe.where), do=unsafe.do, code="serve-certificate")
    try:
        pem.load_certificate(context, certificate, key)
    except pem.PemError as error:
        raise _unusable(error, "Give a PEM certificate, and its private key behind it or with --key") from error


def _unusable(error: pem.PemError, do: str) -> ServeError:
    return ServeError(error.what, where=error.where, do=do, code="serve-certificate")
