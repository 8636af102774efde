"""One client's connection: bytes in, a request at a time to the api, its response out.

idle -> head -> body -> busy -> idle ...       lingering: said no, waits for the client to hear it

Rules:
- a body is received where it will be decoded; memory is taken for it only after its length was accepted, and for an
  answer only after its size was; both count until they are gone;
- every state but `busy` has a time after which the connection is ended, so that slow clients hold nothing for long;
- a client that leaves while its request waits takes the request with it;
- requests sent one behind another are answered in their order, the next one only after its predecessor's response went.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from edgekit.host.api import Api, Request, refusal
from edgekit.host.errors import RequestError
from edgekit.host.http1 import END_OF_HEAD, Head, Limits, Response, body_length, parse_head, response_head

__all__ = ["Connection", "Keeper", "Patience", "State", "overdue"]

State = Literal["idle", "head", "body", "busy", "writing", "lingering"]
_SCRATCH = 64 * 2**10
_JOIN = 64 * 2**10
"""Responses up to this size are sent in one piece: a copy costs less than a second system call."""


@dataclass(frozen=True)
class Patience:
    """Seconds that a connection may spend in a state."""

    idle: float = 75.0
    head: float = 10.0
    body: float = 60.0
    writing: float = 30.0
    lingering: float = 2.0


def overdue(state: State, age_s: float, patience: Patience) -> bool:
    """busy never is: the api decides how long a request may take."""
    return state != "busy" and age_s > float(getattr(patience, state))


class Keeper(Protocol):
    """What a connection needs of the server that made it. draining: whether no further request is taken."""

    api: Api
    limits: Limits
    patience: Patience
    clock: Callable[[], float]
    draining: bool

    def welcome(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        ...

    def goodbye(self, connection: Connection) -> None: ...
    def reserve(self, size: int) -> None:
        """Memory for a body or an answer of so many bytes. Raises RequestError where there is none left."""
        ...

    def release(self, size: int) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """Made by the server for each client that it accepts."""

    def __init__(self, server: Keeper) -> None:
        self._server = server
        self._state: State = "idle"
        self._since = self._first_byte = server.clock()
        self._scratch = bytearray(_SCRATCH)
        self._received = bytearray()  # what has come of a head, and what came behind a request
        self._head: Head | None = None
        self._body = bytearray()
        self._got = 0
        self._answer_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._paused = False  # reading: enough has come behind a request
        self._blocked = False  # writing: the client does not read

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.welcome(self):
            self._refuse(RequestError(503, "too many connections", close=True))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state == "body":
            return memoryview(self._body)[self._got :]
        return memoryview(self._scratch)

    def buffer_updated(self, nbytes: int) -> None:
        if self._state == "body":
            self._got += nbytes
            if self._got == len(self._body):
                self._start()
        elif self._state != "lingering":
            if not self._received:
                self._first_byte = self._server.clock()
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
        """Whether a request was accepted and its response is not out yet."""
        return self._state in ("body", "busy", "writing")

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
            head = parse_head(bytes(self._received[:end]), limits)
            length = body_length(head, limits)
            self._server.reserve(length)
        except RequestError as error:
            self._refuse(error)
            return
        del self._received[: end + len(END_OF_HEAD)]
        self._head, self._body, self._got = head, bytearray(length), min(length, len(self._received))
        self._body[: self._got] = self._received[: self._got]
        del self._received[: self._got]
        if self._got == length:
            self._start()
            return
        self._enter("body")
        if head.expects_continue:
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _start(self) -> None:
        assert self._head is not None
        self._enter("busy")
        self._task = asyncio.get_running_loop().create_task(self._answer(self._head))

    async def _answer(self, head: Head) -> None:
        response = await self._server.api.handle(Request(head, self._body, self._first_byte, self._reserve))
        self._task = None
        self._forget_body()
        self._first_byte = self._server.clock()
        close = response.close or not head.keep_alive or self._server.draining
        self._send(Response(response.status, response.parts, response.headers, close))
        if close:
            self._wire.close()
            self._enter("writing")
            return
        if self._blocked:
            self._enter("writing")
        else:
            self._next()

    def _reserve(self, size: int) -> None:
        self._server.reserve(size)
        self._answer_bytes += size

    def _next(self) -> None:
        self._forget_answer()
        self._enter("idle")
        if self._received:
            self._read_head()
        if self._paused and len(self._received) <= _SCRATCH:
            self._paused = False
            self._wire.resume_reading()

    def _refuse(self, error: RequestError) -> None:
        """Say no and let the client hear it: a socket closed over unread bytes may take the response with it."""
        self._forget_body()
        self._received.clear()
        response = refusal(error)
        self._server.api.counts[response.status] += 1
        self._send(Response(response.status, response.parts, response.headers, close=True))
        self._enter("lingering")
        if self._wire.can_write_eof():
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
