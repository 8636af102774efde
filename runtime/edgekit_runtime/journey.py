"""The journey of a request through one bundle, a stage a method.

    identify -> cache.lookup -> join an identical request in flight -> decode -> cache.similar -> budget.decide
      -> device: adapt -> batcher -> engine     -> host: remote client     -> neither: BudgetExceeded at once
    -> finish -> cache.store -> meter.record -> Answer

    journey = Journey(opened, limits, meter)
    answer = journey.predict(Request(budget_ms=20), image)

Rules:
- inputs are hashed, decoded and adapted before `submit` returns: the caller may reuse its frame;
- outputs never alias an engine's buffer, and are read-only: the cache may hold the same arrays;
- every request that was accepted is answered, with an Answer or an error, also when the journey is closed;
- a fault of the cache or the meter takes no answer away: it is noted (`faults`), and the request continues without it;
- a host's answer is kept under the host's artifact, and found only for a request that the device would not answer in
  time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit_runtime.answer import Answer, Source
from edgekit_runtime.budget import decide
from edgekit_runtime.cache import Cache, Flights, identify, of_artifact
from edgekit_runtime.contract.decode import kept
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.device import Device
from edgekit_runtime.errors import BudgetExceeded, ClosedError, EdgekitError, EngineError, HostError
from edgekit_runtime.faults import Faults
from edgekit_runtime.forked import ForkGuard, promised
from edgekit_runtime.intake import Intake, Named, own
from edgekit_runtime.opened import Opened
from edgekit_runtime.request import Items, Outputs, Request, Tensors
from edgekit_runtime.session import needs_session
from edgekit_runtime.settling import Settling
from edgekit_runtime.telemetry import Meter

if TYPE_CHECKING:
    from edgekit_runtime.cache import Hit, Identity
    from edgekit_runtime.options import ModelLimits
    from edgekit_runtime.remote.hosts import Hosts

__all__ = ["Journey"]


@dataclass(frozen=True, slots=True)
class _Away:
    """A request for a host: which one, and the canonical items."""

    host: int
    items: Items


@dataclass(frozen=True, slots=True)
class _Landed:
    """What those get that joined a request: its outputs, and where they came from."""

    outputs: Outputs
    source: Source
    distance: float | None
    by_host: bool


class _LeaderInterruptedError(EngineError):
    """Ctrl-C, or the like, struck the thread of the request that leads."""


_LEADERS_OWN = (BudgetExceeded, _LeaderInterruptedError)
"""What stopped the request that leads does not stop those that joined it: they go their own way."""


class Journey:
    """Thread-safe. After `close` every request fails with ClosedError. meter: counts what goes through this bundle
    alone.

    cache: None where there is nothing to keep. faults: of the parts beside the answer.
    """

    def __init__(
        self,
        opened: Opened,
        limits: ModelLimits,
        meter: Meter,
        cache: Cache | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.opened = opened
        self.faults = faults or Faults(opened.bundle.manifest.name)
        self.contract = opened.bundle.manifest.contract
        ready = opened.bundle.artifact().inputs  # one form for callers, whichever artifact runs
        self.device = Device(
            self.contract, opened.prepared, ready=ready, queue_limit=limits.queue, hang_s=limits.hang_s
        )
        self._intake = Intake(self.contract, ready)
        self._by = opened.prepared.entry.recipe, opened.engine
        self.cache = cache
        self._flights: Flights[_Landed] = Flights()
        self._namespace = opened.namespace
        self.meter = meter
        self._settling = Settling()
        self._counting = threading.Lock()
        self.guard = ForkGuard()
        self._closed = self._retired = False
        self.predicted_late = 0

    def predict(self, request: Request, inputs: Any) -> Answer:
        if self.guard.forked:
            raise self.guard.error()
        try:
            while True:
                pending = self._arrive(request, inputs, keep=False)
                if isinstance(pending, list):
                    due = math.inf if request.budget_ms is None else request.due
                    served = self.device.batcher.call(pending, due=due, priority=request.priority)
                    outputs = self.device.finish(request, served)
                    if request.key is None and request.look is None:  # nothing to keep, and nobody waits for it
                        return self._answer(request, outputs, "device")
                    return self._deliver(request, outputs)
                if isinstance(pending, Answer):
                    return pending
                if isinstance(pending, _Away):
                    return self._ask_host(request, pending)
                try:
                    return self._follow(request, pending.result())
                except _LEADERS_OWN:
                    continue
        except BaseException as error:
            self._fail(request, error, lost=not (self._retired and isinstance(error, ClosedError)))
            raise

    def submit(self, request: Request, inputs: Any) -> Future[Answer]:
        if self.guard.forked:
            raise self.guard.error()
        answer: Future[Answer] = promised()
        try:
            self._submit(answer, request, inputs)
        except BaseException as error:
            self._fail(request, error, lost=not (self._retired and isinstance(error, ClosedError)))
            raise
        return answer

    def _submit(self, answer: Future[Answer], request: Request, inputs: Any) -> None:
        pending = self._arrive(request, inputs, keep=True)
        if isinstance(pending, Answer):
            if answer.set_running_or_notify_cancel():
                answer.set_result(pending)
        elif isinstance(pending, Future):
            own = {name: kept(value) for name, value in self._intake.take(inputs).items()}
            self._settle_following(answer, request, own, pending)
        elif isinstance(pending, _Away):
            away = pending
            asked = self._need_hosts().submit(lambda: self._ask_host(request, away))
            self._settle(answer, request, asked, lambda made: made)
        else:
            served = self.device.batcher.submit(pending, due=request.due, priority=request.priority)
            if not request.leads:
                answer.add_done_callback(lambda caller: served.cancel() if caller.cancelled() else None)
            self._settle(answer, request, served, lambda got: self._deliver(request, self.device.finish(request, got)))

    def retire(self, timeout_s: float) -> None:
        """Close, because another journey takes over.

        A request that comes too late for this one is asked there again.
        """
        self._retired = True
        self.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Refuse what comes, drain what is there for at most timeout_s, fail the rest, free the engine."""
        self._closed = True
        if self.opened.hosts is not None:
            self.opened.hosts.close()
        self.device.close(timeout_s)
        if self.cache is not None:
            cache = self.cache
            self.faults.shield("cache", lambda: cache.close(timeout_s))
        if self.opened.held is not None:
            self.opened.held.close()

    def _arrive(self, request: Request, inputs: Any, *, keep: bool) -> Answer | Future[_Landed] | _Away | Tensors:
        """identify, look up, join, decode, compare, decide, adapt: an answer, a flight to follow, or the tensors to
        run.

        keep: the caller may reuse its arrays before the engine has read them.
        """
        if self._closed:
            raise ClosedError("the model was closed", do="Open the bundle again")
        if self.contract.state != "none":
            raise needs_session(self.contract)
        intake, cache = self._intake, self.cache
        if type(inputs) is np.ndarray and inputs.shape == intake.only_shape:
            named: Named = {intake.only: inputs}
        else:
            named = intake.take(inputs)
        if cache is not None and cache.exact:
            try:
                pays = cache.pays(request.start)
            except Exception as error:  # noqa: BLE001 - the engine answers without a cache
                pays = False
                self.faults.note("cache", error)
            if pays:
                found, named = self._look_up(cache, request, named)
                if found is not None:
                    return found
        before = perf_counter()
        items, request.geometry = intake.decode(named)
        now = perf_counter()
        request.timings["decode"] = (now - before) * 1e3
        if (
            cache is not None
            and cache.compares
            and (look := self.faults.shield("cache", partial(cache.similar, items))) is not None
        ):
            request.timings["similar"] = (perf_counter() - now) * 1e3
            if look.hit is not None:
                return self._deliver(request, look.hit.outputs, "similar", look.hit.distance)
            request.look = look
        if request.budget_ms is not None:
            try:
                away = self._decide(request, items)
            except BudgetExceeded as refusal:
                return self._kept(request, named, refusal)
            if away is not None:
                if (hit := self._kept_of_hosts(request)) is not None:
                    return self._deliver(request, hit.outputs, "cache")
                return _Away(away, dict(zip(items, own(list(items.values()), named), strict=True)) if keep else items)
        tensors = self.device.adapt(request, items)
        return own(tensors, named) if keep else tensors

    def _look_up(self, cache: Cache, request: Request, named: Named) -> tuple[Answer | Future[_Landed] | None, Named]:
        """The exact answer, or the flight of an identical request; None where this one has to be computed. The inputs,
        which may have been read meanwhile."""
        hit = None
        try:
            request.key, named = identify(named, self._namespace)
            hashed = perf_counter()
            request.timings["identify"] = (hashed - request.start) * 1e3
            if request.key is not None:
                hit = cache.lookup(request.key, hash_s=hashed - request.start, left_s=request.due - hashed)
        except EdgekitError:
            raise
        except Exception as error:  # noqa: BLE001 - the engine answers without a cache
            request.key = None
            self.faults.note("cache", error)
        if request.key is None:
            return None, named
        flight = None
        if hit is None:
            if self._settling.now:  # a caller's callback in our own thread must not wait for what that thread would do
                return None, named
            flight, request.leads = self._flights.join(request.key)
            if request.leads:
                return None, named
        if self._intake.placed:
            request.geometry = self._intake.locate(named)
        return flight if hit is None else self._answer(request, hit.outputs, "cache"), named

    def _kept_of_hosts(self, request: Request) -> Hit | None:
        """A host's answer to the same request, for a request that was looked up in vain."""
        cache, hosts, key = self.cache, self.opened.hosts, request.key
        if cache is None or hosts is None or key is None:
            return None
        left_s = request.left_ms() / 1e3
        keys = [of_artifact(key, artifact) for artifact in hosts.artifacts]
        hit = self._first(keys, lambda key: cache.find(key, left_s=left_s))
        request.by_host = hit is not None
        return hit

    def _first(self, keys: Iterable[Identity], find: Callable[[Identity], Hit | None]) -> Hit | None:
        found = (self.faults.shield("cache", partial(find, key)) for key in keys)
        return next((hit for hit in found if hit is not None), None)

    def _kept(self, request: Request, named: Named, refusal: BudgetExceeded) -> Answer:
        """A host's kept answer; or, where the caller takes it, an answer past its time. Raises the refusal."""
        hit = self._kept_of_hosts(request)
        if hit is not None:
            return self._deliver(request, hit.outputs, "cache")
        if not request.stale_ok or self.cache is None:
            raise refusal
        cache, key = self.cache, request.key or identify(named, self._namespace)[0]
        artifacts = () if self.opened.hosts is None else self.opened.hosts.artifacts
        keys = () if key is None else tuple(of_artifact(key, artifact) for artifact in artifacts)
        hit = self._first(() if key is None else (key,), cache.stale)
        if hit is None:
            hit = self._first(keys, cache.stale)
            request.by_host = hit is not None
        if hit is None:
            raise refusal
        if request.leads and request.key is not None:  # the others may have more time
            request.leads = False
            self._flights.crash(request.key, refusal)
        return self._answer(request, hit.outputs, "stale")

    def _decide(self, request: Request, items: Items) -> int | None:
        """Who answers in time: a host, None for the device. Raises BudgetExceeded where nobody would."""
        hosts, specs = self.opened.hosts, self.contract.inputs
        # A host takes pixels, or what the original took; not what was made ready for this device's artifact.
        travels = hosts is not None and all(items[spec.name].dtype in kind_of(spec).dtypes(spec) for spec in specs)
        prospects = hosts.prospects() if hosts is not None and travels else ()
        left_ms = request.left_ms()
        decision = decide(left_ms, self.device.prospect(request.priority), prospects)
        if decision.destination == "host":
            return decision.host
        if decision.fits is False and hosts is not None:
            hosts.explore()
        if decision.destination == "neither":
            self.device.watch(items)
            left = f"{left_ms:.3g} ms of them" if left_ms > 0 else "nothing of them"
            raise BudgetExceeded(
                f"nobody is expected to answer within {request.budget_ms:g} ms: the best is expected to take "
                f"{decision.predicted_ms:.3g} ms, and {left} is left",
                do="Give more time, add a host, or use a smaller model",
            )
        if decision.fits is False:
            with self._counting:
                self.predicted_late += 1
        return None

    def _ask_host(self, request: Request, away: _Away) -> Answer:
        """The host answers; where it fails, the device does, late or not: no request goes without."""
        before = perf_counter()
        try:
            outputs, answer = self._need_hosts().infer(away.host, away.items, request.left_ms())
        except HostError:
            request.timings["host_failed"] = (perf_counter() - before) * 1e3
            served = self.device.batcher.call(self.device.adapt(request, away.items), priority=request.priority)
            return self._deliver(request, self.device.finish(request, served))
        request.timings["network"] = answer.network_ms
        request.timings["host"] = answer.total_ms - answer.network_ms
        self.device.watch(away.items)
        cache = self.cache
        if cache is not None and request.key is not None and answer.artifact is not None:
            key = of_artifact(request.key, answer.artifact)
            self.faults.shield("cache", lambda: cache.store(key, outputs, self._cost_ms(request)))
        request.by_host = True
        return self._deliver(request, outputs, "host")

    def _deliver(
        self, request: Request, outputs: Outputs, source: Source = "device", distance: float | None = None
    ) -> Answer:
        """Keep what the device computed, wake the followers, answer."""
        cache = self.cache
        known = request.key is not None or request.look is not None  # else: nothing was looked up, so nothing is kept
        if cache is not None and known and source == "device":
            try:
                cache.store(request.key, outputs, self._cost_ms(request))
                if request.look is not None:
                    cache.store_similar(request.look, outputs)
            except Exception as error:  # noqa: BLE001 - the answer is there already
                self.faults.note("cache", error)
        if request.leads and request.key is not None:
            request.leads = False
            self._flights.land(request.key, _Landed(outputs, source, distance, request.by_host))
        return self._answer(request, outputs, source, distance)

    @staticmethod
    def _cost_ms(request: Request) -> float:
        """What the answer took so far, without waiting for the engine."""
        return (perf_counter() - request.start) * 1e3 - request.timings.get("queue", 0.0)

    def _follow(self, request: Request, landed: _Landed) -> Answer:
        request.by_host = landed.by_host
        request.timings["joined"] = (perf_counter() - request.start) * 1e3
        return self._answer(request, landed.outputs, landed.source, landed.distance)

    def _answer(self, request: Request, outputs: Outputs, source: Source, distance: float | None = None) -> Answer:
        total = (perf_counter() - request.start) * 1e3
        request.timings["total"] = total
        met = None if request.budget_ms is None else total <= request.budget_ms
        try:
            self.meter.record(source, total, met, request.timings, request.clipped)
        except Exception as error:  # noqa: BLE001 - the answer is there already
            self.faults.note("meter", error)
        by = (None, None) if request.by_host else self._by
        return Answer(outputs, source, request.timings, met, self.contract, distance, request.geometry, *by)

    def _settle_following(self, answer: Future[Answer], request: Request, inputs: Any, flight: Future[_Landed]) -> None:
        """As `_settle`; where the request that leads had no time, this one goes its own way."""

        def settle(done: Future[_Landed]) -> None:
            if isinstance(done.exception(), _LEADERS_OWN) and not answer.cancelled():
                try:
                    self._submit(answer, request, inputs)
                except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                    self._fail(request, error)
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(error)
                return
            self._settle(answer, request, done, lambda landed: self._follow(request, landed))

        flight.add_done_callback(settle)

    def _settle(
        self, answer: Future[Answer], request: Request, pending: Future[Any], finish: Callable[[Any], Answer]
    ) -> None:
        self._settling.carry(pending, answer, finish, lambda error, lost: self._fail(request, error, lost=lost))

    def _fail(self, request: Request, error: BaseException, *, lost: bool = True) -> None:
        """Count the error; a leader's followers must hear of it too.

        lost: False where the request is asked elsewhere.
        """
        if request.leads and request.key is not None:
            request.leads = False
            followed = (
                error
                if isinstance(error, Exception)
                else _LeaderInterruptedError("the request this one joined was interrupted")
            )
            self._flights.crash(request.key, followed)
        if lost:
            self.count_error(error)

    def count_error(self, error: BaseException) -> None:
        """Count a request without an answer. Never raises."""
        try:
            if isinstance(error, BudgetExceeded):
                self.meter.refused()
            self.meter.error(error.code if isinstance(error, EdgekitError) else type(error).__name__)
        except Exception as fault:  # noqa: BLE001 - the caller must hear of its own error
            self.faults.note("meter", fault)

    def _need_hosts(self) -> Hosts:
        assert self.opened.hosts is not None
        return self.opened.hosts
