"""The journey of a request through one bundle, a stage a method.

    identify -> cache.lookup -> join an identical request in flight -> decode -> budget.decide
      -> device: adapt -> batcher -> engine     -> host: remote client     -> neither: BudgetExceeded at once
    -> finish -> cache.store -> meter.record -> Answer

    journey = Journey(opened, options, meter)
    answer = journey.predict(Request(budget_ms=20), image)

Rules:
- inputs are hashed, decoded and adapted before `submit` returns: the caller may reuse its frame;
- outputs never alias an engine's buffer, and are read-only: the cache may hold the same arrays;
- every request that was accepted is answered, with an Answer or an error, also when the journey is closed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekit_runtime.answer import Answer, Source
from edgekit_runtime.budget import decide
from edgekit_runtime.bundle import ArtifactEntry, Bundle
from edgekit_runtime.cache import Flights, MemoryCache, Miss, identify
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.device import Device
from edgekit_runtime.engines import Engine
from edgekit_runtime.errors import BudgetExceeded, ClosedError, EdgekitError, EngineError, InputError
from edgekit_runtime.remote.errors import HostError
from edgekit_runtime.request import Items, Outputs, Request, Tensors
from edgekit_runtime.selftest import SelfTest
from edgekit_runtime.telemetry import Meter

if TYPE_CHECKING:
    from edgekit_runtime.options import Options
    from edgekit_runtime.remote.hosts import Hosts

__all__ = ["Journey", "Opened"]


@dataclass(frozen=True)
class Opened:
    """A bundle that was verified, and the engine that was loaded and proved with it."""

    bundle: Bundle
    entry: ArtifactEntry
    engine: Engine
    tested: SelfTest
    hosts: Hosts | None = None

    def close(self) -> None:
        """Free what was opened and is not used."""
        if self.hosts is not None:
            self.hosts.close()
        self.engine.close()


@dataclass(frozen=True, slots=True)
class _Away:
    """A request for a host: which one, and the canonical items."""

    host: int
    items: Items


class _Settling(threading.local):
    """Whether this thread is telling a caller its answer."""

    now = False


class Journey:
    """Thread-safe. After `close` every request fails with ClosedError."""

    def __init__(self, opened: Opened, options: Options, meter: Meter) -> None:
        self.opened = opened
        self.contract = opened.bundle.manifest.contract
        self.device = Device(self.contract, opened.entry, opened.engine, batching=options.batching)
        ready = {t.name: np.dtype(t.dtype) for t in opened.entry.inputs if t.quantization is not None}
        self._decoders = {
            spec.name: Decoder(spec, [ready[spec.name]] if spec.name in ready else ()) for spec in self.contract.inputs
        }
        cacheable = self.contract.state == "none" and options.cache_mb > 0
        self.cache = MemoryCache(int(options.cache_mb * 2**20), ttl_s=options.ttl_s) if cacheable else None
        self._flights = Flights()
        self._namespace = bytes.fromhex(opened.bundle.digest)
        self._meter = meter
        self._settling = _Settling()
        self._counting = threading.Lock()
        self._closed = self._retired = False
        self.predicted_late = 0

    def predict(self, request: Request, inputs: Any) -> Answer:
        try:
            pending = self._arrive(request, inputs, keep=False)
            if isinstance(pending, list):
                return self._deliver(request, self.device.call(request, pending))
            if isinstance(pending, Answer):
                return pending
            if isinstance(pending, Future):
                return self._follow(request, pending.result())
            return self._ask_host(request, pending)
        except BaseException as error:
            self._fail(request, error, lost=not (self._retired and isinstance(error, ClosedError)))
            raise

    def submit(self, request: Request, inputs: Any) -> Future[Answer]:
        answer: Future[Answer] = Future()
        try:
            pending = self._arrive(request, inputs, keep=True)
            if isinstance(pending, Answer):
                answer.set_result(pending)
            elif isinstance(pending, Future):
                self._settle(answer, request, pending, lambda outputs: self._follow(request, outputs))
            elif isinstance(pending, _Away):
                away = pending
                asked = self._need_hosts().submit(lambda: self._ask_host(request, away))
                self._settle(answer, request, asked, lambda made: made)
            else:
                served = self.device.submit(request, pending)
                self._settle(
                    answer, request, served, lambda got: self._deliver(request, self.device.finish(request, got))
                )
        except BaseException as error:
            self._fail(request, error, lost=not (self._retired and isinstance(error, ClosedError)))
            raise
        return answer

    def retire(self, timeout_s: float) -> None:
        """Close, because another journey takes over: a request that comes too late for this one is asked there again."""
        self._retired = True
        self.close(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Refuse what comes, drain what is there for at most timeout_s, fail the rest, free the engine."""
        self._closed = True
        if self.opened.hosts is not None:
            self.opened.hosts.close()
        self.device.close(timeout_s)

    def _arrive(self, request: Request, inputs: Any, *, keep: bool) -> Answer | Future[Outputs] | _Away | Tensors:
        """identify, look up, join: an answer, a flight to follow, or the tensors to run.

        keep: the caller may reuse its arrays before the engine has read them.
        """
        if self._closed:
            raise ClosedError("the model was closed", do="Open the bundle again")
        named = self._named(inputs)
        if self.cache is None:
            return self._prepare(request, named, keep)
        key, named = identify(named, self._namespace)
        request.timings["identify"] = (perf_counter() - request.start) * 1e3
        if key is None:
            return self._prepare(request, named, keep)
        hit = self.cache.get(key)
        if not isinstance(hit, Miss):
            return self._answer(request, hit, "cache")
        if self._settling.now:  # a caller's callback in our own thread must not wait for what that thread would do
            return self._prepare(request, named, keep)
        flight, leads = self._flights.join(key)
        if not leads:
            return flight
        request.key, request.leads = key, True
        return self._prepare(request, named, keep)

    def _prepare(self, request: Request, named: Mapping[str, Any], keep: bool) -> _Away | Tensors:
        """decode, decide; for the device: adapt."""
        before = perf_counter()
        items = {name: self._decoders[name](value) for name, value in named.items()}
        if keep:
            given = [value for value in named.values() if isinstance(value, np.ndarray)]
            shared = (name for name, item in items.items() if any(np.may_share_memory(item, g) for g in given))
            items |= {name: items[name].copy() for name in list(shared)}
        request.timings["decode"] = (perf_counter() - before) * 1e3
        if request.budget_ms is not None:
            away = self._decide(request, items)
            if away is not None:
                return away
        return self.device.adapt(request, items)

    def _decide(self, request: Request, items: Items) -> _Away | None:
        """Who answers in time: None for the device. Raises BudgetExceeded where nobody would."""
        hosts = self.opened.hosts
        prospects = () if hosts is None or not self._may_travel(items) else hosts.prospects()
        left_ms = request.left_ms()
        decision = decide(left_ms, self.device.prospect(), prospects)
        if decision.destination == "host":
            assert decision.host is not None
            return _Away(decision.host, items)
        if decision.destination == "neither":
            self.device.watch(items)
            raise BudgetExceeded(
                f"nobody is expected to answer within {request.budget_ms:g} ms: the best would take "
                f"{decision.predicted_ms:.3g} ms of the {left_ms:.3g} ms that are left",
                do="Give more time, add a host, or use a smaller model",
            )
        if decision.fits is False:
            with self._counting:
                self.predicted_late += 1
        return None

    def _may_travel(self, items: Items) -> bool:
        """A host takes pixels, or what the original took; not what was made ready for this device's artifact."""
        specs = self.contract.inputs
        return all(items[spec.name].dtype in (np.uint8 if spec.image else spec.dtype, spec.dtype) for spec in specs)

    def _ask_host(self, request: Request, away: _Away) -> Answer:
        """The host answers; where it fails, the device does, late or not: no request goes without."""
        before = perf_counter()
        try:
            outputs, answer = self._need_hosts().infer(away.host, away.items, request.left_ms())
        except HostError:
            request.timings["host_failed"] = (perf_counter() - before) * 1e3
            return self._deliver(request, self.device.call(request, self.device.adapt(request, away.items), late=True))
        request.timings["network"] = answer.network_ms
        request.timings["host"] = answer.total_ms - answer.network_ms
        self.device.watch(away.items)
        return self._deliver(request, outputs, "host")

    def _deliver(self, request: Request, outputs: Outputs, source: Source = "device") -> Answer:
        """store, wake the followers, answer."""
        if request.leads and self.cache is not None and request.key is not None:
            request.leads = False
            self.cache.put(request.key, outputs)
            self._flights.land(request.key, outputs)
        return self._answer(request, outputs, source)

    def _follow(self, request: Request, outputs: Outputs) -> Answer:
        request.timings["joined"] = (perf_counter() - request.start) * 1e3
        return self._answer(request, outputs, "device")

    def _answer(self, request: Request, outputs: Outputs, source: Source) -> Answer:
        total = (perf_counter() - request.start) * 1e3
        request.timings["total"] = total
        met = None if request.budget_ms is None else total <= request.budget_ms
        self._meter.record(source, total, met, request.timings)
        return Answer(outputs, source, request.timings, met, self.contract)

    def _settle(
        self, answer: Future[Answer], request: Request, pending: Future[Any], finish: Callable[[Any], Answer]
    ) -> None:
        """Carry a future over to the caller's once it is done, whatever happened to either."""

        def settle(done: Future[Any]) -> None:
            wanted = answer.set_running_or_notify_cancel()
            outer, self._settling.now = self._settling.now, True
            try:
                result = finish(done.result())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                self._fail(request, error)
                if wanted:
                    answer.set_exception(error)
            else:
                if wanted:
                    answer.set_result(result)
            finally:
                self._settling.now = outer

        pending.add_done_callback(settle)

    def _fail(self, request: Request, error: BaseException, *, lost: bool = True) -> None:
        """Count the error; a leader's followers must hear of it too. lost: False where the request is asked elsewhere."""
        if request.leads and request.key is not None:
            request.leads = False
            followed = (
                error if isinstance(error, Exception) else EngineError("the request this one joined was interrupted")
            )
            self._flights.crash(request.key, followed)
        if not lost:
            return
        if isinstance(error, BudgetExceeded):
            self._meter.refused()
        self._meter.error(error.code if isinstance(error, EdgekitError) else type(error).__name__)

    def _named(self, inputs: Any) -> Mapping[str, Any]:
        names = self._decoders.keys()
        if isinstance(inputs, Mapping):
            if inputs.keys() == names:
                return inputs
            unknown, missing = sorted(map(str, inputs.keys() - names)), sorted(names - inputs.keys())
            what = f"there is no input '{unknown[0]}'" if unknown else f"the input '{missing[0]}' is missing"
            raise InputError(what, do=f"Inputs: {', '.join(names)}")
        if len(names) != 1:
            raise InputError(f"the model has {len(names)} inputs", do=f"Pass a dict with {', '.join(names)}")
        return {next(iter(names)): inputs}

    def _need_hosts(self) -> Hosts:
        assert self.opened.hosts is not None
        return self.opened.hosts
