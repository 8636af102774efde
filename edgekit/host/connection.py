"""The server's connections: bytes in, a request at a time to the api, its response out.

    server = Server(Api(repository), HttpLimits())
    await server.start(sock)
    await server.stop()                         # answers what was asked, and ends

opening -> idle -> head -> body -> busy -> idle ...
    skipping: refused by its JSON, the tensors are read and thrown away
    lingering: refused, waits until the client has read it

Rules:
- a missing token or an exceeded rate is refused by the head alone;
- an inference that would be too late is refused by its JSON, before its tensors have come; up to a bound they are
  discarded, and the connection serves the next request;
- a body is received where it will be decoded; its memory, and the answer's, is taken once the size is accepted, and
  counts until it is released;
- every state but `busy` has a timeout, so that slow clients hold nothing for long;
- a client that leaves cancels its waiting request;
- pipelined requests are answered in order, each after the response before it was sent;
- one address (IPv6: /64) has a bounded number of connections without a complete head or TLS handshake; one more ends
  the oldest of them. When all places are taken, the address with the most waiting connections gives up its oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from edgekit.host import http1
from edgekit.host.access import Client
from edgekit.host.api import LONG_JSON, Api, InferenceRequest, refusal
from edgekit.peers import peer_of

_MOST_SKIPPED = 2**20
"""More than this is not read and discarded: a new connection costs the client less."""
_SCRATCH = 8 * 2**10
"""Size of the first read: fits a head and the JSON. The tensors are received where they are decoded."""
_WASTE = bytearray(256 * 2**10)
"""Discarded input of all connections goes here and is never read."""
_JOIN = 64 * 2**10
"""Responses up to this size are sent in one piece: a copy costs less than a second system call."""
DRAIN_S = 10.0
_SWEEP_S = 1.0
_PAUSE_S = 0.1
_SPARE_S = 1.0
"""A client that was idle for less counts as active."""
_BACKLOG = 128
_REFUSED_AT_ONCE = 64
"""Connections beyond the limit that still get a response before they are closed."""

_LOG = logging.getLogger("edgekit.host")


class Connection(asyncio.BufferedProtocol):
    """One accepted socket. fits: there is room for it. opened: opens its transport."""

    opened: asyncio.Task[None] | None = None

    def __init__(self, server: Server, peer: str, sock: socket.socket, *, fits: bool) -> None:
        self._server, self.peer, self._sock, self._fits = server, peer, sock, fits
        self._asked = False  # whether a whole request ever came
        self._state: http1.State = "opening"
        self._since = self._first_byte = server.clock()
        self._scratch = bytearray(_SCRATCH)
        self._received = bytearray()  # what has come of a head, and what came behind a request
        self._head: http1.Head | None = None
        self._last_head: tuple[bytes, http1.Head] | None = None
        self._client: Client | None = None
        self._body = bytearray()
        self._got = 0
        self._peek_at: int | None = None  # of the body: where its JSON ends, until that was looked at
        self._skip = 0
        self._answer_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._paused = False  # reading: enough has come behind a request
        self._blocked = False  # writing: the client does not read

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._enter("idle")
        if not self._fits:
            self._refuse(http1.RequestError(503, "too many connections", close=True))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state == "body":
            return memoryview(self._body)[self._got :]
        if self._state in ("skipping", "lingering"):
            return memoryview(_WASTE)[: self._skip if self._state == "skipping" else None]
        return memoryview(self._scratch)

    def buffer_updated(self, nbytes: int) -> None:
        if self._state == "body":
            self._got += nbytes
            self._read_body()
        elif self._state == "skipping":
            self._skip -= nbytes
            if not self._skip:
                self._finish()
        elif self._state != "lingering":
            if not self._received:
                self._first_byte = self._server.came()
            self._received += memoryview(self._scratch)[:nbytes]
            if self._state in ("idle", "head"):
                self._read_head()
            elif len(self._received) > 2 * _SCRATCH and not self._paused:
                self._paused = True
                self._wire.pause_reading()

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._state == "writing" and not self._wire.is_closing():
            self._next()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._forget_body()
        self._forget_answer()
        self._server.goodbye(self)

    # Called by the server.

    @property
    def busy(self) -> bool:
        """Whether a request is accepted and its response not yet sent and read."""
        return self._state in ("body", "busy", "skipping", "writing")

    @property
    def opening(self) -> bool:
        """Whether it has no transport yet, or is in its TLS handshake."""
        return self._state == "opening"

    @property
    def half_open(self) -> bool:
        """Whether it has not sent a complete TLS handshake or head."""
        return self._state in ("opening", "head") or (self._state == "idle" and not self._asked)

    @property
    def waiting_s(self) -> float:
        """Seconds spent waiting for the client; -1 while busy."""
        return -1.0 if self._state == "busy" else self._server.clock() - self._since

    def check(self, now: float) -> None:
        """End the connection if its state has timed out."""
        if not http1.overdue(self._state, now - self._since, self._server.patience):
            return
        if self._state in ("head", "body"):
            self._refuse(http1.RequestError(408, "the request took too long to arrive", close=True))
        else:
            self._wire.abort()

    def end(self) -> None:
        """Close it now, in any state."""
        if self._transport is not None:
            self._transport.abort()
            return
        with contextlib.suppress(OSError):  # a task cancelled before its transport began leaves the socket open
            self._sock.shutdown(socket.SHUT_RDWR)

    # The journey of a request.

    @property
    def _wire(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _enter(self, state: http1.State) -> None:
        self._state, self._since = state, self._server.clock()

    def _read_head(self) -> None:
        while self._received.startswith(b"\r\n"):
            del self._received[:2]
        if not self._received:
            return
        if self._state != "head":
            self._enter("head")
        limits = self._server.limits
        end = self._received.find(http1.END_OF_HEAD, 0, limits.head_bytes)
        try:
            if end < 0:
                if len(self._received) >= limits.head_bytes:
                    raise http1.RequestError(431, f"the headers exceed {limits.head_bytes} bytes", close=True)
                return
            data = bytes(self._received[:end])
            if self._last_head is None or self._last_head[0] != data:  # a client that asks again sends the same head
                self._last_head = data, http1.parse_head(data, limits)
            head = self._last_head[1]
            self._client = self._server.api.admit(head)
            length = http1.body_length(head, limits)
            del self._received[: end + len(http1.END_OF_HEAD)]
            got = min(length, len(self._received))
            self._peek_at = head.json_bytes if (head.json_bytes or 0) <= LONG_JSON else None
            if (refused := self._refusal_if_late(head, self._received, got)) is not None:
                del self._received[:got]
                self._turn_away(head, refused, left=length - got)
                return
            self._server.reserve(length)
        except http1.RequestError as error:
            self._refuse(error)
            return
        self._head, self._body, self._got = head, bytearray(length), got
        self._body[:got] = self._received[:got]
        del self._received[:got]
        self._enter("body")
        self._read_body()
        if head.expects_continue and self._state == "body":
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self) -> None:
        """Refuse or answer, depending on what has arrived of the body."""
        assert self._head is not None
        if (refused := self._refusal_if_late(self._head, self._body, self._got)) is not None:
            head, left = self._head, len(self._body) - self._got
            self._forget_body()
            self._turn_away(head, refused, left)
            return
        if self._got == len(self._body):
            self._enter("busy")
            self._task = asyncio.get_running_loop().create_task(self._answer(self._head))

    def _refusal_if_late(self, head: http1.Head, body: bytearray, got: int) -> http1.Response | None:
        """The refusal decided by the JSON of an inference, once it has arrived; None to continue."""
        if self._peek_at is None or got < self._peek_at:
            return None
        at, self._peek_at = self._peek_at, None
        return self._server.api.refuse_early(head, body[:at], self._first_byte)

    def _turn_away(self, head: http1.Head, refused: http1.Response, left: int) -> None:
        """Refuse a request with an incomplete body; keep the connection if that is cheap."""
        self._skip = left
        if self._skip > _MOST_SKIPPED or not head.keep_alive or self._server.draining:
            self._send_last(refused)
            return
        self._send(refused)
        if self._skip:
            self._enter("skipping")
        else:
            self._enter("busy")  # not from here: what is received may be many such requests
            asyncio.get_running_loop().call_soon(self._finish)

    async def _answer(self, head: http1.Head) -> None:
        request = InferenceRequest(head, self._body, self._first_byte, self._reserve, self._client)
        response = await self._server.api.handle(request)
        self._task = None
        self._forget_body()
        close = response.close or not head.keep_alive or self._server.draining
        self._send(http1.Response(response.status, response.parts, response.headers, close))
        if close:
            self._wire.close()
            self._enter("writing")
            return
        self._finish()

    def _reserve(self, size: int) -> None:
        self._server.reserve(size)
        self._answer_bytes += size

    def _finish(self) -> None:
        """After a response: take the next request once the client has read it."""
        self._first_byte = self._server.clock()
        if self._blocked:
            self._enter("writing")
        elif not self._wire.is_closing():
            if self._server.draining:
                self._wire.close()
            else:
                self._next()

    def _next(self) -> None:
        self._forget_answer()
        self._asked = True
        self._enter("idle")
        if self._received:
            self._read_head()
        if self._paused and len(self._received) <= _SCRATCH:
            self._paused = False
            self._wire.resume_reading()

    def _refuse(self, error: http1.RequestError) -> None:
        """Refuse, and drain the input: closing over unread bytes may lose the response."""
        self._forget_body()
        response = refusal(error)
        self._server.api.counts[response.status] += 1
        self._send_last(response)

    def _send_last(self, response: http1.Response) -> None:
        """Send a response and end the connection once the client has read it."""
        self._received.clear()
        self._send(http1.Response(response.status, response.parts, response.headers, close=True))
        self._enter("lingering")
        if self._wire.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone
                self._wire.write_eof()

    def _send(self, response: http1.Response) -> None:
        head = http1.response_head(response)
        if len(head) + sum(map(len, response.parts)) <= _JOIN:
            self._wire.write(b"".join((head, *response.parts)))
            return
        self._wire.write(head)
        for part in response.parts:
            self._wire.write(part)

    def _forget_answer(self) -> None:
        self._server.release(self._answer_bytes)
        self._answer_bytes = 0

    def _forget_body(self) -> None:
        if self._head is not None:
            self._server.release(len(self._body))
            self._head = None
            self._body = bytearray()


class Server:
    """Belongs to one event loop. draining: refuses requests. every_second: run each second."""

    def __init__(
        self,
        api: Api,
        limits: http1.HttpLimits | None = None,
        patience: http1.Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        tls: ssl.SSLContext | None = None,
        every_second: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.api = api
        self.limits = limits or http1.HttpLimits()
        self.patience = patience or http1.Patience()
        self.clock = clock
        self.draining = False
        self._tls, self._every_second = tls, every_second
        self._connections: set[Connection] = set()
        self._reserved = 0
        self._turning = self._read = False
        self._came = self._next_turn = 0.0
        self._gone = asyncio.Event()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        """Listen on a bound socket. Raises OSError if another process listens there."""
        loop = asyncio.get_running_loop()
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        self._listening = sock
        self._accepting, self._sweeper = loop.create_task(self._accept(sock)), loop.create_task(self._sweep())

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Refuse new connections, answer pending requests for up to drain_s, then close everything."""
        self.draining = self.api.draining = True
        await _cancelled(self._accepting, *(one.opened for one in self._connections if one.opening))
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

    # Called by connections.

    def goodbye(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._gone.set()

    def reserve(self, size: int) -> None:
        """Reserve memory for a body or answer. Raises RequestError(503) if the total is too large."""
        if self._reserved + size > self.limits.bodies_bytes:
            raise http1.RequestError(503, "too many large requests at once", close=True)
        self._reserved += size

    def release(self, size: int) -> None:
        self._reserved -= size

    def came(self) -> float:
        """Earliest arrival time of the bytes read now, since the loop may have been busy."""
        if not self._turning:
            self._turning, self._came = True, self.clock()
            self._next_turn = self._came
            asyncio.get_running_loop().call_soon(self._turn)
        self._read = True
        return self._came

    def _turn(self) -> None:
        """Start another turn of the loop; it was idle if the last one read nothing."""
        self._turning, self._read = self._read, False
        if self._turning:
            self._came, self._next_turn = self._next_turn, self.clock()
            asyncio.get_running_loop().call_soon(self._turn)

    def check(self, now: float) -> None:
        """End every connection that has timed out."""
        for connection in list(self._connections):
            connection.check(now)

    async def _accept(self, sock: socket.socket) -> None:
        """Accept connections. Those before their TLS handshake count, as they need no certificate."""
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
            peer = peer_of(str(address[0]))
            taken = self._make_room(peer)
            if taken < self.limits.connections + _REFUSED_AT_ONCE:
                connection = Connection(self, peer, accepted, fits=taken < self.limits.connections)
                self._connections.add(connection)
                connection.opened = loop.create_task(self._open(connection, accepted))
            else:
                accepted.close()
            await asyncio.sleep(0)  # a flood of connections leaves the others their turns

    def _make_room(self, peer: str) -> int:
        """Make room for a connection from this address; returns the number of places in use."""
        places, a_peer, taken = self.limits.connections, self.limits.half_open_a_peer, self._connections
        if len(taken) < min(a_peer, places):
            return len(taken)
        waited = [one for one in taken if one.peer == peer and one.half_open]
        if len(waited) < a_peer:
            if len(taken) < places:
                return len(taken)
            waited = [one for one in taken if one.waiting_s >= 0]
        each = Counter(one.peer for one in waited)
        spare = [one for one in waited if one.half_open or one.waiting_s >= _SPARE_S or each[one.peer] > a_peer]
        longest = max(spare, key=lambda one: (each[one.peer], one.waiting_s), default=None)
        if longest is None:
            return len(taken)
        longest.end()
        self._connections.discard(longest)
        return len(taken)

    async def _open(self, connection: Connection, sock: socket.socket) -> None:
        patience_s = None if self._tls is None else self.patience.head
        try:
            with contextlib.suppress(OSError):  # it went, or speaks no TLS
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=patience_s
                )
        finally:
            if connection.opening:
                self.goodbye(connection)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.check(self.clock())
            for check in self._every_second:
                check()


async def _cancelled(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait for them."""
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.gather(*filter(None, tasks), return_exceptions=True)
