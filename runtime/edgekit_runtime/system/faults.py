"""Faults of parts that an answer does not depend on: cache, meter, telemetry, metrics.

    faults = Faults("digits")
    stats = faults.shield("cache", cache.stats)         # None if it raised
    faults.counts()                                     # {"cache": 1}

Rules:
- such a fault never takes an answer away: the caller notes it here and continues without the part, and uses the part
  again for the next request;
- each part's first fault is an ERROR of the logger `edgekit_runtime`, with its traceback; all are counted;
- what is wrong with a request itself (an EdgekitError) is not a fault of a part.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


class Faults:
    """Thread-safe. model: its name, for the log."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.RLock()  # a log handler may ask for the counts
        self._counts: Counter[str] = Counter()

    def note(self, part: str, error: Exception) -> None:
        """Count a fault of one part. Never raises."""
        with self._lock:
            self._counts[part] += 1
            first = self._counts[part] == 1
        if first:
            with contextlib.suppress(Exception):  # of the application's own log handler
                text, kind = "%s: the %s raised %s; requests are answered without it", type(error).__name__
                logging.getLogger("edgekit_runtime").error(text, self._model, part, kind, exc_info=error)

    def shield(self, part: str, do: Callable[[], Made]) -> Made | None:
        """What `do` returns, or None if it raised."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is there without it
            self.note(part, error)
            return None

    def counts(self) -> dict[str, int]:
        """Part -> faults since the model was opened."""
        with self._lock:
            return dict(self._counts)
