"""How long work says how far it is: a callable that the command line draws as a bar and a test ignores."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """Called often with the stage's name, what is done and the whole (None where it is not known). Must be cheap."""

    def __call__(self, stage: str, done: int, total: int | None) -> None: ...


def silent(stage: str, done: int, total: int | None) -> None:
    """Says nothing."""
