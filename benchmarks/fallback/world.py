"""A device, a network and a host on a virtual clock: what a policy meets, without a thread and without waiting.

    world = World(trace)
    world.at(0.5, lambda: ...)
    world.run()

Rules: the host knows what is left of a request's budget and says 503 where it would be late, as ours does; a device
drops what can no longer be met when its turn comes, as the batcher does; nothing is delivered before its time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from traces import Trace

from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.policy.budget import DeviceOutlook, HostOutlook, InferenceHistory
from edgekit_runtime.remote.host_record import HostRecord, SentRequest, Step
from edgekit_runtime.serving.offload import WATCH_EVERY_S, Errand

Done = Callable[[Any, BaseException | None], None]


class Busy(Exception):  # noqa: N818 - what a host said
    """503."""


class ExchangeLost(Exception):  # noqa: N818
    """Nothing came within the patience of the exchange."""


class Late(Exception):  # noqa: N818
    """The device dropped what it could no longer meet."""


class World:
    """The clock, and what happens when."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def clock(self) -> float:
        return self.now

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(when, self.now), next(self._order), what))

    def run(self) -> None:
        while self._agenda:
            self.now, _, what = heapq.heappop(self._agenda)
            what()


class _DeviceRequest:
    """A request that the device took."""

    def __init__(self, device: SimulatedDevice, errand: Errand | None, index: int, due: float, done: Done) -> None:
        self.device, self.index, self.due, self.done = device, index, due, done
        self.began: float | None = None
        self.gone = False
        self.unwanted: Callable[[], bool] = lambda: errand is None or errand.over

    def cancel(self) -> None:
        self.gone = self.began is None

    def chance(self, left_ms: float) -> float:
        if self.began is not None:
            return self.device.outlook(0).finishes(left_ms)
        return self.device.outlook(0, before=self).chance(left_ms)


class SimulatedDevice:
    """One engine, first come first served.
    drop: leave out what cannot be met when its turn comes."""

    def __init__(self, world: World, *, drop: bool = True) -> None:
        self.world, self._drop = world, drop
        self.learned = InferenceHistory(clock=world.clock)
        single_s = world.trace.scenario.service_ms / 1e3
        self.costs = Costs({1: single_s})
        self.learned.add(single_s * 1e3)
        self._queue: deque[_DeviceRequest] = deque()
        self._running: _DeviceRequest | None = None
        self.busy_s = 0.0
        self.wasted_s = 0.0

    def outlook(self, priority: int, before: _DeviceRequest | None = None) -> DeviceOutlook:
        ahead = 0
        for taken in self._queue:
            if taken is before:
                break
            ahead += not taken.gone
        running = self._running
        elapsed = None if running is None or running.began is None else (self.world.now - running.began) * 1e3
        return DeviceOutlook(
            self.learned.ascending_ms, self.learned.latest_ms, self.costs.total(ahead) * 1e3 if ahead else 0.0, elapsed
        )

    def idle(self) -> bool:
        return self._running is None and all(taken.gone for taken in self._queue)

    def start(self, errand: Errand, done: Done) -> _DeviceRequest:
        return self.take(errand.work, errand.due, done, errand)

    def take(self, index: int, due: float, done: Done, errand: Errand | None = None) -> _DeviceRequest:
        taken = _DeviceRequest(self, errand, index, due, done)
        self._queue.append(taken)
        self._next()
        return taken

    def watch(self, errand: Errand) -> None:
        """A copy of a request that the device does not answer."""
        if self.learned.age_s >= WATCH_EVERY_S and self.idle():
            self.take(errand.work, float("inf"), lambda result, error: None)

    def _next(self) -> None:
        while self._running is None and self._queue:
            taken = self._queue.popleft()
            if taken.gone:
                continue
            if self._drop and taken.due - self.world.now < self.costs.seconds(1):
                taken.done(None, Late())
                continue
            self._run(taken)

    def _run(self, taken: _DeviceRequest) -> None:
        self._running, taken.began = taken, self.world.now
        takes_s = self.world.trace.device_s(taken.index, self.world.now)
        self.busy_s += takes_s

        def ran() -> None:
            self._running = None
            self.learned.add(takes_s * 1e3)
            self.costs.observe(1, takes_s)
            if taken.unwanted():
                self.wasted_s += takes_s
            taken.done(taken.index, None)
            self._next()

        self.world.at(self.world.now + takes_s, ran)


class SimulatedHost:
    """The server: some slots, a queue, and 503 for what would be late."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free = [0.0] * world.trace.scenario.host_slots
        self.exchanges = 0

    def exchange(
        self,
        index: int,
        left_s: float,
        patience_s: float,
        done: Done,
        answered: Callable[[float], object] = lambda _: None,
    ) -> None:
        """One request over the network and back.
        answered: called with the seconds that the host says it took."""
        world, trace = self._world, self._world.trace
        self.exchanges += 1
        sent = world.now
        ways = trace.network_s(index, sent)
        if ways is None:
            world.at(sent + patience_s, lambda: done(None, ExchangeLost()))
            return
        there_s, back_s = ways

        def arrived() -> None:
            end, refused = self._serve(index, sent + left_s)
            answered(end - world.now)
            when = end + back_s
            error: Exception | None = Busy() if refused else None
            if when - sent > patience_s:
                when, error = sent + patience_s, ExchangeLost()
            world.at(when, lambda: done(None if error else index, error))

        world.at(sent + there_s, arrived)

    def ping(self, index: int, patience_s: float, done: Done) -> None:
        """There and back."""
        world = self._world
        ways = world.trace.network_s(index, world.now)
        took_s = math.inf if ways is None else sum(ways)
        error = ExchangeLost() if took_s > patience_s else None
        world.at(world.now + min(took_s, patience_s), lambda: done(None if error else index, error))

    def _serve(self, index: int, due: float) -> tuple[float, bool]:
        """(when it is done, refused)."""
        now, trace = self._world.now, self._world.trace
        if trace.busy.within(now):
            return now, True
        start = max(now, self._free[0])
        takes_s = trace.at_host_s(index, start)
        if start > now and start + trace.scenario.host_ms / 1e3 > due:
            return now, True
        heapq.heapreplace(self._free, start + takes_s)
        return start + takes_s, False


class SimulatedHosts:
    """One host, with the record that the runtime keeps of it.
    index of a probe: drawn from the trace's own requests."""

    def __init__(self, world: World, host: SimulatedHost, seed: int = 0) -> None:
        self._world, self._host = world, host
        self.record = HostRecord(world.clock)
        self._probing = False
        self._probe_index = count(7919 * (seed + 1), 7919)
        self.probes = 0
        self.look()

    def outlooks(self, size: int | None) -> Sequence[HostOutlook]:
        return () if size is None else (self.record.outlook(size),)

    def matter(self) -> None:
        self.record.matters()

    def look(self) -> None:
        if not self._probing and (steps := self.record.probe()):
            self._probe(steps)

    def start(self, index: int, errand: Errand, left_s: float, patience_s: float, done: Done) -> None:
        self._send(errand.work, left_s, patience_s, done)

    def _send(self, index: int, left_s: float, patience_s: float, done: Done) -> None:
        sent: SentRequest = self.record.sent(1, left_s)
        took_ms: list[float] = []

        def came(result: Any, error: BaseException | None) -> None:
            if error is None:
                self.record.answered(sent, host_ms=took_ms[0])
            else:
                self.record.lost(sent, "host-busy" if isinstance(error, Busy) else "host-late")
            done(result, error)

        self._host.exchange(index, left_s, patience_s, came, lambda host_s: took_ms.append(host_s * 1e3))

    def _probe(self, steps: Sequence[Step]) -> None:
        """One step after the other, while each comes back."""
        self._probing = True
        step, *more = steps
        index = next(self._probe_index) % len(self._world.trace.arrivals_s)
        patience_s = self.record.probe_s

        def done(result: Any, error: BaseException | None) -> None:
            if error is None and more:
                self._probe(more)
            else:
                self._probing = False

        if step == "example":
            self.probes += 1
            self._send(index, patience_s, patience_s, done)
            return
        sent = self.record.sent(0, patience_s)

        def came(result: Any, error: BaseException | None) -> None:
            if error is None:
                self.record.answered(sent)
            else:
                self.record.lost(sent, "host-late")
            done(result, error)

        self._host.ping(index, patience_s, came)
