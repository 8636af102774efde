"""A fork copies locks as they are and no thread but one: what waits in the child waits for ever, unless it is told.

    at_fork(batcher)        # in a forked child, batcher._after_fork() runs before anything else does

One hook for the whole process, made with the first batcher, and weak references: a closed batcher is not kept alive.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["at_fork"]


class Forked(Protocol):
    def _after_fork(self) -> None: ...


_alive: weakref.WeakSet[Forked] = weakref.WeakSet()
_hooked: list[bool] = []


def at_fork(one: Forked) -> None:
    """Call `one._after_fork()` in every child that is forked while `one` lives."""
    _alive.add(one)
    if not _hooked and hasattr(os, "register_at_fork"):
        _hooked.append(True)
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    for one in list(_alive):
        one._after_fork()
