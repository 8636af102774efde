"""A model does not survive a fork: its threads and its engine's stayed in the parent. Using it there is a typed error.

    guard = ForkGuard()
    if guard.forked:            # one attribute: 20 ns a request
        raise guard.error()

Rule: the mark is set by the fork itself, in the child, so that no request asks the system who it is.
"""

from __future__ import annotations

import os
import weakref

from edgekit_runtime.errors import ForkedError

__all__ = ["ForkGuard"]

_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


class ForkGuard:
    """forked: this process is a child that was forked after the guard was made."""

    __slots__ = ("__weakref__", "forked")

    def __init__(self) -> None:
        self.forked = False
        _guards.add(self)

    def error(self) -> ForkedError:
        return ForkedError(
            "the model was opened before this process was forked",
            do="Open the bundle in the child, or start it as a fresh process (multiprocessing: spawn)",
        )


def _mark() -> None:
    for guard in list(_guards):
        guard.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark)
