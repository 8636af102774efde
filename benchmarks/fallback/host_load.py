"""Load for a server of the Open Inference Protocol: callers in a closed loop, or arrivals at a rate of their own.

    closed(address, request, callers=16, seconds=5)          # as fast as the server answers
    arrivals(address, request, rate=1000, seconds=60)

One thread, sockets that do not block, requests encoded once: the generator costs little beside the server, and the
same for every server. In an open loop a latency counts from the moment at which the request was due, not from when a
connection was free.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter


@dataclass
class Outcome:
    """latencies_ms: status -> one a response. unsent: arrivals that found no free connection."""

    seconds: float = 0.0
    latencies_ms: dict[int, list[float]] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)
    unsent: int = 0

    def add(self, status: int, took_s: float) -> None:
        self.latencies_ms.setdefault(status, []).append(took_s * 1e3)

    def quantile(self, status: int, q: float) -> float | None:
        times = sorted(self.latencies_ms.get(status, ()))
        return times[min(len(times) - 1, int(q * len(times)))] if times else None

    def rate(self, status: int = 200, within_ms: float = float("inf")) -> float:
        return sum(ms <= within_ms for ms in self.latencies_ms.get(status, ())) / self.seconds


def encoded(path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: host", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def closed(address: tuple[str, int], request: bytes, *, callers: int, seconds: float, warm_s: float = 1.0) -> Outcome:
    """Each caller sends its next request when the last one is answered."""
    outcome, load = Outcome(seconds=seconds), _Connections(address)
    begin = perf_counter() + warm_s
    for _ in range(callers):
        load.send(load.connect(), request, perf_counter())
    while (now := perf_counter()) < begin + seconds:
        for connection, status in load.wait(0.05):
            done = perf_counter()
            if done >= begin:
                outcome.add(status, done - connection.due)
            load.send(connection if connection.sock else load.connect(), request, done)
        del now
    outcome.broken = load.broken
    load.close()
    return outcome


def arrivals(
    address: tuple[str, int], request: bytes, *, rate: float, seconds: float, connections: int = 200, seed: int = 0
) -> Outcome:
    """Poisson arrivals, each over a connection that is free, at most so many."""
    outcome, load, rng = Outcome(seconds=seconds), _Connections(address), random.Random(seed)
    free: deque[_Connection] = deque()
    begin = due = perf_counter() + 0.1
    while due < begin + seconds or load.busy:
        now = perf_counter()
        while due <= now and due < begin + seconds:
            if free or load.open < connections:
                load.send(free.pop() if free else load.connect(), request, due)
            else:
                outcome.unsent += 1
            due += rng.expovariate(rate)
        if now > begin + seconds + 5:
            break
        for connection, status in load.wait(max(0.0, min(due - perf_counter(), 0.05))):
            outcome.add(status, perf_counter() - connection.due)
            if connection.sock is not None:
                free.append(connection)
    outcome.broken = load.broken
    load.close()
    return outcome


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process and all below it have taken: beside other work a fairer figure."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = [
            child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
        ]
    except OSError:  # it ended
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(int(child)) for child in children)


@dataclass(eq=False)
class _Connection:
    sock: socket.socket | None
    due: float = 0.0
    rest: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)


class _Connections:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address, self._selector = address, selectors.DefaultSelector()
        self.open = self.busy = 0
        self.broken: Counter[str] = Counter()

    def connect(self) -> _Connection:
        sock = socket.create_connection(self._address, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        connection = _Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self.open += 1
        return connection

    def send(self, connection: _Connection, request: bytes, due: float) -> None:
        connection.due, connection.rest = due, memoryview(request)
        connection.received.clear()
        self.busy += 1
        self._push(connection)

    def wait(self, timeout_s: float) -> list[tuple[_Connection, int]]:
        """What was answered meanwhile; status 0 for a connection that broke."""
        done = []
        for key, events in self._selector.select(timeout_s):
            connection = key.data
            if events & selectors.EVENT_WRITE:
                self._push(connection)
            if events & selectors.EVENT_READ and (status := self._pull(connection)) is not None:
                self.busy -= connection.due >= 0
                if connection.due >= 0:
                    done.append((connection, status))
        return done

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.sock.close()
        self._selector.close()

    def _push(self, connection: _Connection) -> None:
        assert connection.sock is not None
        try:
            while connection.rest:
                connection.rest = connection.rest[connection.sock.send(connection.rest) :]
        except BlockingIOError:
            pass
        except OSError:
            connection.rest = memoryview(b"")  # the reading side says what happened
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.rest else 0)
        self._selector.modify(connection.sock, events, connection)

    def _pull(self, connection: _Connection) -> int | None:
        assert connection.sock is not None
        try:
            piece = connection.sock.recv(1 << 18)
        except BlockingIOError:
            return None
        except OSError as error:
            return self._lost(connection, type(error).__name__)
        if not piece:
            return self._lost(connection, "closed")
        connection.received += piece
        end = connection.received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(connection.received[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(connection.received) < end + 4 + length:
            return None
        return int(head[9:12])

    def _lost(self, connection: _Connection, why: str) -> int:
        assert connection.sock is not None
        self.broken[why] += 1
        self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.sock = None
        self.open -= 1
        return 0
