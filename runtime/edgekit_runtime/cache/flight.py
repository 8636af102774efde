"""Requests in flight: identical ones share one inference.

    flight, leads = flights.join(key)
    if leads:  ... compute, then flights.land(key, outputs)  or  flights.crash(key, error)
    else:      outputs = flight.result()

Whoever leads must land or crash; both wake every follower and free the key.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from typing import Any

from numpy.typing import NDArray

__all__ = ["Flights"]

Outputs = Mapping[str, NDArray[Any]]


class Flights:
    """Thread-safe. At most one flight a key at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[Outputs]] = {}

    def join(self, key: Hashable) -> tuple[Future[Outputs], bool]:
        """The flight for `key`, and whether the caller leads it (it did not exist before)."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = Future()
            return flight, True

    def land(self, key: Hashable, outputs: Outputs) -> None:
        self._end(key).set_result(outputs)

    def crash(self, key: Hashable, error: BaseException) -> None:
        self._end(key).set_exception(error)

    def _end(self, key: Hashable) -> Future[Outputs]:
        with self._lock:
            return self._flights.pop(key)
