"""A device, its degraded artifact and its hosts as the policy sees them.

    fallback = Fallback(device, hosts, late, comparison.answered)
    away = fallback.away(request, items, size=150_528)
    fallback.begin(away, owned)                            # the items, which the caller cannot change any more
    source, result, error = away.outcome.result()

Rules:
- an `Away` ends once, at its deadline at the latest, also when the model closes;
- its items belong to it, because an exchange may outlive its caller;
- some of the hosts' answers are compared with the device's own, when the device is idle: one in COMPARE_EVERY, four
  times as many after one that differs, half as many after each that agrees. A difference is counted and costs no
  answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.loading.replay import differs
from edgekit_runtime.policy.budget import DeviceOutlook, HostOutlook, OffloadDecision
from edgekit_runtime.serving.offload import DeviceRequest, Errand, Offload
from edgekit_runtime.serving.request import Items, Outputs
from edgekit_runtime.system.errors import HostError, MemoryExceeded, model_closed
from edgekit_runtime.system.threads import Alarms

if TYPE_CHECKING:
    from edgekit_runtime.batching.queued_request import BatchResult
    from edgekit_runtime.remote.hosts import Hosts
    from edgekit_runtime.serving.device import Device
    from edgekit_runtime.serving.request import Request

Outcome = tuple[str, Any, BaseException | None]
"""(device, host, degraded or neither; the result; the error). See `offload.Errand`."""
Done = Callable[[Any, BaseException | None], None]


@dataclass(frozen=True, slots=True)
class Away:
    """A request on its way."""

    errand: Errand
    decision: OffloadDecision
    outcome: Future[Outcome]

    def wait(self, left_s: float) -> Outcome:
        """Wait for the end, which is no later than this."""
        try:
            return self.outcome.result(min(max(0.0, left_s), threading.TIMEOUT_MAX))
        except FutureTimeoutError:
            self.errand.withdraw()
            return self.outcome.result()
        except BaseException:
            self.errand.withdraw()
            raise


class Fallback:
    """Thread-safe.

    late: called with an answer whose caller has gone, or had another.
    answered: called with every host's answer, and what to call if that is doubtful.
    """

    def __init__(
        self,
        device: Device,
        hosts: Hosts | None,
        late: Callable[[Request, str, Any], None],
        answered: Callable[[Items, Outputs, Callable[[], None]], None],
        degraded: Device | None = None,
    ) -> None:
        self._late = late
        self._alarms = Alarms("edgekit-deadlines")
        spare = None if degraded is None else _DegradedLane(degraded)
        self._policy = Offload(_LocalDevice(device), _Far(hosts, answered), perf_counter, self._alarms.at, spare)
        self._open: set[Errand] = set()
        self._closed = False

    def away(self, request: Request, items: Items, size: int | None) -> Away:
        """Decide. size: bytes that would travel, None for items that must not."""
        outcome: Future[Outcome] = Future()

        def ended(source: str, result: Any, error: BaseException | None) -> None:
            self._open.discard(errand)
            outcome.set_result((source, result, error))

        late = partial(self._late, request)
        errand = Errand((request, items), request.due, size, ended, request.priority, late)
        return Away(errand, self._policy.decide(errand), outcome)

    def begin(self, away: Away, items: Items) -> None:
        """Ask the device or host that the policy chose. items: the same ones, owned by the request."""
        away.errand.work = (away.errand.work[0], items)
        if away.decision.destination != "neither":
            self._open.add(away.errand)
        if self._closed:
            away.errand.end("neither", error=model_closed())
        try:
            self._policy.begin(away.errand, away.decision)
        except MemoryExceeded:  # no thread for its deadline
            self._open.discard(away.errand)
            raise

    def close(self) -> None:
        """End open requests with ClosedError; their exchanges end by their own deadlines."""
        self._closed = True
        for errand in list(self._open):
            errand.withdraw(model_closed())
        self._alarms.close()


class _LocalDevice:
    """The device's batcher."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def outlook(self, priority: int) -> DeviceOutlook:
        return self._device.outlook(priority)

    def idle(self) -> bool:
        return self._device.idle

    def start(self, errand: Errand, done: Done) -> DeviceRequest:
        request, items = errand.work
        came = perf_counter()
        served = self._device.batcher.submit(
            self._device.adapt(request, items), due=errand.due, priority=errand.priority
        )

        def finished(future: Future[BatchResult]) -> None:
            if not future.cancelled():
                error = future.exception()
                done(None if error else future.result(), error)

        served.add_done_callback(finished)
        return _OnDevice(self._device, served, errand.priority, came)

    def watch(self, errand: Errand) -> None:
        _, items = errand.work
        self._device.watch(items)


class _DegradedLane(_LocalDevice):
    """The batcher of the degraded artifact. It learns from each answer, even an unused one."""

    def start(self, errand: Errand, done: Done) -> DeviceRequest:
        def learnt(served: BatchResult | None, error: BaseException | None) -> None:
            done(None if served is None else (self._device.finish_late(served), served), error)

        return super().start(errand, learnt)


class _OnDevice:
    """A request in the batcher."""

    def __init__(self, device: Device, served: Future[BatchResult], priority: int, came: float) -> None:
        self._device, self._served, self._priority, self._came = device, served, priority, came

    def cancel(self) -> None:
        self._served.cancel()

    def chance(self, left_ms: float) -> float:
        if self._served.running():
            return self._device.outlook(self._priority, self._came).finishes(left_ms)
        return self._device.outlook(self._priority, self._came).chance(left_ms)


class _Far:
    """The hosts, if any."""

    def __init__(self, hosts: Hosts | None, answered: Callable[[Items, Outputs, Callable[[], None]], None]) -> None:
        self._hosts, self._answered = hosts, answered

    def outlooks(self, size: int | None) -> Sequence[HostOutlook]:
        return () if self._hosts is None else self._hosts.outlooks(size)

    def matter(self) -> None:
        if self._hosts is not None:
            self._hosts.matter()

    def look(self) -> None:
        if self._hosts is not None:
            self._hosts.look()

    def start(self, index: int, errand: Errand, left_s: float, patience_s: float, done: Done) -> None:
        request, items = errand.work
        began, hosts = perf_counter(), self._hosts
        assert hosts is not None

        def ask() -> None:
            waited_s = perf_counter() - began
            try:
                answered = hosts.infer(index, items, max(0.0, left_s - waited_s), patience_s - left_s)
            except HostError as error:
                request.timings["host_failed"] = (perf_counter() - began) * 1e3
                done(None, error)
            except Exception as error:  # noqa: BLE001 - the caller gets the error
                done(None, error)
            else:
                done(answered, None)
                self._answered(items, answered[0], lambda: hosts.doubt(index))

        hosts.submit(ask)


COMPARE_EVERY, COMPARE_CLOSEST = 200, 5


class Comparison:
    """Compares hosts' answers with the device's. Racing callers may compare once more or less.

    run: runs a request on the device if it is idle and passes the outputs on; returns whether it is.
    count: takes whether the two answers differ.
    doubt: takes an item whose answers do, and the host's.
    """

    def __init__(
        self, contract: Contract, run: Callable[[Items, Callable[[Outputs], None]], bool],
        count: Callable[[bool], None],
        doubt: Callable[[Items, Outputs], None] = lambda items, outputs: None,
    ) -> None:  # fmt: skip
        self._contract, self._run, self._count, self._doubt = contract, run, count, doubt
        self._every, self._since = COMPARE_EVERY, 0

    def answered(self, items: Items, outputs: Outputs, differed: Callable[[], None] = lambda: None) -> None:
        """A host answered a request. differed: called if the device's answer differs."""
        self._since += 1
        if self._since < self._every:
            return

        def compare(own: Outputs) -> None:
            apart = bool(differs(self._contract, outputs, own))
            self._every = max(COMPARE_CLOSEST, self._every // 4) if apart else min(COMPARE_EVERY, 2 * self._every)
            self._count(apart)
            if apart:
                differed()
                self._doubt(items, outputs)

        if self._run(items, compare):
            self._since = 0
