"""The facade: one object an application embeds. It strings the journey of a request together and owns nothing else.

    with open_bundle("digits.ekb") as model:
        answer = model.predict(image, budget_ms=20)

    identify -> cache.lookup -> join an identical request in flight -> decode -> budget.decide
      -> device: adapt -> batcher -> engine     -> host: remote client     -> neither: BudgetExceeded at once
    -> finish -> cache.store -> meter.record -> Answer

Rules:
- a model is ready when `open_bundle` returns: verified, self-tested, warm;
- inputs are hashed, decoded and adapted before `submit` returns: the caller may reuse its frame;
- outputs never alias an engine's buffer, and are read-only: the cache may hold the same arrays;
- every request that was accepted is answered, with an Answer or an error, also when the model is closed.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.answer import Answer, Source
from edgekit_runtime.batching import Batcher, Served, batch_that_pays, best_of
from edgekit_runtime.budget import Learned, Prospect, decide
from edgekit_runtime.bundle import ArtifactEntry, Bundle
from edgekit_runtime.cache import CacheStats, Flights, Identity, MemoryCache, Miss, identify
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.decode import Decoder
from edgekit_runtime.contract.finish import Finisher
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines import Engine
from edgekit_runtime.errors import BudgetExceeded, ClosedError, EdgekitError, EngineError, InputError
from edgekit_runtime.remote.errors import HostError
from edgekit_runtime.selftest import SelfTest
from edgekit_runtime.telemetry import About, Meter, MeterStats, Reporter, Reporting, TelemetryStats

if TYPE_CHECKING:
    from edgekit_runtime.remote.hosts import Hosts

__all__ = ["Model", "Options", "Stats"]

MOST_THREADS = 256
WATCH_EVERY_S = 0.5
"""How often the device is tried while hosts answer for it."""

Tensors = list[NDArray[Any]]
Outputs = Mapping[str, NDArray[Any]]
Items = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Options:
    """cache_mb: 0 turns the cache off. ttl_s: how long an answer is good, None for ever. threads: None for the bundle's."""

    cache_mb: float = 64.0
    ttl_s: float | None = None
    threads: int | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cache_mb < math.inf:
            raise ValueError(f"cache_mb must be 0 or more, not {self.cache_mb}")
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise ValueError(f"ttl_s must be more than 0, not {self.ttl_s}")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads must be from 1 to {MOST_THREADS}, not {self.threads}")


@dataclass(frozen=True)
class Stats:
    """meter: answers and latencies. cache: None when it is off. queued: requests waiting now.

    device_p90_ms: what the device is expected to need, learnt from its last inferences. predicted_late: requests for
    which that was more than was left of their budget; with no host to turn to, the device answered them all the same.
    telemetry: how reporting goes, None when the model does not report.
    """

    meter: MeterStats
    cache: CacheStats | None
    queued: int
    max_batch: int
    device_p90_ms: float | None
    predicted_late: int
    telemetry: TelemetryStats | None = None


@dataclass(slots=True)
class _Request:
    """A request on its way. leads: the key of the flight it leads, if any; it must land or crash that flight."""

    budget_ms: float | None
    start: float = field(default_factory=perf_counter)
    leads: Identity | None = None
    timings: dict[str, float] = field(default_factory=dict)

    def left_ms(self) -> float:
        """What is left of the budget; infinite without one."""
        spent_ms = (perf_counter() - self.start) * 1e3
        return math.inf if self.budget_ms is None else self.budget_ms - spent_ms


@dataclass(frozen=True, slots=True)
class _Away:
    """A request for a host: which one, and the canonical items."""

    host: int
    items: Items


class _Settling(threading.local):
    """Whether this thread is telling a caller its answer."""

    now = False


class Model:
    """Made by `open_bundle`. Every method may be called from any thread."""

    def __init__(
        self,
        bundle: Bundle,
        entry: ArtifactEntry,
        engine: Engine,
        tested: SelfTest,
        options: Options,
        hosts: Hosts | None = None,
    ) -> None:
        self._bundle = bundle
        self._entry = entry
        self._engine = engine
        self._tested = tested
        self._contract = bundle.manifest.contract
        ready = {tensor.name: np.dtype(tensor.dtype) for tensor in entry.inputs if tensor.quantization is not None}
        self._decoders = {
            spec.name: Decoder(spec, [ready[spec.name]] if spec.name in ready else ()) for spec in self._contract.inputs
        }
        self._adapters = [(t.name, Adapter(self._contract.input(t.name), t)) for t in entry.inputs]
        self._finisher = Finisher(self._contract, entry.outputs)
        cacheable = self._contract.state == "none" and options.cache_mb > 0
        self._cache = MemoryCache(int(options.cache_mb * 2**20), ttl_s=options.ttl_s) if cacheable else None
        self._flights = Flights()
        self._namespace = bytes.fromhex(bundle.digest)
        self._meter = Meter()
        self._reporter: Reporter | None = None
        self._learned = Learned()
        self._predicted_late = 0
        self._hosts = hosts
        self._watching = threading.Lock()
        self._settling = _Settling()
        self._closed = False
        self._throttle_s = 0.0
        self._watch: Future[Served[Tensors]] | None = None
        self._max_batch = self._measure_batch()
        self._batcher: Batcher[Tensors, Tensors] = Batcher(self._run, max_batch=self._max_batch)

    @property
    def contract(self) -> Contract:
        """What `predict` takes and what an answer means."""
        return self._contract

    def predict(self, inputs: Any, *, budget_ms: float | None = None) -> Answer:
        """Answer one item, waiting for it.

        inputs: for a model with one input, what `Decoder` takes (path, encoded bytes, PIL image, uint8 or float array);
        for several, a dict by name. budget_ms: what the caller can wait; `answer.met_budget` says whether it held.
        Raises InputError, EngineError, ClosedError; with hosts, BudgetExceeded when nobody is expected to make it.
        """
        request = _Request(budget_ms)
        try:
            pending = self._arrive(request, inputs, keep=False)
            if isinstance(pending, Answer):
                return pending
            if isinstance(pending, Future):
                return self._follow(request, pending.result())
            if isinstance(pending, _Away):
                return self._ask_host(request, pending)
            return self._deliver(request, self._batcher.call(pending))
        except BaseException as error:
            self._fail(request, error)
            raise

    def submit(self, inputs: Any, *, budget_ms: float | None = None) -> Future[Answer]:
        """As `predict`, without waiting for the engine. Bad input raises here; the future carries later errors."""
        request = _Request(budget_ms)
        answer: Future[Answer] = Future()
        try:
            pending = self._arrive(request, inputs, keep=True)
            if isinstance(pending, Answer):
                answer.set_result(pending)
            elif isinstance(pending, Future):
                pending.add_done_callback(lambda done: self._settle(answer, request, done, self._follow))
            elif isinstance(pending, _Away):
                away = pending
                asked = self._need_hosts().submit(lambda: self._ask_host(request, away))
                asked.add_done_callback(lambda done: self._settle(answer, request, done, lambda _, result: result))
            else:
                served = self._batcher.submit(pending)
                served.add_done_callback(lambda done: self._settle(answer, request, done, self._deliver))
        except BaseException as error:
            self._fail(request, error)
            raise
        return answer

    async def apredict(self, inputs: Any, *, budget_ms: float | None = None) -> Answer:
        """As `predict`, for asyncio. Decoding runs here; the engine runs in the batcher's thread."""
        import asyncio

        return await asyncio.wrap_future(self.submit(inputs, budget_ms=budget_ms))

    def stats(self) -> Stats:
        cache = self._cache.stats() if self._cache is not None else None
        return Stats(
            self._meter.stats(),
            cache,
            self._batcher.queued,
            self._max_batch,
            self._learned.p90_ms,
            self._predicted_late,
            self._reporter.stats() if self._reporter is not None else None,
        )

    def describe(self) -> dict[str, Any]:
        """What answers here: bundle, artifact, engine, the way inputs travel, what the self-test found."""
        info, manifest = self._engine.info, self._bundle.manifest
        return {
            "name": manifest.name,
            "version": manifest.version,
            "profile": manifest.target.profile,
            "recipe": self._entry.recipe,
            "engine": {"name": info.name, "version": info.version, "threads": info.threads},
            "inputs": {name: adapter.way for name, adapter in self._adapters},
            "selftest": {
                "examples": self._tested.examples,
                "same_engine": self._tested.same_engine,
                "worst_steps": self._tested.worst_steps,
                "worst_cosine": self._tested.worst_cosine,
            },
            "max_batch": self._max_batch,
            "cache": self._cache is not None,
            "signed": self._bundle.trusted,
            "hosts": self._hosts.describe() if self._hosts is not None else [],
        }

    def throttle(self, delay_ms: float) -> None:
        """A drill: make every inference on this device `delay_ms` slower, as heat does, to see what becomes of the budget
        and whether a host takes over. 0 ends it.
        """
        if not 0 <= delay_ms < math.inf:
            raise ValueError(f"delay_ms must be 0 or more, not {delay_ms}")
        self._throttle_s = delay_ms / 1e3

    def flush_cache(self) -> None:
        """Forget every cached answer."""
        if self._cache is not None:
            self._cache.flush()

    def report(self, reporting: Reporting) -> None:
        """Begin to report what is counted; `open_bundle(telemetry=...)` does this. One thread of its own does the work.

        Raises MissingExtraError.
        """
        manifest = self._bundle.manifest
        about = About(
            reporting.device,
            manifest.name,
            manifest.version,
            self._bundle.digest,
            manifest.target.profile,
            manifest.target.budget_ms,
            self._cache is not None,
        )
        reporter = Reporter(self._meter, about, reporting)
        reporter.start()
        self._reporter = reporter

    def close(self, timeout_s: float = 5.0) -> None:
        """Answer what is running and what can be drained in timeout_s, fail the rest with ClosedError, free the engine.

        A model that reports spools its last window, and waits up to two seconds for the fleet to confirm it.
        """
        self._closed = True
        if self._hosts is not None:
            self._hosts.close()
        if self._batcher.close(timeout_s):
            self._engine.close()
        if self._reporter is not None:
            self._reporter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The journey, a stage a method.

    def _arrive(self, request: _Request, inputs: Any, *, keep: bool) -> Answer | Future[Outputs] | _Away | Tensors:
        """identify, look up, join: an answer, a flight to follow, or the tensors to run.

        keep: the caller may reuse its arrays before the engine has read them.
        """
        if request.budget_ms is not None and not request.budget_ms > 0:
            raise ValueError(f"budget_ms must be more than 0, not {request.budget_ms}")
        if self._closed:
            raise ClosedError("the model was closed", do="Open the bundle again")
        named = self._named(inputs)
        if self._cache is None:
            return self._prepare(request, named, keep)
        key, named = identify(named, self._namespace)
        request.timings["identify"] = (perf_counter() - request.start) * 1e3
        if key is None:
            return self._prepare(request, named, keep)
        hit = self._cache.get(key)
        if not isinstance(hit, Miss):
            return self._answer(request, hit, "cache")
        if self._settling.now:  # a caller's callback in our own thread must not wait for what that thread would do
            return self._prepare(request, named, keep)
        flight, leads = self._flights.join(key)
        if not leads:
            return flight
        request.leads = key
        return self._prepare(request, named, keep)

    def _prepare(self, request: _Request, named: Mapping[str, Any], keep: bool) -> _Away | Tensors:
        """decode, decide; for the device: adapt."""
        before = perf_counter()
        items = {name: self._decoders[name](value) for name, value in named.items()}
        if keep:
            given = [value for value in named.values() if isinstance(value, np.ndarray)]
            shared = (name for name, item in items.items() if any(np.may_share_memory(item, g) for g in given))
            items |= {name: items[name].copy() for name in list(shared)}
        request.timings["decode"] = (perf_counter() - before) * 1e3
        if request.budget_ms is None:
            return self._adapt(request, items)
        hosts = () if self._hosts is None or not self._may_travel(items) else self._hosts.prospects()
        decision = decide(request.left_ms(), Prospect(self._learned.p90_ms), hosts)
        if decision.destination == "host":
            assert decision.host is not None
            return _Away(decision.host, items)
        if decision.destination == "neither":
            self._watch_device(items)
            raise BudgetExceeded(
                f"nobody is expected to answer within {request.budget_ms:g} ms: the best would take "
                f"{decision.predicted_ms:.3g} ms of the {request.left_ms():.3g} ms that are left",
                do="Give more time, add a host, or use a smaller model",
            )
        if decision.fits is False:
            with self._watching:
                self._predicted_late += 1
        return self._adapt(request, items)

    def _may_travel(self, items: Items) -> bool:
        """A host takes pixels, or what the original took; not what was made ready for this device's artifact."""
        specs = self._contract.inputs
        return all(items[spec.name].dtype in (np.uint8 if spec.image else spec.dtype, spec.dtype) for spec in specs)

    def _adapt(self, request: _Request, items: Items) -> Tensors:
        before = perf_counter()
        tensors = [adapter(items[name]) for name, adapter in self._adapters]
        request.timings["adapt"] = (perf_counter() - before) * 1e3
        return tensors

    def _ask_host(self, request: _Request, away: _Away) -> Answer:
        """The host answers; where it fails, the device does, late or not: no request goes without."""
        before = perf_counter()
        try:
            outputs, answer = self._need_hosts().infer(away.host, away.items, request.left_ms())
        except HostError:
            request.timings["host_failed"] = (perf_counter() - before) * 1e3
            return self._deliver(request, self._batcher.call(self._adapt(request, away.items)))
        request.timings["network"] = answer.network_ms
        request.timings["host"] = answer.total_ms - answer.network_ms
        self._watch_device(away.items)
        self._keep(request, outputs)
        return self._answer(request, outputs, "host")

    def _watch_device(self, items: Items) -> None:
        """While others answer for it, the device runs a copy now and then, so that it is known when it is fast again."""
        with self._watching:
            if self._learned.age_s < WATCH_EVERY_S or (self._watch is not None and not self._watch.done()):
                return
            try:
                self._watch = self._batcher.submit([adapter(items[name]) for name, adapter in self._adapters])
            except ClosedError:
                return
        self._watch.add_done_callback(self._learn)

    def _learn(self, done: Future[Served[Tensors]]) -> None:
        if not done.cancelled() and done.exception() is None:
            served = done.result()
            self._learned.add((served.queued_s + served.ran_s) * 1e3)

    def _run(self, batch: Sequence[Tensors]) -> Sequence[Tensors]:
        """One inference for the whole batch; the engine's outputs, a list an item."""
        if self._throttle_s:
            time.sleep(self._throttle_s)
        if len(batch) == 1:
            return [self._engine.run(batch[0])]
        joined = [np.concatenate(parts) for parts in zip(*batch, strict=True)]
        outputs = self._engine.run(joined)
        return [[output[i : i + 1] for output in outputs] for i in range(len(batch))]

    def _deliver(self, request: _Request, served: Served[Tensors]) -> Answer:
        """finish what the engine gave."""
        before = perf_counter()
        outputs = self._finisher(served.result)
        timings = request.timings
        timings["queue"], timings["engine"] = served.queued_s * 1e3, served.ran_s * 1e3
        timings["finish"] = (perf_counter() - before) * 1e3
        self._learned.add((served.queued_s + served.ran_s) * 1e3)
        self._keep(request, outputs)
        return self._answer(request, outputs, "device")

    def _keep(self, request: _Request, outputs: Outputs) -> None:
        """store, and wake the followers."""
        if request.leads is not None and self._cache is not None:
            key, request.leads = request.leads, None
            self._cache.put(key, outputs)
            self._flights.land(key, outputs)

    def _follow(self, request: _Request, outputs: Outputs) -> Answer:
        request.timings["joined"] = (perf_counter() - request.start) * 1e3
        return self._answer(request, outputs, "device")

    def _answer(self, request: _Request, outputs: Outputs, source: Source) -> Answer:
        total = (perf_counter() - request.start) * 1e3
        request.timings["total"] = total
        met = None if request.budget_ms is None else total <= request.budget_ms
        self._meter.record(source, total, met)
        return Answer(outputs, source, request.timings, met, self._contract)

    def _settle(self, answer: Future[Answer], request: _Request, done: Future[Any], finish: Any) -> None:
        """Carry a finished future over to the caller's, whatever happened to either."""
        wanted = answer.set_running_or_notify_cancel()
        outer, self._settling.now = self._settling.now, True
        try:
            self._settle_now(answer, request, done, finish, wanted)
        finally:
            self._settling.now = outer

    def _settle_now(
        self, answer: Future[Answer], request: _Request, done: Future[Any], finish: Any, wanted: bool
    ) -> None:
        try:
            result = finish(request, done.result())
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            self._fail(request, error)
            if wanted:
                answer.set_exception(error)
            return
        if wanted:
            answer.set_result(result)

    def _fail(self, request: _Request, error: BaseException) -> None:
        """Count the error; a leader's followers must hear of it too."""
        if request.leads is not None:
            key, request.leads = request.leads, None
            followed = (
                error if isinstance(error, Exception) else EngineError("the request this one joined was interrupted")
            )
            self._flights.crash(key, followed)
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

    def _measure_batch(self) -> int:
        """What batch pays here, measured at the warm-up; 1 where the artifact's batch axis is fixed."""
        free = all(tensor.free_batch for tensor in (*self._entry.inputs, *self._entry.outputs))
        if not free or self._contract.state != "none" or os.environ.get("EDGEKIT_BATCH") == "off":
            return 1
        single = [np.zeros((1, *tensor.shape[1:]), tensor.dtype) for tensor in self._entry.inputs]

        def seconds(n: int) -> float:
            joined = [np.repeat(tensor, n, axis=0) for tensor in single]
            return best_of(lambda: self._engine.run(joined))

        return batch_that_pays(seconds)

    def _need_hosts(self) -> Hosts:
        assert self._hosts is not None
        return self._hosts
