"""The way of one model's items to its Runtime.

    lane = Lane([model])
    answers = await lane.run([{"image": pixels}], deadline=loop.time() + 0.05)

Rules:
- no more items are handed to a Runtime than keep its engine busy; the rest waits here, where it can still be dropped;
- of several copies of a model the one with the fewest items gets the next;
- refused at once (503): a queue that is full, and a request that would be late because of those ahead of it;
- dropped when its turn comes (503): an item whose time is over, or does not hold another inference while others run;
  one whose caller has gone is dropped silently;
- an item that the engine has is never taken back, and keeps its place until the engine is done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edgekit.host.admission import Admission, Ticket
from edgekit.host.errors import RequestError
from edgekit_runtime import Answer, Model

MAX_WAITING = 1024
Item = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class LaneAnswer:
    """queued_ms: here and in the Runtime, until its engine began."""

    answer: Answer
    queued_ms: float


class Lane:
    """Belongs to one event loop. models: copies of one. clock: that of the deadlines, seconds."""

    def __init__(self, models: Sequence[Model], clock: Callable[[], float] = time.monotonic) -> None:
        self._models = tuple(models)
        self._clock = clock
        max_batch = int(models[0].describe()["max_batch"])
        self._places = asyncio.Semaphore(2 * max_batch * len(models))
        self.admission = Admission(max_batch, clock, engines=len(models))
        self._running = [0] * len(models)

    @property
    def ahead(self) -> int:
        """Items that wait or run."""
        return self.admission.ahead

    async def run(self, items: Sequence[Item], deadline: float | None) -> list[LaneAnswer]:
        """One answer an item, in their order. Raises RequestError(503), and what the Runtime raises."""
        self.admit(len(items), deadline)
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

    def admit(self, items: int, deadline: float | None) -> None:
        """Raises RequestError(503) where the queue is full, or they would be late."""
        if self.ahead + items > MAX_WAITING:
            raise RequestError(503, f"{self.ahead} items are waiting, {MAX_WAITING} is the most")
        if deadline is None:
            return
        left_ms = (deadline - self._clock()) * 1e3
        needed_ms = self.admission.needed_ms(items) or 0.0
        if left_ms <= needed_ms:
            raise RequestError(503, f"it would take {needed_ms:.3g} ms, {max(0.0, left_ms):.3g} ms are left")

    async def _one(self, item: Item, deadline: float | None) -> LaneAnswer:
        arrived = self._clock()
        ticket = self.admission.enter(deadline)
        try:
            await self._places.acquire()
        except BaseException:
            self.admission.leave(ticket, answered=False)
            raise
        running = min(self._running)
        engine = self._running.index(running)
        self._running[engine] += 1
        try:
            waited_ms = (self._clock() - arrived) * 1e3
            if not self.admission.can_start(ticket, running):
                raise RequestError(503, "its time ran out while it waited")
            future = self._models[engine].submit(item)
        except BaseException:
            self._free(ticket, engine)
            raise
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def done(_: object) -> None:
            """Once, because each call interrupts the engine's thread."""
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._finish, ticket, engine, future, answered)

        future.add_done_callback(done)
        answer = await answered  # a caller that leaves cancels this, and not what the engine has
        return LaneAnswer(answer, waited_ms + answer.timings.get("queue", 0.0))

    def _finish(self, ticket: Ticket, engine: int, future: Future[Answer], answered: asyncio.Future[Answer]) -> None:
        self._free(ticket, engine, future)
        if answered.cancelled():
            return
        if future.cancelled():
            answered.cancel()
        elif (error := future.exception()) is not None:
            answered.set_exception(error)
        else:
            answered.set_result(future.result())

    def _free(self, ticket: Ticket, engine: int, future: Future[Answer] | None = None) -> None:
        """The item left the engine, or never came to it."""
        self._running[engine] -= 1
        self._places.release()
        answered = future is not None and not future.cancelled() and future.exception() is None
        if answered and future is not None and "engine" in future.result().timings:
            self.admission.ran(future.result().timings["engine"])
        self.admission.leave(ticket, answered=answered)
