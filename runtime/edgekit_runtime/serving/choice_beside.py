"""Candidates are measured beside the model that answers already, and the fastest takes over.

    beside = ChoiceBeside(lambda run: ...)      # in a thread; `run` starts the child that measures
    beside.close()                              # ends both

Rules:
- the child runs at the lowest priority, and ends with this process or with `close`;
- the thread is over before the interpreter is: at its end an engine must not run;
- in a forked child nothing runs, and nothing is ended.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from edgekit_runtime.system.children import StoppableRun
from edgekit_runtime.system.errors import ClosedError
from edgekit_runtime.system.faults import Faults
from edgekit_runtime.system.threads import ForkGuard, begin


class ChoiceBeside:
    """choose: measures, loads and takes over; it may raise ClosedError once `run` was stopped."""

    def __init__(self, choose: Callable[[StoppableRun], None], faults: Faults) -> None:
        self._choose, self._faults = choose, faults
        self._run, self._guard = StoppableRun(), ForkGuard()
        self._thread = threading.Thread(target=self._go, name="edgekit-choice", daemon=True)
        atexit.register(self.close)
        begin(self._thread)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over. Returns whether it is."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self, timeout_s: float = 5.0) -> None:
        if not self._guard.forked:
            self._run.stop()
            self.wait(timeout_s)

    def _go(self) -> None:
        try:
            self._choose(self._run)
        except ClosedError:
            pass
        except Exception as error:  # noqa: BLE001 - the model answers without it
            self._faults.note("choice", error)
        finally:
            atexit.unregister(self.close)
