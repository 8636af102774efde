"""Starting a thread, also while the interpreter ends: no new thread runs then, and the daemon threads there are stand
still.

    if not begin(thread):       # the interpreter ends: do without
        ...
    ending()                    # whether to wait for no thread

Rule: whoever would wait for a thread asks `ending` first. `Thread.start` itself waits, without end, for a thread that
never runs; a finalizer that calls `predict` then would hold up the end of the process.
"""

from __future__ import annotations

import sys
import threading

__all__ = ["begin", "ending"]


def ending() -> bool:
    """Whether the interpreter ends: from the handlers of `atexit` on."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


def begin(thread: threading.Thread) -> bool:
    """Start it; False where the interpreter ends. Raises RuntimeError where the system gives no more threads."""
    if sys.is_finalizing():
        return False
    try:
        thread.start()
    except RuntimeError:
        if ending():  # Python 3.12 and later refuse it from `atexit` on
            return False
        raise
    return True
