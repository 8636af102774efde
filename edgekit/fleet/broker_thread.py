"""A thread of the fleet server that owns a broker connection and retries after failures.

    class Ingest(BrokerThread):
        def __init__(self, broker):
            super().__init__("ingest", 0.5)
            self.link = Link(broker, ...)

        def step_link(self): ...

Rules:
- a store that fails, or a fault, is logged and counted; `pause_s` later the thread resumes;
- `close` wakes the thread, lets it finish what it has in hand, and waits for it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter

from edgekit.fleet.errors import StoreError
from edgekit_runtime.telemetry.link import Link

_LOG = logging.getLogger("edgekit.fleet")
_CLOSE_S = 10.0


class BrokerThread(ABC):
    """`counts`: what went wrong, by word (`store`, `fault`), and what a subclass counts.
    Read from any thread."""

    link: Link

    def __init__(self, name: str, pause_s: float) -> None:
        self._name, self._pause_s = name, pause_s
        self.counts: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"edgekit-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self.link.wake()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    @abstractmethod
    def step_link(self) -> None:
        """Step the link once, and do what is due then. May raise anything."""

    def finish(self) -> None:  # noqa: B027 - most have nothing
        """What is in hand when the thread ends. May raise StoreError."""

    def after_failure(self) -> None:  # noqa: B027 - most have nothing
        """What is in hand is not to be tried again."""

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step_link()
            except StoreError as error:
                self._failed("store", error)
            except Exception as error:  # noqa: BLE001 - one message must not end the fleet
                self._failed("fault", error)
        try:
            self.finish()
        except StoreError as error:
            self._failed("store", error)
        except Exception as error:  # noqa: BLE001 - the link is closed all the same
            self._failed("fault", error)
        finally:
            self.link.close()

    def _failed(self, word: str, error: Exception) -> None:
        self.after_failure()
        self.counts[word] += 1
        _LOG.error("%s: %s", self._name, error, exc_info=word == "fault")
        self._stopping.wait(self._pause_s)
