"""One client's connection: bytes in, a request at a time to the api, its response out.

idle -> head -> body -> busy -> idle ...       skipping: refused by its JSON, the tensors are read and thrown away
                                               lingering: refused, waits until the client has read it

Rules:
- a missing token or an exceeded rate is refused by the head alone;
- an inference that would be too late is refused by its JSON, before its tensors have come; up to a bound they are
  discarded, and the connection serves the next request;
- a body is received where it will be decoded; its memory, and the answer's, is taken once the size is accepted, and
  counts until it is released;
- every state but `busy` has a timeout, so that slow clients hold nothing for long;
- a client that leaves cancels its waiting request;
- pipelined requests are answered in order, each after the response before it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from edgekit.host.access import Client
from edgekit.host.api import LONG_JSON, Api, InferenceRequest, refusal
from edgekit.host.http1 import (
    END_OF_HEAD,
    Head,
    HttpLimits,
    RequestError,
    Response,
    body_length,
    parse_head,
    response_head,
)

State = Literal["idle", "head", "body", "busy", "skipping", "writing", "lingering"]
_MOST_SKIPPED = 2**20
"""A body with more left to come is not read to its end: a new connection costs the client less."""
_SCRATCH = 8 * 2**10
"""Bytes of a first read: a head and the JSON fit, and the tensors behind them are received where they are decoded."""
_WASTE = bytearray(256 * 2**10)
"""What is thrown away is received here, by all connections: it is never read."""
_JOIN = 64 * 2**10
"""Responses up to this size are sent in one piece: a copy costs less than a second system call."""


@dataclass(frozen=True)
class Patience:
    """Seconds that a connection may spend in a state."""

    idle: float = 75.0
    head: float = 10.0
    body: float = 60.0
    skipping: float = 10.0
    writing: float = 30.0
    lingering: float = 2.0


def overdue(state: State, age_s: float, patience: Patience) -> bool:
    """busy never is: the api decides how long a request may take."""
    return state != "busy" and age_s > float(getattr(patience, state))


class Keeper(Protocol):
    """The server as a connection sees it. draining: no further request is taken."""

    api: Api
    limits: HttpLimits
    patience: Patience
    clock: Callable[[], float]
    draining: bool

    def welcome(self, connection: Connection) -> None: ...
    def goodbye(self, connection: Connection) -> None: ...
    def reserve(self, size: int) -> None:
        """Take memory for a body or an answer. Raises RequestError if none is left."""
        ...

    def release(self, size: int) -> None: ...
    def came(self) -> float:
        """When bytes that are read now came, at the earliest."""
        ...


class PendingConnection:
    """An accepted connection before the end of its TLS handshake. fits: there was room for it."""

    half_open, fits = True, True
    task: asyncio.Task[None] | None = None

    def __init__(self, peer: str, sock: socket.socket, clock: Callable[[], float]) -> None:
        self.peer, self.sock = peer, sock
        self._clock, self._since = clock, clock()

    @property
    def waiting_s(self) -> float:
        return self._clock() - self._since

    def end(self) -> None:
        """Close the socket, which a task cancelled before its transport began would leave open."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class Connection(asyncio.BufferedProtocol):
    """Made by the server for each client that it accepts."""

    def __init__(self, server: Keeper, pending: PendingConnection) -> None:
        self._server, self.pending, self.peer = server, pending, pending.peer
        self._asked = False  # whether a whole request ever came
        self._state: State = "idle"
        self._since = self._first_byte = server.clock()
        self._scratch = bytearray(_SCRATCH)
        self._received = bytearray()  # what has come of a head, and what came behind a request
        self._head: Head | None = None
        self._last_head: tuple[bytes, Head] | None = None
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

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.welcome(self)
        if not self.pending.fits:
            self._refuse(RequestError(503, "too many connections", close=True))

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

    # What the server calls.

    @property
    def busy(self) -> bool:
        """Whether a request was accepted and its response is not out yet, or not read to its end."""
        return self._state in ("body", "busy", "skipping", "writing")

    @property
    def half_open(self) -> bool:
        """Whether it has sent nothing yet, or a part of a head."""
        return self._state == "head" or (self._state == "idle" and not self._asked)

    @property
    def waiting_s(self) -> float:
        """Seconds that the server has waited for the client; -1 while it does not."""
        return -1.0 if self._state == "busy" else self._server.clock() - self._since

    def check(self, now: float) -> None:
        """End the connection if it has been in its state for too long."""
        if not overdue(self._state, now - self._since, self._server.patience):
            return
        if self._state in ("head", "body"):
            self._refuse(RequestError(408, "the request took too long to arrive", close=True))
        else:
            self._wire.abort()

    def end(self) -> None:
        """Close it now, whatever it does."""
        self._wire.abort()

    # The journey of a request.

    @property
    def _wire(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _enter(self, state: State) -> None:
        self._state, self._since = state, self._server.clock()

    def _read_head(self) -> None:
        while self._received.startswith(b"\r\n"):
            del self._received[:2]
        if not self._received:
            return
        if self._state != "head":
            self._enter("head")
        limits = self._server.limits
        end = self._received.find(END_OF_HEAD, 0, limits.head_bytes)
        try:
            if end < 0:
                if len(self._received) >= limits.head_bytes:
                    raise RequestError(431, f"the headers take more than {limits.head_bytes} bytes", close=True)
                return
            data = bytes(self._received[:end])
            if self._last_head is None or self._last_head[0] != data:  # a client that asks again sends the same head
                self._last_head = data, parse_head(data, limits)
            head = self._last_head[1]
            self._client = self._server.api.admit(head)
            length = body_length(head, limits)
            del self._received[: end + len(END_OF_HEAD)]
            got = min(length, len(self._received))
            self._peek_at = head.json_bytes if (head.json_bytes or 0) <= LONG_JSON else None
            if (refused := self._refusal_if_late(head, self._received, got)) is not None:
                del self._received[:got]
                self._turn_away(head, refused, left=length - got)
                return
            self._server.reserve(length)
        except RequestError as error:
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
        """Continue with what has come of the body."""
        assert self._head is not None
        if (refused := self._refusal_if_late(self._head, self._body, self._got)) is not None:
            head, left = self._head, len(self._body) - self._got
            self._forget_body()
            self._turn_away(head, refused, left)
            return
        if self._got == len(self._body):
            self._enter("busy")
            self._task = asyncio.get_running_loop().create_task(self._answer(self._head))

    def _refusal_if_late(self, head: Head, body: bytearray, got: int) -> Response | None:
        """The refusal by the JSON of an inference, once, as soon as it is there; None to continue."""
        if self._peek_at is None or got < self._peek_at:
            return None
        at, self._peek_at = self._peek_at, None
        return self._server.api.refuse_early(head, body[:at], self._first_byte)

    def _turn_away(self, head: Head, refused: Response, left: int) -> None:
        """Refuse a request whose body is incomplete; the connection stays if that costs little."""
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

    async def _answer(self, head: Head) -> None:
        request = InferenceRequest(head, self._body, self._first_byte, self._reserve, self._client)
        response = await self._server.api.handle(request)
        self._task = None
        self._forget_body()
        close = response.close or not head.keep_alive or self._server.draining
        self._send(Response(response.status, response.parts, response.headers, close))
        if close:
            self._wire.close()
            self._enter("writing")
            return
        self._finish()

    def _reserve(self, size: int) -> None:
        self._server.reserve(size)
        self._answer_bytes += size

    def _finish(self) -> None:
        """A response was written: the next request, once the client has read it."""
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

    def _refuse(self, error: RequestError) -> None:
        """Refuse, and drain the input: closing over unread bytes may lose the response."""
        self._forget_body()
        response = refusal(error)
        self._server.api.counts[response.status] += 1
        self._send_last(response)

    def _send_last(self, response: Response) -> None:
        """Send a response and end the connection once the client has heard it."""
        self._received.clear()
        self._send(Response(response.status, response.parts, response.headers, close=True))
        self._enter("lingering")
        if self._wire.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone
                self._wire.write_eof()

    def _send(self, response: Response) -> None:
        head = response_head(response)
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
