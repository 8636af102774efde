"""Carrying what became of one future over to another, that a caller holds.

    settling = Settling()
    settling.carry(inference, answer, finish=lambda served: Answer(...), failed=lambda error, lost: ...)
    settling.now        # True inside a caller's own callback: it must not wait for what this thread would do

Rules:
- the caller's future ends exactly once, whatever happens to either;
- a caller that withdrew hears nothing, and that is no error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["Settling"]

Told = TypeVar("Told")


class Settling(threading.local):
    """now: whether this thread is telling a caller its answer."""

    now = False

    def carry(
        self,
        pending: Future[Any],
        answer: Future[Told],
        finish: Callable[[Any], Told],
        failed: Callable[[BaseException, bool], object],
    ) -> None:
        """finish: makes the caller's result, in the thread that ends `pending`. failed: told of an error, and whether
        it is
        one that counts: False where the caller had withdrawn the request."""

        def settle(done: Future[Any]) -> None:
            wanted = answer.set_running_or_notify_cancel()
            outer, self.now = self.now, True
            try:
                result = finish(done.result())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                failed(error, wanted or not done.cancelled())
                if wanted:
                    answer.set_exception(error)
            else:
                if wanted:
                    answer.set_result(result)
            finally:
                self.now = outer

        pending.add_done_callback(settle)
