"""Requests in flight: identical ones share one inference.

    flight, leads = flights.join(key)
    if leads:  ... compute, then flights.land(key, result)  or  flights.crash(key, error)
    else:      result = flight.result()

Whoever leads must land or crash; both wake every follower and free the key. Followers are rare: what they wait on is made
when the first one comes, so that leading costs no more than a note in a table.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["Flights"]

Result = TypeVar("Result")


class Flights(Generic[Result]):
    """Thread-safe. At most one flight a key at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[Result] | None] = {}
        self._own: Future[Result] = Future()  # what a leader is handed; nobody waits on it

    def join(self, key: Hashable) -> tuple[Future[Result], bool]:
        """The flight for `key`, and whether the caller leads it (it did not exist before) and need not look at it."""
        with self._lock:
            if key not in self._flights:
                self._flights[key] = None
                return self._own, True
            flight = self._flights[key]
            if flight is None:
                flight = self._flights[key] = Future()
                flight.set_running_or_notify_cancel()  # one follower must not cancel it for all
            return flight, False

    def land(self, key: Hashable, result: Result) -> None:
        """Raises KeyError where nobody leads `key`."""
        flight = self._end(key)
        if flight is not None:
            flight.set_result(result)

    def crash(self, key: Hashable, error: BaseException) -> None:
        """Raises KeyError where nobody leads `key`."""
        flight = self._end(key)
        if flight is not None:
            flight.set_exception(error)

    def _end(self, key: Hashable) -> Future[Result] | None:
        with self._lock:
            return self._flights.pop(key)
