"""Progress of long work, a callable that the command line draws as a bar; its time limit.

    with time_limit(check):         # check raises TimeIsOverError when the time is over
        workspace.make(recipe, plan)
    tick()                          # in a loop: costs nothing without a limit

Rules: a limit holds for the thread that set it and for what it calls; it is raised between two steps of a loop, so that
finished work is whole; it is not an Exception, so that no converter takes it for a failure of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Progress(Protocol):
    """Called often with the stage's name, the work done, and the whole (None if unknown)."""

    def __call__(self, stage: str, done: int, total: int | None) -> None: ...


def silent(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def titled(progress: Progress, title: str) -> Progress:
    """Put a title before each stage's name, for parts of a work that run at once."""
    return lambda stage, done, total: progress(f"{title} {stage}", done, total)


class TimeIsOverError(BaseException):
    """The time limit has passed; only the code that set the limit catches this."""


_checks: ContextVar[Callable[[], None] | None] = ContextVar("edgekit_deadline", default=None)


@contextmanager
def time_limit(check: Callable[[], None]) -> Iterator[None]:
    """Let `tick` call `check`, which raises TimeIsOverError when it is time."""
    token = _checks.set(check)
    try:
        yield
    finally:
        _checks.reset(token)


def tick() -> None:
    """Raise TimeIsOverError if the time limit has passed."""
    check = _checks.get()
    if check is not None:
        check()
