"""Keep-alive connections to one host.

    reply = pool.exchange("GET", "/v2", deadline)

Rules:
- at most `limit` connections at once; a caller waits for a free one no longer than its deadline;
- a kept connection that died is replaced once, silently: inference changes nothing on the host. One that ended is
  noticed before use, and counted (`breaks`);
- a connection is kept only after an answer that was read to its end;
- an answer larger than the pool's limit is not read.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead
from typing import TypeVar

from edgekit_runtime.remote.endpoint import Deadline, Endpoint, TimedConnection, TooManyBytesError
from edgekit_runtime.system.errors import HostError

MAX_BODY = 256 * 2**20
_MOST_FRAMING = 2**20
"""Bytes of an answer besides its body: headers, chunk sizes, trailers."""
_KEEP_S = 30.0
Parts = tuple[bytes | memoryview, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """The answer, whatever its status."""

    status: int
    headers: HTTPMessage
    body: bytes


class StreamedReply:
    """An answer that is read line by line, in one thread; `end` may be called from any."""

    def __init__(self, pool: Pool, response: HTTPResponse, connection: TimedConnection) -> None:
        self._pool, self._response, self._connection = pool, response, connection
        self.status, self.headers, self._closed = response.status, response.headers, False
        self._lock = threading.Lock()

    def line(self, most: int, deadline: Deadline) -> bytes:
        """The next line with its end; at most that many bytes, none at the answer's end.

        Raises TimeoutError, ConnectionError, HostError (host-protocol).
        """
        self._connection.timed.deadline = deadline
        return self._pool.guarded(lambda: self._response.readline(most))

    def read(self, most: int) -> bytes:
        return self._pool.guarded(lambda: self._response.read(most))

    def end(self) -> None:
        """End the connection: a read in another thread returns, or fails."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if not self._closed:  # another exchange may be using it
                self._connection.timed.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Keep the connection if the answer was read to its end. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        if self._response.isclosed() and not self._response.will_close:
            self._pool.keep(self._connection)
        else:
            self._connection.end()


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
        self._idle: list[TimedConnection] = []
        self._breaks = 0
        self._closed = False

    @property
    def breaks(self) -> int:
        """How often a kept connection had ended; checks the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._idle = [connection for connection in idle if self._is_usable(connection)]
            return self._breaks

    def exchange(
        self, method: str, path: str, deadline: Deadline, headers: Mapping[str, str] | None = None, parts: Parts = ()
    ) -> Reply:
        """path: after the endpoint's prefix. parts: of the body.

        Raises TimeoutError, HostError (host-unreachable, host-protocol).
        """
        with self._connected(deadline):
            return self._retried(
                deadline, lambda connection: self._once(connection, method, path, headers or {}, parts)
            )

    def stream(self, path: str, deadline: Deadline, headers: Mapping[str, str], parts: Parts) -> StreamedReply:
        """POST; the answer as soon as its head is there. Raises as `exchange` does."""

        def ask(connection: TimedConnection) -> StreamedReply:
            connection.timed.most = connection.timed.received + self._most_bytes + _MOST_FRAMING
            try:
                response = self.guarded(lambda: _ask(connection, "POST", self._endpoint.prefix + path, headers, parts))
            except BaseException:
                connection.end()
                raise
            return StreamedReply(self, response, connection)

        with self._connected(deadline):
            return self._retried(deadline, ask)

    @contextlib.contextmanager
    def _connected(self, deadline: Deadline) -> Iterator[None]:
        """Take a place among `limit`. Raises HostError for a connection that breaks within."""
        if not self._free.acquire(timeout=deadline.left()):
            raise TimeoutError("every connection is busy")
        try:
            yield
        except ConnectionError as error:
            what = f"the connection broke before an answer ({type(error).__name__})"
            do = "Look at the host's own log"
            raise HostError(what, where=self._endpoint.url, do=do, code="host-unreachable") from error
        finally:
            self._free.release()

    def _retried(self, deadline: Deadline, ask: Callable[[TimedConnection], T]) -> T:
        """Ask on a kept connection, else, or where that died, on a new one."""
        connection = self._pop_idle(deadline)
        if connection is not None:
            try:
                return ask(connection)
            except ConnectionError:
                self._breaks += 1
                self.forget()  # its neighbours died with it
        return ask(self._endpoint.connect(deadline))

    def keep(self, connection: TimedConnection) -> None:
        if self._closed:
            connection.end()
            return
        connection.idle_since = self._clock()
        with self._lock:
            self._idle.append(connection)

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

    def _pop_idle(self, deadline: Deadline) -> TimedConnection | None:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if self._is_usable(connection):
                    connection.timed.deadline = deadline
                    return connection
        return None

    def _is_usable(self, connection: TimedConnection) -> bool:
        """Whether an idle connection may be used; else closes it. The lock is held."""
        old = self._clock() - connection.idle_since > _KEEP_S
        if not old and not connection.ended:
            return True
        self._breaks += not old
        connection.end()
        return False

    def _once(
        self, connection: TimedConnection, method: str, path: str, headers: Mapping[str, str], parts: Parts
    ) -> Reply:
        keep = False
        connection.timed.most = connection.timed.received + self._most_bytes + _MOST_FRAMING

        def answer() -> Reply:
            nonlocal keep
            response = _ask(connection, method, self._endpoint.prefix + path, headers, parts)
            reply = Reply(response.status, response.headers, self._read(response))
            keep = not response.will_close
            return reply

        try:
            return self.guarded(answer)
        finally:
            if keep:
                self.keep(connection)
            else:
                connection.end()

    def guarded(self, read: Callable[[], T]) -> T:
        """Raises ConnectionError, OSError, HostError (host-protocol)."""
        try:
            return read()
        except IncompleteRead as error:
            raise ConnectionResetError(f"{len(error.partial)} bytes of the answer came") from error
        except TooManyBytesError as error:
            raise self._invalid("the answer never ends") from error
        except ConnectionError:
            raise
        except (HTTPException, ValueError) as error:
            raise self._invalid(f"the answer is not HTTP ({type(error).__name__})", "Check the port") from error

    def _read(self, response: HTTPResponse) -> bytes:
        """The whole body. Raises HostError if it is too large."""
        body = b"" if (response.length or 0) > self._most_bytes else response.read()
        if max(response.length or 0, len(body)) > self._most_bytes:
            raise self._invalid(f"the answer is larger than {self._most_bytes:,} bytes")
        return body

    def _invalid(self, what: str, do: str = "") -> HostError:
        return HostError(what, where=self._endpoint.url, do=do, code="host-protocol")


def _ask(connection: TimedConnection, method: str, path: str, headers: Mapping[str, str], parts: Parts) -> HTTPResponse:
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if method == "POST":
        connection.putheader("Content-Length", str(sum(map(len, parts))))
    try:
        connection.endheaders()
        for part in parts:
            connection.send(part)
    except ConnectionError:
        # A host may refuse a request and close before reading it all: its answer says more than a broken connection.
        with contextlib.suppress(OSError, HTTPException):
            return connection.getresponse()
        raise
    return connection.getresponse()
