"""The journey of a request through one bundle, a stage a method.

    identify -> cache.lookup -> join an identical request in flight -> decode -> cache.similar -> budget.decide
      -> device: adapt -> batcher -> engine     -> with hosts: fallback     -> neither: BudgetExceeded at once
    -> finish -> cache.store -> meter.record -> Answer

Rules:
- inputs are hashed, decoded and adapted before `submit` returns: the caller may reuse its frame;
- outputs never alias an engine's buffer, and are read-only: the cache may hold the same arrays;
- every accepted request gets an Answer or an error, also when the journey is closed;
- a fault of the cache or the meter is noted (`faults`), and the request continues without it;
- a host's answer is kept under the host's artifact, and found only by a request that the device would not answer in
  time; a degraded answer is never kept, and those that joined the request go their own way;
- with hosts, or a degraded artifact, a request with a budget ends by its deadline; a later result is kept.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from edgekit_runtime.cache.identity import Flights, identify, of_artifact
from edgekit_runtime.cache.tiered import Cache
from edgekit_runtime.contract.decode import copy_in
from edgekit_runtime.contract.kinds import kind_of
from edgekit_runtime.contract.text import texts_of
from edgekit_runtime.policy.budget import decide
from edgekit_runtime.serving.device import Device
from edgekit_runtime.serving.opened import OpenedBundle
from edgekit_runtime.serving.request import (
    Answer,
    IdentifiedInput,
    Intake,
    Items,
    Outputs,
    Predict,
    Request,
    Source,
    Tensors,
    own,
)
from edgekit_runtime.serving.session import needs_session
from edgekit_runtime.system.errors import (
    BudgetExceeded,
    ClosedError,
    EdgekitError,
    EngineError,
    HostError,
    model_closed,
)
from edgekit_runtime.system.faults import Faults
from edgekit_runtime.system.records import record
from edgekit_runtime.system.threads import ForkGuard, FutureRelay, fork_safe_future
from edgekit_runtime.telemetry.meter import Meter

if TYPE_CHECKING:
    from edgekit_runtime.cache.identity import Identity
    from edgekit_runtime.cache.tiered import Hit
    from edgekit_runtime.engines.llamacpp import LlamaEngine
    from edgekit_runtime.generating.generator import Generator
    from edgekit_runtime.policy.options import ModelLimits
    from edgekit_runtime.serving.fallback import Away, Fallback, Outcome


@record(frozen=True)
class _SharedResult:
    """What requests get that joined another: its outputs, and their source."""

    outputs: Outputs
    source: Source
    distance: float | None
    by_host: bool


_MORE_TIME = "Allow more time, add a host, or use a smaller model"


class _LeaderInterruptedError(EngineError):
    """The leading request's thread was interrupted, by Ctrl-C or the like."""


_LEADERS_OWN = (BudgetExceeded, _LeaderInterruptedError)
"""Errors of the leading request that do not concern those that joined it."""


class Journey:
    """Thread-safe. After `close` every request fails with ClosedError.

    meter: counts the requests of this bundle alone.
    compiled: makes `predict` of a journey that is complete but for it.
    cache: None if nothing is kept.
    faults: of the parts that are not needed for an answer.
    """

    def __init__(
        self,
        opened: OpenedBundle,
        limits: ModelLimits,
        meter: Meter,
        compiled: Callable[[Journey], Predict],
        cache: Cache | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.opened = opened
        self.faults = faults or Faults(opened.bundle.manifest.name)
        self.contract = opened.bundle.manifest.contract
        ready = opened.bundle.artifact().inputs  # one form for callers, whichever artifact runs
        on_device = partial(Device, self.contract, ready=ready, queue_limit=limits.queue, hang_s=limits.hang_s)
        self.device = on_device(opened.prepared)
        self.intake = Intake(self.contract, ready)
        self.by = opened.prepared.entry.recipe, opened.engine
        self.degraded: Device | None = None
        self._by_degraded: tuple[str | None, str | None] = None, None
        if opened.degraded is not None:
            self.degraded = on_device(opened.degraded)
            self._by_degraded = opened.degraded.entry.recipe, opened.degraded_engine
        self.cache = cache
        self.flights: Flights[_SharedResult] = Flights()
        self.namespace = opened.namespace
        self.meter = meter
        self.relay = FutureRelay()
        self._counting = threading.Lock()
        self.guard = ForkGuard()
        self.closed = self._retired = False
        self.predicted_late = 0
        self.fallback: Fallback | None = None
        self.tap: Any = None  # see `tap`
        self.generator: Generator | None = None
        if self.contract.task == "generation":
            from edgekit_runtime.generating.generator import Generator

            self.generator = Generator(
                cast("LlamaEngine", opened.prepared.engine.single),
                opened.prepared.costs.get(1, opened.prepared.ready.first_ms / 1e3) * 1e3,
                opened.hosts,
                self.count,
                self.count_error,
                limits.queue,
                lambda: self.device.throttle_s,
            )
        self.doubted: Callable[[Mapping[str, Any], Outputs, str], None] | None = None
        hosts = opened.hosts if self.generator is None else None  # else they generate, and answer no tensors
        if hosts is not None or self.degraded is not None:
            from edgekit_runtime.serving.fallback import Comparison, Fallback

            def compared(differs: bool) -> None:
                self.faults.shield("meter", lambda: self.meter.compared(differs=differs))

            def differed(items: Items, outputs: Outputs) -> None:
                if self.doubted is not None:
                    self.doubted(items, outputs, "host")

            self._comparison = Comparison(self.contract, self.device.run_beside, compared, differed)
            self.fallback = Fallback(
                self.device, hosts, self._keep_late_answer, self._comparison.answered, self.degraded
            )
        self.predict = compiled(self)

    def travel(
        self, request: Request, inputs: Any, *, looked: bool = False, flight: Future[_SharedResult] | None = None
    ) -> Answer:
        """Answer a request, from its beginning or from where the fast path left it.

        looked: it was looked up in the cache. flight: of the identical request that it joined.
        """
        if self.guard.forked:
            raise self.guard.error()
        try:
            while True:
                pending = self._arrive(request, inputs, keep=False, looked=looked) if flight is None else flight
                looked, flight = False, None
                if isinstance(pending, list):
                    served = self.device.batcher.call(pending, due=request.due, priority=request.priority)
                    return self.deliver(request, self.device.finish(request, served))
                if isinstance(pending, Answer):
                    return pending
                if not isinstance(pending, Future):
                    return self._conclude(request, pending.wait(request.left_ms() / 1e3))
                try:
                    return self._follow(request, pending.result())
                except _LEADERS_OWN:
                    continue
        except BaseException as error:
            self.fail(request, error)
            raise

    def submit(self, request: Request, inputs: Any) -> Future[Answer]:
        if self.guard.forked:
            raise self.guard.error()
        answer: Future[Answer] = fork_safe_future()
        try:
            self._submit(answer, request, inputs)
        except BaseException as error:
            self.fail(request, error)
            raise
        return answer

    async def wait(self, request: Request, inputs: Any) -> Answer | Future[Answer]:
        """As `submit`, for a task of an event loop; a future if hosts or another request answer."""
        if self.guard.forked:
            raise self.guard.error()
        try:
            pending = self._arrive(request, inputs, keep=True)
            if isinstance(pending, list):
                served = await self.device.batcher.wait(pending, due=request.due, priority=request.priority)
                return self.deliver(request, self.device.finish(request, served))
            answer: Future[Answer] = fork_safe_future()
            self._submit(answer, request, inputs, pending)
        except BaseException as error:
            self.fail(request, error, lost=isinstance(error, Exception))  # else its task was cancelled
            raise
        return answer

    def _submit(self, answer: Future[Answer], request: Request, inputs: Any, pending: Any = None) -> None:
        pending = self._arrive(request, inputs, keep=True) if pending is None else pending
        if isinstance(pending, Answer):
            if answer.set_running_or_notify_cancel():
                answer.set_result(pending)
        elif isinstance(pending, Future):
            own = {name: copy_in(value) for name, value in self.intake.take(inputs).items()}
            self._settle_following(answer, request, own, pending)
        elif not isinstance(pending, list):
            errand = pending.errand
            if not request.leads:
                answer.add_done_callback(lambda caller: errand.withdraw() if caller.cancelled() else None)
            self._settle(answer, request, pending.outcome, lambda outcome: self._conclude(request, outcome))
        else:
            served = self.device.batcher.submit(pending, due=request.due, priority=request.priority)
            if not request.leads:
                answer.add_done_callback(lambda caller: served.cancel() if caller.cancelled() else None)
            self._settle(answer, request, served, lambda got: self.deliver(request, self.device.finish(request, got)))

    def retire(self, timeout_s: float) -> None:
        """Close, because another journey takes over; a request that comes too late is asked there."""
        self._retired = True
        self.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Refuse new requests, drain for at most timeout_s, fail the rest, free the engine."""
        self.closed = True
        if self.generator is not None:
            self.generator.drain(timeout_s)
        if self.opened.hosts is not None:
            self.opened.hosts.close()
        self.device.close(timeout_s)
        if self.degraded is not None:
            self.degraded.close(timeout_s)
        if self.fallback is not None:
            self.fallback.close()
        if self.cache is not None:
            cache = self.cache
            self.faults.shield("cache", lambda: cache.close(timeout_s))
        if self.opened.held is not None:
            self.opened.held.close()

    def _arrive(
        self, request: Request, inputs: Any, *, keep: bool, looked: bool = False
    ) -> Answer | Future[_SharedResult] | Away | Tensors:
        """Identify, look up, join, decode, compare, decide and adapt a request.

        Returns an answer, a flight to follow, or the tensors to run.
        keep: the caller may reuse its arrays before the engine has read them.
        """
        if self.closed:
            raise model_closed()
        if self.contract.state != "none":
            raise needs_session(self.contract)
        cache, named = self.cache, self.intake.take(inputs)
        if cache is not None and cache.exact and not looked:
            found, named = self._look_up(cache, request, named)
            if found is not None:
                return found
        before = perf_counter()
        items, request.geometry = self.intake.decode(named)
        now = perf_counter()
        request.timings["decode"] = (now - before) * 1e3
        if (
            cache is not None
            and cache.compares
            and (look := self.faults.shield("cache", partial(cache.similar, texts_of(named) or items))) is not None
        ):
            request.timings["similar"] = (perf_counter() - now) * 1e3
            if look.hit is not None:
                return self.deliver(request, look.hit.outputs, "similar", look.hit.distance)
            request.look = look
        if request.budget_ms is not None:
            if request.stale_ok and cache is not None and request.key is None:
                identified = self.faults.shield("cache", partial(identify, named, self.namespace))
                request.stale_key = None if identified is None else identified[0]
            try:
                away = self._decide(request, items)
            except BudgetExceeded as refusal:
                kept_answer = self._instead(request, refusal)
                if kept_answer is None:
                    raise
                return kept_answer
            if away is not None:
                if away.decision.destination != "device" and (hit := self._cached_host_answer(request)) is not None:
                    return self.deliver(request, hit.outputs, "cache")
                assert self.fallback is not None
                self.fallback.begin(away, dict(zip(items, own(list(items.values()), named), strict=True)))
                return away
        tensors = self.device.adapt(request, items)
        return own(tensors, named) if keep else tensors

    def _look_up(
        self, cache: Cache, request: Request, named: IdentifiedInput
    ) -> tuple[Answer | Future[_SharedResult] | None, IdentifiedInput]:
        """The exact answer, the flight of an identical request, or None; and the inputs, read once."""
        hit = None
        try:
            if not cache.worth.pays(request.start):
                return None, named
            request.key, named = identify(named, self.namespace)
            hashed = perf_counter()
            request.timings["identify"] = (hashed - request.start) * 1e3
            if request.key is not None:
                left_s = math.inf if request.budget_ms is None else request.start + request.budget_ms / 1e3 - hashed
                hit = cache.lookup(request.key, hash_s=hashed - request.start, left_s=left_s)
        except EdgekitError:
            raise
        except Exception as error:  # noqa: BLE001 - the engine answers without a cache
            request.key = None
            self.faults.note("cache", error)
        if request.key is None:
            return None, named
        flight = None
        if hit is None:
            if self.relay.now:  # a caller's callback in our own thread must not wait for what that thread would do
                return None, named
            flight, request.leads = self.flights.join(request.key)
            if request.leads:
                return None, named
        if self.intake.placed:
            request.geometry = self.intake.locate(named)
        return flight if hit is None else self._answer(request, hit.outputs, "cache"), named

    def _cached_host_answer(self, request: Request) -> Hit | None:
        """A host's answer to the same request, for one that was looked up in vain."""
        cache, hosts, key = self.cache, self.opened.hosts, request.key
        if cache is None or hosts is None or key is None:
            return None
        left_s = request.left_ms() / 1e3
        keys = [of_artifact(key, artifact) for artifact in hosts.artifacts]
        hit = self._first(keys, lambda key: cache.lookup(key, hash_s=None, left_s=left_s))
        request.by_host = hit is not None
        return hit

    def _first(self, keys: Iterable[Identity], find: Callable[[Identity], Hit | None]) -> Hit | None:
        found = (self.faults.shield("cache", partial(find, key)) for key in keys)
        return next((hit for hit in found if hit is not None), None)

    def _instead(self, request: Request, refusal: BudgetExceeded) -> Answer | None:
        """A host's kept answer; or, if the caller accepts it, a stale answer; or None."""
        hit = self._cached_host_answer(request)
        if hit is not None:
            return self.deliver(request, hit.outputs, "cache")
        cache, key = self.cache, request.key or request.stale_key
        if not request.stale_ok or cache is None or key is None:
            return None
        artifacts = () if self.opened.hosts is None else self.opened.hosts.artifacts
        hit = self._first((key,), cache.stale)
        if hit is None:
            hit = self._first([of_artifact(key, artifact) for artifact in artifacts], cache.stale)
            request.by_host = hit is not None
        if hit is None:
            return None
        self._part(request, refusal)
        return self._answer(request, hit.outputs, "stale")

    def _part(self, request: Request, refusal: BudgetExceeded) -> None:
        """Those that joined the request go their own way: they may have more time."""
        if request.leads and request.key is not None:
            request.leads = False
            self.flights.crash(request.key, refusal)

    def _decide(self, request: Request, items: Items) -> Away | None:
        """Who answers in time; None for the device alone. Raises BudgetExceeded if no one would."""
        specs, away, left_ms = self.contract.inputs, None, request.left_ms()
        if self.fallback is None:
            decision = decide(left_ms, self.device.outlook(request.priority))
        else:
            # A host takes pixels, or what the original took; not what was made ready for this device's artifact.
            travels = all(items[spec.name].dtype in kind_of(spec).dtypes(spec) for spec in specs)
            size = sum(item.nbytes for item in items.values()) if travels else None
            away = self.fallback.away(request, items, size)
            decision = away.decision
        if decision.destination == "neither":
            self.device.watch(items)
            assert request.budget_ms is not None  # without one, everybody makes it
            why = f"reading and decoding the input took {request.budget_ms - left_ms:.3g} ms"
            if left_ms > 0:
                why = f"{left_ms:.3g} ms are left, and the fastest would take {decision.predicted_ms:.3g} ms"
            raise BudgetExceeded(f"no answer expected within {request.budget_ms:g} ms: {why}", do=_MORE_TIME)
        if decision.fits is False and decision.destination == "device":
            with self._counting:
                self.predicted_late += 1
        return away

    def _conclude(self, request: Request, outcome: Outcome) -> Answer:
        """The first answer; without one in time a kept or degraded one, or the error."""
        source, result, error = outcome
        if source == "device":
            return self.deliver(request, self.device.finish(request, result))
        if source == "host":
            outputs, answer = result
            request.timings["network"] = answer.network_ms
            request.timings["host"] = answer.total_ms - answer.network_ms
            self._store_of_host(request, outputs, answer.artifact)
            request.by_host = True
            return self.deliver(request, outputs, "host")
        if source != "degraded" and error is not None and not isinstance(error, (BudgetExceeded, HostError)):
            raise error
        why = "the time ran out before the device or a host answered" if error is None else str(error)
        refusal = BudgetExceeded(f"no answer within {request.budget_ms:g} ms: {why}", do=_MORE_TIME)
        refusal.__cause__ = error
        kept_answer = self._instead(request, refusal)
        if kept_answer is not None:
            return kept_answer
        if source != "degraded":
            raise refusal
        self._part(request, refusal)
        outputs, served = result
        request.timings["queue"], request.timings["engine"] = served.queued_s * 1e3, served.ran_s * 1e3
        return self._answer(request, outputs, "degraded")

    def _keep_late_answer(self, request: Request, source: str, result: Any) -> None:
        """Keep an answer whose caller has gone, or had another, for the next caller."""
        if source == "host":
            outputs, answer = result
            self._store_of_host(request, outputs, answer.artifact)
            return
        outputs = self.device.finish_late(result)
        cache, key = self.cache, request.key
        if cache is not None and key is not None:
            self.faults.shield("cache", lambda: cache.store(key, outputs, result.ran_s * 1e3))

    def _store_of_host(self, request: Request, outputs: Outputs, artifact: str | None) -> None:
        cache = self.cache
        if cache is not None and request.key is not None and artifact is not None:
            key = of_artifact(request.key, artifact)
            self.faults.shield("cache", lambda: cache.store(key, outputs, self._cost_ms(request)))

    def deliver(
        self, request: Request, outputs: Outputs, source: Source = "device", distance: float | None = None
    ) -> Answer:
        """Keep the device's outputs, wake the followers, answer."""
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
            self.flights.land(request.key, _SharedResult(outputs, source, distance, request.by_host))
        return self._answer(request, outputs, source, distance)

    @staticmethod
    def _cost_ms(request: Request) -> float:
        """Milliseconds of the answer so far, without the wait for the engine."""
        return (perf_counter() - request.start) * 1e3 - request.timings.get("queue", 0.0)

    def _follow(self, request: Request, landed: _SharedResult) -> Answer:
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
        by = (None, None) if request.by_host else self._by_degraded if source == "degraded" else self.by
        return Answer(outputs, source, request.timings, met, self.contract, distance, request.geometry, *by)

    def _settle_following(
        self, answer: Future[Answer], request: Request, inputs: Any, flight: Future[_SharedResult]
    ) -> None:
        """As `_settle`; if the leading request had no time, this one goes its own way."""

        def settle(done: Future[_SharedResult]) -> None:
            if isinstance(done.exception(), _LEADERS_OWN) and not answer.cancelled():
                try:
                    self._submit(answer, request, inputs)
                except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                    self.fail(request, error)
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(error)
                return
            self._settle(answer, request, done, lambda landed: self._follow(request, landed))

        flight.add_done_callback(settle)

    def _settle(
        self, answer: Future[Answer], request: Request, pending: Future[Any], finish: Callable[[Any], Answer]
    ) -> None:
        self.relay.carry(pending, answer, finish, lambda error, lost: self.fail(request, error, lost=lost))

    def fail(self, request: Request, error: BaseException, *, lost: bool = True) -> None:
        """Count the error, unless another journey is asked now; a leader's followers get it too.

        lost: False if its caller has gone.
        """
        if request.leads and request.key is not None:
            request.leads = False
            followed = (
                error
                if isinstance(error, Exception)
                else _LeaderInterruptedError("the identical request that this one joined was interrupted")
            )
            self.flights.crash(request.key, followed)
        if lost and not (self._retired and isinstance(error, ClosedError)):
            self.count_error(error)

    def count(self, source: str, total_ms: float, met: bool | None, timings: Mapping[str, float]) -> None:
        """Count an answer that took another way. Never raises."""
        self.faults.shield("meter", lambda: self.meter.record(source, total_ms, met, timings))

    def count_error(self, error: BaseException) -> None:
        """Count a request without an answer. Never raises."""
        try:
            if isinstance(error, BudgetExceeded):
                self.meter.refused()
            self.meter.error(error.code if isinstance(error, EdgekitError) else type(error).__name__)
        except Exception as fault:  # noqa: BLE001 - the caller gets the errors own error
            self.faults.note("meter", fault)
