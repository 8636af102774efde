"""Long work that stops where it is when its time is over: a search sets the limit, and every loop below it asks.

    with limited(check):            # check raises TimeIsOverError when the time is over
        workspace.make(recipe, plan)
    tick()                          # in a loop: costs nothing where nobody set a limit

Rules: a limit holds for the thread that set it and for what it calls; it is raised between two steps of a loop, so that
what was begun is whole or not there; it is no Exception, so that no converter takes it for a failure of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["TimeIsOverError", "limited", "tick"]


class TimeIsOverError(BaseException):
    """Caught by whoever set the limit, and by nobody else."""


_checks: ContextVar[Callable[[], None] | None] = ContextVar("edgekit_deadline", default=None)


@contextmanager
def limited(check: Callable[[], None]) -> Iterator[None]:
    """While it is open, `tick` calls `check`, which raises TimeIsOverError when it is time."""
    token = _checks.set(check)
    try:
        yield
    finally:
        _checks.reset(token)


def tick() -> None:
    """Raises TimeIsOverError where the time of this work is over."""
    check = _checks.get()
    if check is not None:
        check()
