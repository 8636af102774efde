"""The facade: one object an application embeds. `journey` is a request's way through it.

    with open_bundle("digits.ekb") as model:
        answer = model.predict(image, budget_ms=20)

Rules:
- a model is ready when `open_bundle` returns: verified, self-tested, warm;
- `predict`, `submit` and `apredict` go the same journey, through the same batcher;
- `swap` changes the bundle between two requests: each request is answered by one bundle, and none is lost;
- so does a candidate that was measured to be faster, while the counts, the reports and the hosts stay.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgekit_runtime.batching.batcher import BatchStats
from edgekit_runtime.cache.memory_tier import MemoryCache
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.cache.tiered import Cache, CacheStats
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.engines.registry import Arithmetic
from edgekit_runtime.policy.options import CacheOptions, Options, check_number
from edgekit_runtime.serving.device import ON_LOOP_S
from edgekit_runtime.serving.fast_path import compile_fast_path
from edgekit_runtime.serving.journey import Journey
from edgekit_runtime.serving.opened import OpenedBundle
from edgekit_runtime.serving.request import Answer, Request, checked_budget
from edgekit_runtime.serving.session import Session, SessionParts, Sessions
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import ClosedError, ContractError, model_closed
from edgekit_runtime.system.faults import Faults
from edgekit_runtime.system.memory import scarce
from edgekit_runtime.system.records import asdict, field, record, replace
from edgekit_runtime.system.watchdog import Health
from edgekit_runtime.telemetry.meter import Counts, Meter, MeterStats
from edgekit_runtime.telemetry.slow import SlowWatch

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import Manifest
    from edgekit_runtime.bundle.reader import Bundle
    from edgekit_runtime.cache.bounded import BoundStats
    from edgekit_runtime.generating.dialogue import Dialogue
    from edgekit_runtime.generating.generation import GeneratedText
    from edgekit_runtime.generating.generator import GenerationStats
    from edgekit_runtime.generating.options import Prompt
    from edgekit_runtime.loading.readiness import PreparedEngine
    from edgekit_runtime.serving.choice_beside import ChoiceBeside
    from edgekit_runtime.serving.describe_and_stats import ModelDescription
    from edgekit_runtime.serving.doubtful import Doubts
    from edgekit_runtime.serving.shadow import Shadow
    from edgekit_runtime.system.children import StoppableRun
    from edgekit_runtime.telemetry.histogram import CountedWindow, ShadowWindow
    from edgekit_runtime.telemetry.metrics import ModelMetrics
    from edgekit_runtime.telemetry.reporter import Reporter, TelemetryOptions, TelemetryStats
    from edgekit_runtime.telemetry.window import System

    Choose = Callable[[PreparedEngine, Bundle, StoppableRun], PreparedEngine]

MOST_PRIORITY = 1000
_DRAIN_S = 60.0
_LOG = logging.getLogger("edgekit_runtime")


@record(frozen=True)
class Stats:
    """Figures since the model was opened.

    After `swap` cache, queued, max_batch, device_p90_ms, batching and engine_restarts are those of the new bundle.

    meter: answers and latencies.
    cache: cache statistics, None if it is off.
    queued: requests waiting now.
    device_p90_ms: expected latency of the device, from its recent inferences.
    predicted_late: requests run on the device with a chance below 0.9 to be in time.
    telemetry: state of reporting, None if the model does not report.
    batching: batch sizes.
    engine_restarts: number of restarts of an isolated engine (`isolate=True`), None in process.
    faults: part (cache, meter, telemetry) -> number of exceptions that it raised without failing a request.
    arithmetic: of 8-bit sums: `exact`, or `fast`, which may saturate and is used only if the golden answers are
    identical.
    artifact, engine: the recipe in use, and the engine with its version.
    generation: statistics of a language model.
    """

    meter: MeterStats
    cache: CacheStats | None
    queued: int
    max_batch: int
    device_p90_ms: float | None
    predicted_late: int
    telemetry: TelemetryStats | None = None
    batching: BatchStats | None = None
    engine_restarts: int | None = None
    faults: dict[str, int] = field(default_factory=dict)
    arithmetic: Arithmetic = "exact"
    artifact: str = ""
    engine: str = ""
    generation: GenerationStats | None = None


class Companion(Protocol):
    """An object that is closed with its model, such as the server of its metrics."""

    def close(self) -> None: ...


class Model(ClosedOnExit["Model"]):
    """An open bundle, returned by `open_bundle`. Thread-safe.

    In a forked child all methods raise ForkedError, except `health` and `describe`; `close` does nothing.

    opener: opens another bundle the way this one was opened, for `swap`.
    """

    def __init__(
        self, opened: OpenedBundle, options: Options, opener: Callable[[str | os.PathLike[str]], OpenedBundle]
    ) -> None:
        self._options, self._budget_ms = options, options.default_budget_ms
        if self._budget_ms == math.inf:
            self._budget_ms = None
        self._opener = opener
        self._faults = Faults(opened.bundle.manifest.name)
        self._counts, self._predicted_late = Counts(), 0
        self._journey = self._start_journey(opened)
        self._counts.begin(self._journey.meter)
        self._sessions = Sessions(self._session_parts(self._journey))
        self._swapping = threading.Lock()
        self._closed, self._paused = False, 0.0
        self._beside: ChoiceBeside | None = None
        self._reporter: Reporter | None = None
        self._telemetry: TelemetryOptions | None = None
        self._shadow: Shadow | None = None
        self._doubts: Doubts | None = None
        self._accompanying, self._companions = threading.Lock(), weakref.WeakSet[Companion]()
        if opened.held is not None:
            opened.held.accompany(self)

    def __repr__(self) -> str:
        manifest, health = self.manifest, self.health()
        by = f"{self._journey.opened.prepared.entry.recipe} on {self._journey.opened.engine}"
        return f"<Model {manifest.name} version {manifest.version}: {by}, {health.state}>"

    @property
    def contract(self) -> Contract:
        """The inputs of `predict` and the meaning of its outputs."""
        return self._journey.contract

    @property
    def manifest(self) -> Manifest:
        """The manifest of the open bundle."""
        return self._journey.opened.bundle.manifest

    @property
    def kept_form(self) -> KeptForm:
        """The format of this model's answers in the file of `CacheOptions(disk=)`."""
        return self._journey.opened.kept_form()

    def predict(
        self, inputs: Any, *, budget_ms: float | None = None, priority: int = 0, stale_ok: bool = False
    ) -> Answer:
        """Answer one item and wait for the result.

        inputs: for a model with one input, a path, encoded bytes, a PIL image, a uint8 or a float array; for several, a
        dict by name.
        budget_ms: latency budget in milliseconds, None for the default of `open_bundle`; see `answer.met_budget`.
        priority: waiting requests with a higher priority run first.
        stale_ok: if the budget cannot be met, accept an expired cached answer.
        Raises InputError, EngineError, ClosedError, QueueFull; BudgetExceeded if no answer is expected in time;
        SessionError for a model that keeps a state, ForkedError in a child, MissingExtraError for a picture without
        Pillow.
        """
        start = perf_counter()
        budget_ms = self._budget_ms if budget_ms is None else checked_budget(budget_ms)
        request = None if priority == 0 and not stale_ok else _request(budget_ms, priority, stale_ok)
        while True:
            journey = self._journey
            try:
                if request is None:
                    return journey.predict(inputs, budget_ms, start)
                return journey.travel(request, inputs)
            except ClosedError:
                if self._closed or journey is self._journey:  # else: swapped between the two lines above
                    raise

    def submit(
        self, inputs: Any, *, budget_ms: float | None = None, priority: int = 0, stale_ok: bool = False
    ) -> Future[Answer]:
        """As `predict`, without waiting. Bad input raises here; the future carries later errors."""
        request = _request(self._budget_ms if budget_ms is None else checked_budget(budget_ms), priority, stale_ok)
        while True:
            journey = self._journey
            try:
                return journey.submit(request, inputs)
            except ClosedError:
                if self._closed or journey is self._journey:
                    raise

    async def apredict(
        self, inputs: Any, *, budget_ms: float | None = None, priority: int = 0, stale_ok: bool = False
    ) -> Answer:
        """As `predict`, for asyncio. Decodes in this thread; the engine runs in the batcher's.

        If the engine is idle, an inference shorter than ON_LOOP_S also runs in this thread.
        """
        import asyncio

        if self._journey.device.is_short():
            answer = self.predict(inputs, budget_ms=budget_ms, priority=priority, stale_ok=stale_ok)
            if (now := perf_counter()) - self._paused >= ON_LOOP_S:
                self._paused = now
                await asyncio.sleep(0)
            return answer
        request = _request(self._budget_ms if budget_ms is None else checked_budget(budget_ms), priority, stale_ok)
        while True:
            journey = self._journey
            try:
                answered = await journey.wait(request, inputs)
                return answered if isinstance(answered, Answer) else await asyncio.wrap_future(answered)
            except ClosedError:
                if self._closed or journey is self._journey:
                    raise

    def swap(self, path: str | os.PathLike[str], *, timeout_s: float = _DRAIN_S) -> None:
        """Switch to another bundle. Returns once the old one is drained and closed.

        The new bundle is verified, self-tested and warmed up while the old one answers; if that fails, nothing changes.
        It must have the same inputs and outputs.
        timeout_s: time to drain the old one.
        Raises ContractError, ClosedError, and what `open_bundle` raises.
        """
        self._journey.guard.check()
        check_number("timeout_s", timeout_s)
        with self._swapping:
            if self._closed:
                raise model_closed()
            if self.contract.state != "none":
                raise ContractError(
                    "a model that keeps a state cannot be swapped: its sessions would lose it",
                    do="Close this model and open the other bundle",
                )
            opened = self._opener(path)
            try:
                _check_same_use(self._journey.contract, opened)
                with scarce(path):
                    fresh = self._start_journey(opened)
            except BaseException:
                opened.close()
                raise
            self._counts.begin(fresh.meter)
            old = self._journey
            try:
                self._hand_over(fresh, timeout_s)
            finally:
                self._faults.shield("meter", lambda: self._counts.end(old.meter))
            if opened.held is not None:
                opened.held.accompany(self)
            self._faults.shield("telemetry", self._restart_report)

    def choose_beside(self, choose: Choose) -> None:
        """Measure the candidates in the background, and answer with the fastest."""
        from edgekit_runtime.serving.choice_beside import ChoiceBeside

        self._beside = ChoiceBeside(lambda run: self._choose(choose, run), self._faults)

    def _choose(self, choose: Choose, run: StoppableRun) -> None:
        journey = self._journey
        opened, prepared = journey.opened, journey.opened.prepared
        try:
            with scarce(opened.bundle.path):
                chosen = choose(prepared, opened.bundle, run)
                if chosen.engine is prepared.engine:
                    journey.opened = replace(opened, prepared=chosen)
                else:
                    self._change_engine(journey, chosen)
        except Exception as error:
            verdict = replace(prepared.verdict, pending=False, why=f"{prepared.verdict.why}; that failed: {error}")
            journey.opened = replace(opened, prepared=replace(prepared, verdict=verdict))
            raise
        verdict = chosen.verdict
        _LOG.info("%s: %s answers from now on: %s", self.manifest.name, verdict.chosen.label, verdict.why)

    def _change_engine(self, journey: Journey, chosen: PreparedEngine) -> None:
        """Another engine of the same bundle. Counts, reports, hosts and the lease stay."""
        opened, before = journey.opened, journey.opened.prepared
        note = f"{before.verdict.chosen.label} answered until all were measured"
        with self._swapping:
            try:
                if self._closed or self._journey is not journey:
                    raise model_closed()
                chosen = replace(chosen, notes=(*chosen.notes, note))
                fresh = self._start_journey(replace(opened, prepared=chosen), journey.meter)
            except BaseException:
                chosen.close()
                raise
            fresh.device.throttle(journey.device.throttle_s * 1e3)
            journey.opened = replace(opened, hosts=None, held=None)
            self._hand_over(fresh, _DRAIN_S)
        if self._reporter is not None and before.entry.top_scores != chosen.entry.top_scores:
            self._faults.shield("telemetry", self._restart_report)

    def _hand_over(self, fresh: Journey, timeout_s: float) -> None:
        """Answer by another journey from now on, and drain the old one."""
        old, self._journey = self._journey, fresh
        if self._closed:
            fresh.close(0.0)
        try:
            old.retire(timeout_s)
        finally:
            self._predicted_late += old.predicted_late

    def _restart_report(self) -> None:
        """What a report says of the bundle has changed."""
        if self._reporter is not None and self._telemetry is not None:
            self._reporter.close()
            self.report(self._telemetry)

    def session(self) -> Session:
        """Start a session of a stateful model: see `session.Session`.

        Raises SessionError for a stateless model, ClosedError.
        """
        self._journey.guard.check()
        return self._sessions.open()

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] = (),
        temperature: float = 0.0,
        seed: int | None = None,
        budget_ms: float | None = None,
        resume: bool = False,
    ) -> GeneratedText:
        """Generate text: iterate the result token by token, or `read()` it.

        prompt: a text, or messages as `[{"role": "user", "content": "Hello"}]` for a model that takes them.
        max_tokens: maximum length of the answer.
        stop: texts that end the answer and are omitted from it; at most 16 of up to 200 characters.
        temperature: 0 for the most probable token each time, up to 2.
        seed: random seed, None for a different one each time.
        budget_ms: milliseconds until the first token, None for the default of `open_bundle`.
        resume: if a server's stream breaks, continue on the device; else raise HostError (host-cut).
        Raises InputError, OptionError, BudgetExceeded, ClosedError; ContractError for a model that generates no text.
        The iteration raises EngineError, HostError, QueueFull, BudgetExceeded, InputError (context-full).
        """
        options = {"max_tokens": max_tokens, "stop": stop, "temperature": temperature, "seed": seed}
        return self._generate(prompt, budget_ms=budget_ms, resume=resume, **options)

    def _generate(self, prompt: Prompt, *, budget_ms: float | None = None, **options: Any) -> GeneratedText:
        self._journey.guard.check()
        budget_ms = self._budget_ms if budget_ms is None else checked_budget(budget_ms)
        while True:
            journey = self._journey
            if journey.generator is None:
                what = f"the model's task is {journey.contract.task}, and it generates no text"
                raise ContractError(what, do="Call predict(), or build a bundle from a .gguf file")
            try:
                return journey.generator.generate(prompt, budget_ms=budget_ms, **options)
            except ClosedError:
                if self._closed or journey is self._journey:
                    raise

    def dialogue(self, system: str | None = None) -> Dialogue:
        """Start a dialogue with a model that takes messages: see `dialogue.Dialogue`.

        system: the first message, of the system. Raises ContractError for any other model.
        """
        from edgekit_runtime.generating.dialogue import Dialogue

        spec = self.contract.generation
        if spec is None or not spec.chat:
            raise ContractError("the model takes no messages", do="Use a model with a chat template, or generate()")
        return Dialogue(self._generate, system)

    def stats(self) -> Stats:
        journey = self._journey
        journey.guard.check()
        cache, reporter, shield = journey.cache, self._reporter, self._faults.shield
        return Stats(
            self._counts.stats(),
            shield("cache", cache.stats) if cache is not None else None,
            journey.device.batcher.queued,
            journey.device.costs.limit,
            journey.device.outlook().p90_ms,
            self._predicted_late + journey.predicted_late,
            shield("telemetry", reporter.stats) if reporter is not None else None,
            journey.device.batcher.stats(),
            journey.device.engine.restarts,
            self._faults.counts(),
            journey.device.engine.info.arithmetic,
            journey.opened.prepared.entry.recipe,
            journey.opened.engine,
            None if journey.generator is None else journey.generator.stats(),
        )

    def health(self) -> Health:
        """Whether the model can answer, and if not, why."""
        if self._closed:
            return Health("closed")
        if self._journey.guard.forked:
            return Health("dead", "the process was forked after the model was opened")
        device = self._journey.device
        reason = str(device.hung) if device.hung is not None else device.engine.dead
        return Health("ready") if reason is None else Health("dead", reason)

    def describe(self) -> ModelDescription:
        """Describe the open model: bundle, artifact, engine, inputs, self-test, telemetry."""
        from edgekit_runtime.serving.describe_and_stats import describe_model

        reporter = self._reporter
        sent = self._faults.shield("telemetry", reporter.stats) if reporter is not None else None
        return describe_model(self._journey, None if sent is None else asdict(sent))

    def metrics_text(self) -> str:
        """Counters and histograms for Prometheus (text format 0.0.4); see `metrics.serve_metrics`."""
        from edgekit_runtime.telemetry.metrics import metrics_text

        return metrics_text([self.measured()])

    def measured(self) -> ModelMetrics:
        """This model's part of such a page, for a process that holds several."""
        from edgekit_runtime.serving.describe_and_stats import model_metrics

        self._journey.guard.check()
        return model_metrics(self._journey, healthy=self.health().ok)

    def count_dropped(self, frames: int) -> None:
        """Count frames that a newer one replaced: for `stream`, or a loop of your own."""
        journey = self._journey
        journey.faults.shield("meter", lambda: journey.meter.dropped(frames))

    def throttle(self, delay_ms: float) -> None:
        """Make every inference on this device `delay_ms` slower, for tests; 0 ends it."""
        self._journey.device.throttle(delay_ms)

    def flush_cache(self) -> None:
        """Delete all cached answers."""
        self._journey.guard.check()
        cache = self._journey.cache
        if cache is not None:
            cache.flush()

    def report(self, options: TelemetryOptions) -> None:
        """Report to a broker, in a separate thread; `open_bundle(telemetry=...)` calls this.

        Raises MissingExtraError.
        """
        from edgekit_runtime.telemetry.reporter import Reporter
        from edgekit_runtime.telemetry.window import About

        self._journey.guard.check()
        bundle = self._journey.opened.bundle
        manifest, held = bundle.manifest, self._journey.opened.held
        about = About(
            options.device,
            manifest.name,
            manifest.version,
            bundle.digest,
            manifest.target.profile,
            self._usual_budget_ms(manifest),
            self._journey.cache is not None,
            options.site,
            options.group,
            generation=held.number if held is not None else None,
            trial=held is not None and held.state == "trial",
            top_scores=self._journey.opened.prepared.entry.top_scores,
        )
        reporter = Reporter(self._journey.meter, about, options, self._look_at_shadow, self._bound)
        if self._doubts is not None:
            self._doubts.close()
            self._doubts = None
        if reporter.samples is not None and self._journey.contract.state == "none":
            from edgekit_runtime.serving.doubtful import Doubts

            self._doubts = Doubts(reporter.samples, self._journey)
        reporter.start()
        self._reporter, self._telemetry = reporter, options

    def _bound(self) -> BoundStats | None:
        cache = self._journey.cache
        return cache.bound() if cache is not None else None

    def _look_at_shadow(self, system: System, counted: CountedWindow) -> ShadowWindow | None:
        """Begin or end the shadow that the fleet wants; what it did since the last window."""
        journey, shadow = self._journey, self._shadow
        held = journey.opened.held
        task = held.shadow() if held is not None and journey.contract.state == "none" and not self._closed else None
        same = shadow is not None and shadow.journey is journey
        if shadow is not None and not (same and task is not None and shadow.task.sha256 == task.sha256):
            self._shadow = None
            shadow.close()
        if task is not None and self._shadow is None:
            from edgekit_runtime.serving.shadow import Shadow

            self._shadow = Shadow(task, journey)
            return None
        return self._shadow.cut(system, counted) if self._shadow is not None else None

    def close(self, timeout_s: float = 5.0) -> None:
        """Drain for at most timeout_s, fail the rest with ClosedError, free the engine.

        A model that reports spools its last window, and waits up to two seconds for the fleet to confirm it. In a
        forked child it does nothing.
        """
        self._closed = True
        if self._journey.guard.forked:
            return
        if self._beside is not None:
            self._beside.close(timeout_s)
        try:
            self._sessions.close(timeout_s)
            self._journey.close(timeout_s)
            if (shadow := self._shadow) is not None:
                self._faults.shield("shadow", shadow.close)
            if self._reporter is not None:
                self._faults.shield("telemetry", self._reporter.close)
        finally:
            with self._accompanying:
                companions = list(self._companions)
            for companion in companions:
                self._faults.shield("metrics", companion.close)

    def close_with(self, companion: Companion) -> None:
        """Also close this object when the model closes. Holds a weak reference. Raises ClosedError."""
        self._journey.guard.check()
        with self._accompanying:
            self._companions.add(companion)
        if self._closed:
            raise model_closed()

    def __enter__(self) -> Model:
        """Raises ClosedError after `close`."""
        if self._closed:
            raise model_closed()
        return self

    def _start_journey(self, opened: OpenedBundle, meter: Meter | None = None) -> Journey:
        manifest = opened.bundle.manifest
        cache = _cache(opened, self._options.cache) if manifest.contract.state == "none" else None
        budget_ms = self._usual_budget_ms(manifest)
        if meter is None:
            watch = SlowWatch(manifest.name, budget_ms) if budget_ms is not None else None
            meter = Meter(watch, self._faults, budget_ms)
        return Journey(opened, self._options.limits, meter, compile_fast_path, cache, self._faults)

    def _usual_budget_ms(self, manifest: Manifest) -> float | None:
        """Of requests that name none: the one the bundle was opened with, else its own."""
        opened_with = self._options.default_budget_ms
        return manifest.target.budget_ms if opened_with is None else self._budget_ms

    def _session_parts(self, journey: Journey) -> SessionParts:
        opened = journey.opened
        return SessionParts(
            journey.contract,
            opened.prepared.entry,
            opened.bundle.artifact().inputs,
            opened.engine,
            journey.device.batcher.call,
            opened.another,
            partial(journey.count, "device"),
            journey.count_error,
            self.count_dropped,
            budget_ms=self._budget_ms,
        )


def _request(budget_ms: float | None, priority: int, stale_ok: bool) -> Request:
    if not isinstance(priority, (int, np.integer)) or not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise ValueError(
            f"priority must be a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}, not {priority!r:.40}"
        )
    return Request(budget_ms, priority, stale_ok)


def _cache(opened: OpenedBundle, options: CacheOptions) -> Cache | None:
    """The tiers that are wanted, None for none. A shared memory budget resizes the first."""
    claim, most = opened.prepared.claim, options.memory_bytes
    max_bytes = min(round(claim.cache_mb * 1e6), most)
    memory = similar = None
    disk: DiskCache | SharedCache | None = None
    if max_bytes > 0 or (claim.shared and most > 0):
        memory = MemoryCache(max_bytes, ttl_s=options.ttl_s)
    if options.disk is not None:
        from edgekit_runtime.cache.disk import DiskCache

        size = int(options.disk_mb * 2**20)
        disk = DiskCache(options.disk, opened.kept_form(), max_bytes=size, ttl_s=options.ttl_s)
    elif options.shared is not None:
        from edgekit_runtime.cache.shared import SharedCache

        form = opened.kept_form(options.shared_key())
        disk = SharedCache(options.shared, form, ttl_s=options.ttl_s)
    if options.similar is not None:
        from edgekit_runtime.cache.similar import Similar

        similar = Similar(options.similar)
    if memory is None and disk is None and similar is None and options.semantic is None:
        return None
    cache = Cache(memory, disk=disk, similar=similar, semantic=options.semantic)
    if claim.shared and most > 0:
        claim.follow(lambda mb: cache.resize(min(round(mb * 1e6), most)))
    return cache


def _check_same_use(contract: Contract, opened: OpenedBundle) -> None:
    """Raise ContractError if the application's inputs and outputs would change."""
    new = opened.bundle.manifest.contract

    def form(c: Contract) -> list[tuple[str, tuple[int, ...], str]]:
        inputs = [(spec.name, spec.shape, spec.dtype) for spec in c.inputs]
        return inputs + [(spec.name, spec.shape, spec.dtype) for spec in c.outputs]

    if new.task != contract.task or form(new) != form(contract) or new.state != contract.state:
        raise ContractError(
            "its task, inputs or outputs differ from those of the bundle it would replace",
            where=str(opened.bundle.path),
            do="Close this model and open the other bundle",
        )
