"""Admission and queue of one model's items on their way to its Runtime.

    lane = Lane([model])
    answers = await lane.run([{"image": pixels}], deadline=loop.time() + 0.05)

Rules:
- a Runtime gets as many items as keep its engine busy, and none can be taken back; the rest wait here. The copy of
  the model with the fewest items gets the next one;
- refused at once (503): a full queue, or a request that would be late, so that the device can use the time left;
- dropped when its turn comes: an item with too little time left for an inference (503), or whose caller has gone;
- with nothing ahead or an idle engine a request is admitted: a server that refuses all requests learns nothing;
- the expected time is the median of recent inferences; one below half the median discards those more than twice as
  long, and an overdue run is expected to take as long again as it is late;
- the margin is the 95th percentile of recent lateness, one sample for all that waited together; a tenth of a request's
  time is kept for its way back.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import median
from typing import Any

from numpy.typing import NDArray

from edgekit.host.http1 import RequestError
from edgekit_runtime import Answer, Model

_WINDOW = 15
_OUTDATED = 0.5
_ANSWERS, _SHARE = 64, 0.95
"""The margin is this quantile of so many answers."""
_WAY_BACK = 0.1


@dataclass(eq=False)
class Ticket:
    """One admitted item. deadline: None for no limit. expected: when it is due, None if unknown."""

    came: float
    deadline: float | None
    expected: float | None


class Admission:
    """Admission control of one model. Not thread-safe.

    max_batch: items that share an inference, at most.
    clock: monotonic seconds.
    engines: number that run side by side.
    ahead: items that entered and have not left.
    """

    def __init__(self, max_batch: int, clock: Callable[[], float] = time.monotonic, engines: int = 1) -> None:
        self._max_batch, self._engines = max_batch, engines
        self._clock = clock
        self._last: deque[float] = deque(maxlen=_WINDOW)
        self._typical_ms: float | None = None
        self._late_ms: deque[float] = deque([0.0], maxlen=_ANSWERS)
        self._margin_ms = 0.0
        self._busy_since = self._learnt = -math.inf
        self.ahead = 0

    @property
    def typical_ms(self) -> float | None:
        """Recent inference time; None before the first."""
        return self._typical_ms

    @property
    def margin_ms(self) -> float:
        """95th percentile of recent lateness."""
        return self._margin_ms

    def needed_ms(self, items: int = 1) -> float | None:
        """Milliseconds that new `items` must have left, with margin and way back.

        None, which admits them, if an engine is idle or no time is known.
        """
        if self.ahead < self._engines or self._typical_ms is None:
            return None
        return (self.expected_ms(self.ahead, items) + self.margin_ms) / (1 - _WAY_BACK)

    def expected_ms(self, ahead: int, items: int) -> float:
        """Expected ms until `items` are answered behind so many others, several to an engine run."""
        if self._typical_ms is None:
            return 0.0
        together = self._max_batch * self._engines
        before = math.ceil(max(0, ahead - self._engines + 1) / together)
        runs = before + math.ceil(items / together)
        if before == 0:
            return runs * self._typical_ms
        elapsed_ms = (self._clock() - self._busy_since) * 1e3
        return (runs - 1) * self._typical_ms + abs(self._typical_ms - elapsed_ms)

    def can_start(self, ticket: Ticket, running: int) -> bool:
        """Whether an item can meet its deadline behind those running; always, with an idle engine."""
        if ticket.deadline is None:
            return True
        if self.ahead <= self._engines:
            return self._clock() <= ticket.deadline
        way_back = _WAY_BACK * (ticket.deadline - ticket.came)
        return self._clock() + self.expected_ms(running * self._engines, 1) / 1e3 <= ticket.deadline - way_back

    def enter(self, deadline: float | None) -> Ticket:
        """Add one item."""
        now = self._clock()
        if self.ahead == 0:
            self._busy_since = now
        expected = None if self._typical_ms is None else now + self.expected_ms(self.ahead, 1) / 1e3
        self.ahead += 1
        return Ticket(now, deadline, expected)

    def ran(self, took_ms: float) -> None:
        """Record the time of an inference."""
        if self._typical_ms is not None and took_ms < _OUTDATED * self._typical_ms:
            kept = [ms for ms in self._last if ms <= took_ms / _OUTDATED]
            self._last.clear()
            self._last.extend(kept)
        self._last.append(took_ms)
        self._typical_ms = median(self._last)

    def leave(self, ticket: Ticket, *, answered: bool = True) -> None:
        """Remove an item. answered: False if it got no answer, which is not recorded."""
        self.ahead -= 1
        if not answered:
            return
        now = self._busy_since = self._clock()
        if ticket.expected is not None and ticket.came >= self._learnt:
            self._learnt = now
            self._late_ms.append(max(0.0, now - ticket.expected) * 1e3)
            self._margin_ms = sorted(self._late_ms)[int(_SHARE * (len(self._late_ms) - 1))]


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
        """Number of items waiting or running."""
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
        """Raises RequestError(503) if the queue is full or the items would be late."""
        if self.ahead + items > MAX_WAITING:
            raise RequestError(503, f"{self.ahead} items are waiting; the limit is {MAX_WAITING}")
        if deadline is None:
            return
        left_ms = (deadline - self._clock()) * 1e3
        needed_ms = self.admission.needed_ms(items) or 0.0
        if left_ms <= needed_ms:
            raise RequestError(503, f"estimated {needed_ms:.3g} ms, {max(0.0, left_ms):.3g} ms left")

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
                raise RequestError(503, "the deadline passed in the queue")
            future = self._models[engine].submit(item)
        except BaseException:
            self._free(ticket, engine)
            raise
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer] = loop.create_future()

        def done(_: object) -> None:
            """Schedule one call, as each interrupts the engine's thread."""
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
        """Release the engine's place, whether or not the item reached it."""
        self._running[engine] -= 1
        self._places.release()
        answered = future is not None and not future.cancelled() and future.exception() is None
        if answered and future is not None and "engine" in future.result().timings:
            self.admission.ran(future.result().timings["engine"])
        self.admission.leave(ticket, answered=answered)
