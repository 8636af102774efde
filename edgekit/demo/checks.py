"""Checks of a demo, and waiting until they hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Check", "eventually"]


@dataclass(frozen=True)
class Check:
    """what: a sentence. problem: why it does not hold, empty when it does."""

    what: str
    problem: str = ""


def eventually(what: str, problem: Callable[[], str], patience_s: float) -> Check:
    until = time.monotonic() + patience_s
    while True:
        try:
            found = problem()
        except (OSError, ValueError, KeyError) as error:
            found = str(error)
        if not found or time.monotonic() > until:
            return Check(what, found)
        time.sleep(0.2)
