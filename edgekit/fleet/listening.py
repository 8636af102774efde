"""uvicorn's HTTP with bounds on connections and deadlines for requests.

    uvicorn.Config(app, http=bounded(request_s=10, most=256, most_a_peer=64, exempt=("127.0.0.1",)))

Rules:
- a request must be whole within `request_s` of the connection, or of its own first byte; then the connection is closed;
- at most `most` connections are open, and `most_a_peer` of one address (of IPv6: one network); a new one takes the
  place of the one that has waited longest without a whole request, and is closed where there is none;
- the process keeps descriptors for its broker and its store: `most` is at most a quarter of what it may open;
- an exempt address, a trusted proxy's, has no bound of its own.
"""

from __future__ import annotations

import asyncio  # noqa: TID253 - this module is only loaded by a server
from collections.abc import Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: TID253

from edgekit.peers import peer_of

MOST_HEAD_BYTES = 16 * 1024


def bounded(*, request_s: float, most: int, most_a_peer: int, exempt: Collection[str] = ()) -> type[H11Protocol]:
    """A protocol class for `uvicorn.Config(http=...)`; its connections count together."""

    class Protocol(_BoundedProtocol):
        _table = _Table(request_s, min(most, _affordable()), most_a_peer, frozenset(exempt))

    return Protocol


def _affordable() -> int:
    """A quarter of the descriptors that this process may open."""
    try:
        import resource
    except ImportError:  # Windows
        return 128
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024 if soft == resource.RLIM_INFINITY else max(8, soft // 4)


class _Table:
    """The open connections, oldest first, each with its peer's address."""

    def __init__(self, request_s: float, most: int, most_a_peer: int, exempt: Collection[str]) -> None:
        self.request_s = request_s
        self._most, self._most_a_peer, self._exempt = most, most_a_peer, exempt
        self._open: dict[_BoundedProtocol, str] = {}  # with whose it is

    def admit(self, one: _BoundedProtocol, peer: str) -> bool:
        """Count it, in the place of another one where the bound is reached.
        False if there is no place."""
        exempt, peer = peer in self._exempt, peer_of(peer)
        same = [other for other, theirs in self._open.items() if theirs == peer]
        full = not exempt and len(same) >= self._most_a_peer
        if full or len(self._open) >= self._most:
            waiting = next((other for other in (same if full else self._open) if other.waits), None)
            if waiting is None:
                return False
            self.remove(waiting)
            waiting.transport.abort()
        self._open[one] = peer
        return True

    def remove(self, one: _BoundedProtocol) -> None:
        self._open.pop(one, None)


class _BoundedProtocol(H11Protocol):
    _table: _Table

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted = False

    @property
    def waits(self) -> bool:
        """Whether no whole request is there that an answer is due to."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address = transport.get_extra_info("peername")
        self._admitted = self._table.admit(self, str(address[0]) if address else "")
        if not self._admitted:
            transport.abort()
            return
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._table.remove(self)
        if self._admitted:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._admitted:
            return
        super().data_received(data)
        if self.waits:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._table.request_s, self._time_out)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self._deadline = None
        if self.waits:
            self.transport.abort()
