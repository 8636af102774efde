"""The sessions of one model: opened, bounded where each needs an engine of its own, closed with it."""

from __future__ import annotations

import threading
import weakref
from time import perf_counter

from edgekit_runtime.errors import ClosedError, SessionError
from edgekit_runtime.session.parts import SessionParts
from edgekit_runtime.session.session import Session

__all__ = ["Sessions"]


class Sessions:
    """A model's sessions. Thread-safe."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._open = weakref.WeakSet[Session]()  # one that nobody holds any more is closed by being collected
        self._opening = 0
        self._closed = False

    def open(self) -> Session:
        """A session in its first state. Raises SessionError (no state, too many), ClosedError, EngineError."""
        contract = self._parts.contract
        if contract.state == "none":
            raise SessionError("the model keeps no state, so it has no sessions", do="Ask it with model.predict(...)")
        with self._lock:
            if self._closed:
                raise ClosedError("the model was closed", do="Open the bundle again")
            if contract.state == "internal" and len(self._open) + self._opening >= self._parts.most:
                raise SessionError(
                    f"{self._parts.most} sessions are open, each with an engine of its own, and more may not be",
                    do="Close one: session.close(), or a with block",
                )
            self._opening += 1
        try:
            session = Session(self._parts, self._forget)
        except BaseException:
            with self._lock:
                self._opening -= 1
            raise
        with self._lock:
            self._opening -= 1
            self._open.add(session)
            late = self._closed
        if late:
            session.close()
            raise ClosedError("the model was closed", do="Open the bundle again")
        return session

    @property
    def count(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._open)

    def close(self, timeout_s: float = 5.0) -> None:
        """Close all, and open no more."""
        with self._lock:
            self._closed = True
            sessions = list(self._open)
        until = perf_counter() + timeout_s
        for session in sessions:
            session.close(max(0.0, until - perf_counter()))

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._open.discard(session)
