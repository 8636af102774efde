"""One deadline and one limit of bytes for a whole exchange.

    deadline = Deadline(0.050)
    wire = TimedSocket(sock, deadline)          # what http.client needs of a socket: sendall, makefile

A socket's own timeout restarts with each read, and http.client reads headers, chunk extensions and trailers without
end: so time and bytes are limited below it.
"""

from __future__ import annotations

import io
import math
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl


class TooManyBytesError(OSError):
    """The other side sent more than the exchange may take."""


class Deadline:
    """timeout_s from now, on a monotonic clock.

    step_s: the longest single wait within it.
    late_s: its last part, unknown to the other side: an answer in it is too late, and shows how late.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        step_s: float = math.inf,
        late_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self._step_s = step_s
        self._at = clock() + timeout_s
        self._late_s = late_s

    def left(self) -> float:
        """Seconds that a single wait may take, more than 0. Raises TimeoutError if none are left."""
        left = self._at - self._clock()
        if left <= 0:
            raise TimeoutError("the time given ran out")
        return min(left, self._step_s)

    def wanted_us(self) -> int:
        """Microseconds in which an answer is in time, at least 1. Raises TimeoutError."""
        return max(1, int((self.left() - self._late_s) * 1e6))


class TimedSocket:
    """A connected socket with a deadline, which the owner sets for each exchange.

    received: bytes so far.
    most: limit of `received`; the owner may raise it.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline, most: float = math.inf) -> None:
        self.sock = sock
        self.deadline = deadline
        self.received = 0
        self.most = most

    def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Continue encrypted, after a handshake within the deadline."""
        self.sock.settimeout(self.deadline.left())
        self.sock = context.wrap_socket(self.sock, server_hostname=name)

    def sendall(self, data: Any) -> None:
        # An SSL socket's own sendall applies its timeout to every record, so the loop is ours.
        view = memoryview(data).cast("B")
        while view:
            self.sock.settimeout(self.deadline.left())
            view = view[self.sock.send(view) :]

    def recv(self, size: int) -> bytes:
        data = bytearray(size)
        return bytes(data[: self.recv_into(data)])

    def recv_into(self, buffer: Any) -> int:
        """Raises TimeoutError, TooManyBytesError."""
        self.sock.settimeout(self.deadline.left())
        count = self.sock.recv_into(buffer)
        self.received += count
        if self.received > self.most:
            raise TooManyBytesError("more bytes came than were promised")
        return count

    def makefile(self, mode: str = "rb", *_: Any) -> io.BufferedReader:
        assert mode == "rb", mode
        return io.BufferedReader(_Reads(self))

    def close(self) -> None:
        """Does nothing: http.client closes before it reads a response. The owner calls `end`."""

    def end(self) -> None:
        self.sock.close()


class _Reads(io.RawIOBase):
    """A reader whose `close`, called at the end of a response, leaves the socket open."""

    def __init__(self, owner: TimedSocket) -> None:
        self._owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._owner.recv_into(buffer)
