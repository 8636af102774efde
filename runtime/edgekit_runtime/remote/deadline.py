"""One point in time that a whole exchange must keep: connecting, sending, every single read.

A socket's own timeout starts anew with each read, so a server that sends a byte now and then holds a caller for ever. Here
each step gets what is left, and no more.

    deadline = Deadline(0.050)
    wire = TimedSocket(sock, deadline)          # what http.client needs of a socket: sendall, makefile
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Deadline", "TimedSocket"]


class Deadline:
    """timeout_s from now, on a monotonic clock."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + timeout_s

    def left(self) -> float:
        """Seconds, more than 0. Raises TimeoutError when there are none."""
        left = self._at - self._clock()
        if left <= 0:
            raise TimeoutError("the time given ran out")
        return left


class TimedSocket:
    """A connected socket whose every operation ends by `deadline`, which the owner sets anew for each exchange."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.sock = sock
        self.deadline = deadline

    def sendall(self, data: Any) -> None:
        # An SSL socket's own sendall applies its timeout to every record, so the loop is ours.
        view = memoryview(data).cast("B")
        while view:
            self.sock.settimeout(self.deadline.left())
            view = view[self.sock.send(view) :]

    def makefile(self, mode: str = "rb", *_: Any) -> io.BufferedReader:
        assert mode == "rb", mode
        return io.BufferedReader(_Reads(self))

    def close(self) -> None:
        """Nothing: http.client closes a socket whose response it has yet to read. The owner calls `end`."""

    def end(self) -> None:
        self.sock.close()


class _Reads(io.RawIOBase):
    """Closing it leaves the socket open: http.client closes the file of a response that it has read to its end."""

    def __init__(self, owner: TimedSocket) -> None:
        self._owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._owner.sock.settimeout(self._owner.deadline.left())
        return self._owner.sock.recv_into(buffer)
