"""The way of one model's items to its Runtime: in order of arrival, no further than the engine can use, none too late.

    lane = Lane(model)
    answers = await lane.run([{"image": pixels}], deadline=loop.time() + 0.05)

Rules:
- no more items are handed to the Runtime than keep its engine busy; the rest waits here, where it can still be dropped;
- refused at once (503): a queue that is full, and whoever would be late by what is ahead of him;
- dropped when its turn comes (503): an item whose time is over, or does not hold another inference while others run;
  one whose caller has gone is dropped silently;
- an item that the engine has is never taken back, and keeps its place until the engine is done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edgekit.host.admission import Service, expected_ms
from edgekit.host.errors import RequestError
from edgekit_runtime import Answer, Model

__all__ = ["Answered", "Lane"]

MAX_WAITING = 1024
Item = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Answered:
    """queued_ms: here and in the Runtime, until its engine began."""

    answer: Answer
    queued_ms: float


class Lane:
    """Belongs to one event loop. clock: that of the deadlines, seconds."""

    def __init__(self, model: Model, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._max_batch = int(model.describe()["max_batch"])
        self._places = asyncio.Semaphore(2 * self._max_batch)
        self._service = Service(clock=clock)
        self._ahead = self._running = 0

    @property
    def ahead(self) -> int:
        """Items that wait or run."""
        return self._ahead

    async def run(self, items: Sequence[Item], deadline: float | None) -> list[Answered]:
        """One answer an item, in their order. Raises RequestError(503), and what the Runtime raises."""
        self._admit(len(items), deadline)
        if len(items) == 1:
            return [await self._one(items[0], deadline)]
        tasks = [asyncio.ensure_future(self._one(item, deadline)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def _admit(self, items: int, deadline: float | None) -> None:
        if self._ahead + items > MAX_WAITING:
            raise RequestError(503, f"{self._ahead} items are waiting, {MAX_WAITING} is the most")
        if deadline is None:
            return
        left_ms = (deadline - self._clock()) * 1e3
        needed_ms = expected_ms(self._ahead, items, self._max_batch, self._service) or 0.0
        if left_ms <= needed_ms:
            raise RequestError(503, f"it would take {needed_ms:.3g} ms, {max(0.0, left_ms):.3g} ms are left")

    async def _one(self, item: Item, deadline: float | None) -> Answered:
        arrived = self._clock()
        self._ahead += 1
        try:
            await self._places.acquire()
        except BaseException:
            self._ahead -= 1
            raise
        self._running += 1
        try:
            waited_ms = (self._clock() - arrived) * 1e3
            self._still_in_time(deadline)
            future = self._model.submit(item)
        except BaseException:
            self._free()
            raise
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._free)

        future.add_done_callback(done)
        answer = await asyncio.shield(asyncio.wrap_future(future))
        if "engine" in answer.timings:
            self._service.add(answer.timings["engine"])
        return Answered(answer, waited_ms + answer.timings.get("queue", 0.0))

    def _still_in_time(self, deadline: float | None) -> None:
        if deadline is None:
            return
        known = self._service.quantiles() if self._running > 1 else None  # an idle engine takes one whatever was learnt
        if self._clock() + (known[0] / 1e3 if known else 0.0) > deadline:
            raise RequestError(503, "its time ran out while it waited")

    def _free(self) -> None:
        self._ahead -= 1
        self._running -= 1
        self._places.release()
