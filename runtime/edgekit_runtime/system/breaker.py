"""A circuit breaker: stop asking a server that fails, and find out cheaply when it is back.

    breaker = Breaker()
    if breaker.allows():
        try:
            answer = client.infer(...)
        except HostError:
            breaker.failed()
        else:
            breaker.record_success()

Rules:
- closed: every request may go; `threshold` failures in a row open it;
- open: none may go for `shortest_s`, and twice as long from the start of each failed probe, at most `longest_s`;
- half-open: one request, the probe, may go: its success closes the breaker, its failure opens it again;
- a probe that never reports is forgotten after `longest_s`, and another may go;
- while open, reports of earlier requests change nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "half-open"]


class Breaker:
    """Thread-safe. threshold: failures in a row. shortest_s, longest_s: seconds of being open."""

    def __init__(
        self,
        *,
        threshold: int = 5,
        shortest_s: float = 0.25,
        longest_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if threshold < 1 or not 0 < shortest_s <= longest_s:
            raise ValueError("threshold must be at least 1, and 0 < shortest_s <= longest_s")
        self._threshold, self._shortest_s, self._longest_s = threshold, shortest_s, longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._wait_s = 0.0  # 0 while closed
        self._until = 0.0  # open: when the next probe may go; half-open: when the probe counts as lost
        self._probing = False

    @property
    def state(self) -> BreakerState:
        """`half-open` as soon as a probe may go, or while one is on its way."""
        with self._lock:
            if not self._wait_s:
                return "closed"
            return "half-open" if self._probing or self._clock() >= self._until else "open"

    def allows(self) -> bool:
        """Whether a request may go now. In the half-open state the first caller's is the probe.
        The caller of a probe must report its result."""
        with self._lock:
            if not self._wait_s:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._probing, self._until = True, now + self._longest_s
            return True

    def record_success(self) -> None:
        """An answer arrived in time."""
        with self._lock:
            if self._wait_s and not self._probing:
                return
            self._failures, self._wait_s, self._probing = 0, 0.0, False

    def failed(self) -> None:
        """No answer arrived in time."""
        with self._lock:
            if not self._wait_s:
                self._failures += 1
                if self._failures >= self._threshold:
                    self._open(self._shortest_s, self._clock())
            elif self._probing:  # one that waited in vain has waited enough
                self._open(min(2 * self._wait_s, self._longest_s), self._until - self._longest_s)

    def _open(self, wait_s: float, since: float) -> None:
        self._wait_s, self._probing = wait_s, False
        self._until = since + wait_s
