"""Keep-alive connections to one host.

    reply = pool.exchange(HttpCall("GET", "/v2"), deadline)

Rules:
- at most `limit` connections at once; a caller waits for a free one no longer than its deadline;
- a kept connection that died is replaced once, silently: inference changes nothing on the host. One that ended is
  noticed before use, and counted (`breaks`);
- a connection is kept only after an answer that was read to its end;
- an answer larger than the pool's limit is not read.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse
from typing import Any

from edgekit_runtime.remote.deadline import Deadline, TimedSocket, TooManyBytesError
from edgekit_runtime.remote.endpoint import Endpoint
from edgekit_runtime.system.errors import HostError

MAX_BODY = 256 * 2**20
_MOST_FRAMING = 2**20
"""Bytes of an answer besides its body: headers, chunk sizes, trailers."""
_KEEP_S = 30.0
_PIECE = 2**18


@dataclass(frozen=True)
class HttpCall:
    """path: after the endpoint's prefix."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[bytes | memoryview, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The answer, whatever its status."""

    status: int
    headers: HTTPMessage
    body: bytearray


class _Connection(HTTPConnection):
    """http.client's connection over a connected socket with a deadline."""

    auto_open = 0

    def __init__(self, endpoint: Endpoint, deadline: Deadline) -> None:
        super().__init__(endpoint.name, endpoint.port)
        self.default_port = 443 if endpoint.tls else 80  # decides whether the header Host names the port
        self.timed = TimedSocket(endpoint.connect(deadline), deadline)
        self.sock: Any = self.timed
        self.idle_since = 0.0

    @property
    def ended(self) -> bool:
        """Whether the other side has closed it, or sent unrequested bytes."""
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self.timed.sock, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        self.close()
        self.timed.end()


class Pool:
    """Thread-safe. limit: connections at once. most_bytes: of one answer's body."""

    def __init__(
        self, endpoint: Endpoint, *, limit: int, most_bytes: int = MAX_BODY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        self._most_bytes = most_bytes
        self._clock = clock
        self._free = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._breaks = 0
        self._closed = False

    @property
    def breaks(self) -> int:
        """How often a kept connection had ended; checks the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._idle = [connection for connection in idle if self._is_usable(connection)]
            return self._breaks

    def exchange(self, call: HttpCall, deadline: Deadline) -> Reply:
        """Raises TimeoutError, HostError (host-unreachable, host-protocol)."""
        if not self._free.acquire(timeout=deadline.left()):
            raise TimeoutError("every connection is busy")
        try:
            connection = self._pop_idle(deadline)
            if connection is not None:
                try:
                    return self._once(connection, call)
                except ConnectionError:
                    self._breaks += 1
                    self.forget()  # its neighbours died with it
            return self._once(_Connection(self._endpoint, deadline), call)
        except ConnectionError as error:
            what = f"the connection broke before an answer ({type(error).__name__})"
            do = "Look at the host's own log"
            raise HostError(what, where=self._endpoint.url, do=do, code="host-unreachable") from error
        finally:
            self._free.release()

    def forget(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.end()

    def close(self) -> None:
        """Busy connections are closed when their exchange ends."""
        self._closed = True
        self.forget()

    def _pop_idle(self, deadline: Deadline) -> _Connection | None:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if self._is_usable(connection):
                    connection.timed.deadline = deadline
                    return connection
        return None

    def _is_usable(self, connection: _Connection) -> bool:
        """Whether an idle connection may be used; else closes it. The lock is held."""
        old = self._clock() - connection.idle_since > _KEEP_S
        if not old and not connection.ended:
            return True
        self._breaks += not old
        connection.end()
        return False

    def _once(self, connection: _Connection, call: HttpCall) -> Reply:
        keep = False
        connection.timed.most = connection.timed.received + self._most_bytes + _MOST_FRAMING
        try:
            response = _ask(connection, self._endpoint.prefix, call)
            reply = Reply(response.status, response.headers, self._read(response))
            keep = not response.will_close
            return reply
        except ConnectionError:
            raise
        except TooManyBytesError as error:
            raise HostError("the answer never ends", where=self._endpoint.url, code="host-protocol") from error
        except (HTTPException, ValueError) as error:
            what = f"what answered is no HTTP ({type(error).__name__})"
            raise HostError(what, where=self._endpoint.url, do="Check the port", code="host-protocol") from error
        finally:
            if keep and not self._closed:
                connection.idle_since = self._clock()
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.end()

    def _read(self, response: HTTPResponse) -> bytearray:
        """The whole body. Raises ConnectionError if cut short, HostError if too large."""
        too_large = HostError(
            f"the answer is larger than {self._most_bytes:,} bytes", where=self._endpoint.url, code="host-protocol"
        )
        length = response.length
        if length is None:  # chunked, or until the connection closes
            body = bytearray()
            while piece := response.read(_PIECE):
                body += piece
                if len(body) > self._most_bytes:
                    raise too_large
            return body
        if length > self._most_bytes:
            raise too_large
        body = bytearray(length)
        view, at = memoryview(body), 0
        while at < length:
            read = response.readinto(view[at:])
            if not read:
                raise ConnectionResetError(f"{at} of {length} bytes came")
            at += read
        response.read()  # lets http.client see the end
        return body


def _ask(connection: _Connection, prefix: str, call: HttpCall) -> HTTPResponse:
    connection.putrequest(call.method, prefix + call.path, skip_accept_encoding=True)
    for name, value in call.headers.items():
        connection.putheader(name, value)
    if call.parts or call.method == "POST":
        connection.putheader("Content-Length", str(sum(map(len, call.parts))))
    try:
        connection.endheaders()
        for part in call.parts:
            connection.send(part)
    except ConnectionError:
        # A host that refuses a request may answer and close before it has read it all: its word is better than none.
        try:
            return connection.getresponse()
        except (OSError, HTTPException):
            pass
        raise
    return connection.getresponse()
