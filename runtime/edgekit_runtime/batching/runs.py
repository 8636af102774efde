"""The engine's side: what runs now and for how long, and what is learnt from every run. Used inside the gate alone.

    runs = Runs(run, run_one, costs, clock)
    outcomes = runs.of(batch)               # an outcome for each member

Rule: an engine that fails on a batch runs its members alone, so that one bad input fails one request, with its own error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from edgekit_runtime.batching.costs import OUTDATED, Costs, Mode
from edgekit_runtime.batching.request import Outcome, Request, Served, State, for_member

__all__ = ["Runs"]

_UNLEARNT: dict[Mode, int] = {"barge": 15, "turns": 3, "batch": 0}
"""Single runs of which nothing is learnt, for each one of which something is: learning costs some microseconds, and tens of
them where the run before has emptied the processor's caches."""


class Runs:
    """started: when the present run began, None between runs. last_run: when the last one did that something was learnt of.

    alone: runs in callers' threads. batches: size -> how many of the worker's. unlearnt: a mask over the number of runs;
    where it is not 0, nothing is learnt, unless the run took less than quick_s: then what was learnt is out of date.
    """

    __slots__ = ("alone", "batches", "clock", "costs", "last_run", "one", "quick_s", "run", "started", "unlearnt")

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        one: Callable[[Any], Any] | None,
        costs: Costs,
        clock: Callable[[], float],
    ) -> None:
        self.run, self.one = run, one or (lambda item: run((item,))[0])
        self.costs, self.clock = costs, clock
        self.unlearnt = _UNLEARNT[costs.mode]
        self.alone = 0
        self.batches: Counter[int] = Counter()
        self.started: float | None = None
        self.last_run = -math.inf
        self.quick_s = OUTDATED * costs.seconds(1)

    def idle_since(self) -> object:
        """What changes with every run; None during one."""
        return None if self.started is not None else (self.alone, self.last_run)

    def running_s(self) -> float | None:
        """How long the present run lasts already; None when none does."""
        started = self.started
        return None if started is None else self.clock() - started

    def learn(self, start: float, ran: float) -> None:
        """Of a run in a caller's thread, which is still inside the gate."""
        self.last_run = start
        self._observe(1, ran)

    def of(self, batch: Sequence[Request]) -> list[Outcome]:
        """Run them together; where that fails, one by one."""
        outcomes = self._once(batch)
        if len(batch) == 1 or not isinstance(outcomes[0], Exception):
            return outcomes
        alone: list[Outcome] = []
        for request in batch:
            if request.state is State.ENDED:  # abandoned meanwhile
                alone.append(outcomes[0])
            else:
                alone += self._once([request])
        return alone

    def _once(self, batch: Sequence[Request]) -> list[Outcome]:
        count = len(batch)
        start = self.started = self.last_run = self.clock()
        try:
            results = self.run([request.item for request in batch])
            if len(results) != count:
                raise RuntimeError(f"{count} items went in, {len(results)} results came out")
        except BaseException as error:  # noqa: BLE001 - every member must hear of it, and the worker must live
            return [for_member(error, member) for member in range(count)]
        finally:
            ran = self.clock() - start
            self.started = None
        self.batches[count] = runs = self.batches[count] + 1
        if not runs & self.unlearnt or ran < self.quick_s:
            self._observe(count, ran)
        return [Served(result, start - r.queued_at, ran, count) for r, result in zip(batch, results, strict=True)]

    def _observe(self, count: int, ran: float) -> None:
        self.costs.observe(count, ran)
        self.quick_s = OUTDATED * self.costs.seconds(1)
