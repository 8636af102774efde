"""Generates on the device or on a server, by who will give the first piece in time.

    generator = Generator(engine, chat=True, forecast=forecast, hosts=hosts, meter=meter)
    generator.generate("Where is the depot?", budget_ms=500)

Rules:
- `budget.decide` decides, as for tensors: the device if its first piece is likely in time, else the likelier server;
- without a budget the device answers; a request that none would begin in time is refused at once;
- a server that fails before its first piece is left out, and what is left of the budget decides again;
- at most `queue` answers are open on the device, more are QueueFull.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgekit_runtime.generating.forecast import STEP_BYTES, ActivePrompt, Forecast
from edgekit_runtime.generating.generation import Feed, GeneratedText
from edgekit_runtime.generating.options import Prompt, TextRequest, check_request
from edgekit_runtime.policy.budget import HostOutlook, OffloadDecision, decide
from edgekit_runtime.remote.chunks import Chunk, read_chunk
from edgekit_runtime.system.errors import (
    BudgetExceeded,
    ClosedError,
    EdgekitError,
    EngineError,
    HostError,
    QueueFull,
    WireError,
    model_closed,
)
from edgekit_runtime.system.records import record

if TYPE_CHECKING:
    from edgekit_runtime.contract.spec import Contract
    from edgekit_runtime.engines.llamacpp import EventStream, LlamaEngine
    from edgekit_runtime.loading.readiness import PreparedEngine
    from edgekit_runtime.remote.hosts import Hosts
    from edgekit_runtime.remote.openai import OpenAiStream
    from edgekit_runtime.telemetry.meter import Meter

_OUT = HostOutlook(ready=False)


@record(frozen=True)
class GenerationStats:
    """context: tokens that the cache holds; kv_mb: what it takes, MB (1e6 bytes).
    active: answers that are open on the device.
    answers, tokens: generated here since the model was opened, and by hosts.
    tokens_per_s: of the last answer; first_ms: its time to the first piece. None before one, or if not known.
    reused: tokens of its prompt that were not computed again.
    """

    context: int
    kv_mb: float
    active: int
    answers: int
    tokens: int
    tokens_per_s: float | None
    first_ms: float | None
    reused: int | None


class Generator:
    """Thread-safe."""

    def __init__(
        self,
        engine: LlamaEngine,
        *,
        chat: bool,
        forecast: Forecast,
        hosts: Hosts | None,
        meter: Meter,
        queue: int = 1024,
        throttle_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._engine, self._chat, self._forecast, self._hosts = engine, chat, forecast, hosts
        self._meter, self._queue, self._throttle_s, self._clock = meter, queue, throttle_s, clock
        self._changed = threading.Condition()
        self._open = weakref.WeakSet[GeneratedText]()  # one that is never read is no one's
        self._closed = False
        self._answers = self._tokens = 0
        self._last: GeneratedText | None = None

    def generate(
        self,
        prompt: Prompt,
        *,
        budget_ms: float | None = None,
        resume: bool = False,
        ended: Callable[[GeneratedText], None] = lambda answer: None,
        shorter: Callable[[], Prompt | None] = lambda: None,
        **options: Any,
    ) -> GeneratedText:
        """See `Model.generate`. shorter: another prompt for one that is too long, or None."""
        request = check_request(prompt, chat=self._chat, **options)
        if self._closed:
            raise model_closed()
        start = self._clock()
        try:
            decision = self._decide(request, start, budget_ms, set())
        except BudgetExceeded as error:
            self._count_error(error)
            raise
        first: list[OffloadDecision] = [decision]

        def open_feed(asked: TextRequest) -> Feed:
            failed: set[int] = set()
            while True:
                chosen = first.pop() if first else self._decide(asked, start, budget_ms, failed)
                if chosen.destination != "host":
                    return self._on_device(asked)
                assert chosen.host is not None
                assert budget_ms is not None
                try:
                    return self._on_host(chosen.host, asked, self._left_ms(start, budget_ms) / 1e3)
                except HostError as error:
                    failed.add(chosen.host)
                    try:
                        first.append(self._decide(asked, start, budget_ms, failed))
                    except BudgetExceeded as refusal:
                        raise refusal from error

        def done(answer: GeneratedText, error: BaseException | None) -> None:
            self._done(answer, error)
            ended(answer)

        def again() -> TextRequest | None:
            prompt = shorter()
            return None if prompt is None else check_request(prompt, chat=self._chat, **options)

        resumed = self._on_device if resume else None
        generation = GeneratedText(
            request, open_feed, done, budget_ms=budget_ms, resume=resumed, again=again, clock=self._clock
        )
        with self._changed:
            self._open.add(generation)
        return generation

    def stats(self) -> GenerationStats:
        last = self._last
        return GenerationStats(
            self._engine.context,
            self._engine.kv_mb,
            self._engine.host.active,
            self._answers,
            self._tokens,
            None if last is None else last.tokens_per_s,
            None if last is None else last.first_ms,
            None if last is None else last.reused,
        )

    def drain(self, timeout_s: float) -> None:
        """Take no more, let open answers end, cancel the rest."""
        self._closed = True
        with self._changed:
            self._changed.wait_for(lambda: not any(one.source for one in self._open), timeout_s)
            left = list(self._open)
        for generation in left:
            generation.close()

    def _left_ms(self, start: float, budget_ms: float) -> float:
        return budget_ms - (self._clock() - start) * 1e3

    def _decide(self, request: TextRequest, start: float, budget_ms: float | None, failed: set[int]) -> OffloadDecision:
        """Raises BudgetExceeded."""
        outlook, hosts = self._forecast.outlook(request.key, self._throttle_s() * 1e3), self._hosts
        if budget_ms is None:
            return decide(None, outlook)
        known: list[HostOutlook] = []
        if hosts is not None:
            hosts.matter()
            hosts.look()
            known = [_OUT if n in failed else one for n, one in enumerate(hosts.outlooks(request.size))]
        left_ms = self._left_ms(start, budget_ms)
        decision = decide(left_ms, outlook, known)
        if decision.destination == "neither":
            what = f"no first piece expected within {budget_ms:g} ms: {left_ms:.3g} ms are left, and the device would "
            what += f"take {decision.predicted_ms:.3g} ms"
            raise BudgetExceeded(what, do="Allow more time, add a host, or shorten the prompt")
        return decision

    def _on_device(self, request: TextRequest) -> Feed:
        if self._engine.host.active >= self._queue:
            what = f"{self._queue} answers are open already"
            raise QueueFull(what, do="Wait for one to end, or raise ModelLimits(queue=)")
        begun = self._forecast.begin(request.key)
        try:
            body = {**request.body, "stream": True, "cache_prompt": True, "return_progress": True}
            stream = self._engine.stream(request.way, body)
            return _DeviceFeed(stream, self._forecast, begun, self._clock, self._throttle_s())
        except BaseException:
            self._forecast.ended(begun, None)
            raise

    def _on_host(self, index: int, request: TextRequest, left_s: float) -> Feed:
        assert self._hosts is not None
        stream = self._hosts.generate(index, request.size, request.way, request.body, left_s)
        return _HostFeed(stream, self._hosts, index, request.size)

    def _done(self, generation: GeneratedText, error: BaseException | None) -> None:
        with self._changed:
            self._open.discard(generation)
            self._changed.notify_all()
        if error is not None:
            if not isinstance(error, ClosedError):
                self._count_error(error)
            return
        if generation.first_ms is None:
            return
        self._answers, self._tokens, self._last = self._answers + 1, self._tokens + generation.tokens, generation
        self._meter.record(generation.source, generation.first_ms, generation.met_budget)

    def _count_error(self, error: BaseException) -> None:
        if isinstance(error, BudgetExceeded):
            self._meter.refused()
        self._meter.error(error.code if isinstance(error, EdgekitError) else type(error).__name__)


def generator_of(
    prepared: PreparedEngine,
    hosts: Hosts | None,
    meter: Meter,
    contract: Contract,
    queue: int,
    throttle_s: Callable[[], float],
) -> Generator:
    """Of an opened bundle: a golden example's time is the first that the forecast knows.

    throttle_s: what a drill adds to each answer."""
    from edgekit_runtime.engines.llamacpp import SLOTS, LlamaEngine

    engine = prepared.engine.single
    assert isinstance(engine, LlamaEngine)
    assert contract.generation is not None
    example_ms = prepared.costs.get(1, prepared.ready.first_ms / 1e3) * 1e3
    forecast = Forecast(SLOTS, example_ms, STEP_BYTES)
    return Generator(
        engine,
        chat=contract.generation.chat,
        forecast=forecast,
        hosts=hosts,
        meter=meter,
        queue=queue,
        throttle_s=throttle_s,
    )


class _DeviceFeed:
    source = "device"

    def __init__(
        self,
        stream: EventStream,
        forecast: Forecast,
        begun: ActivePrompt,
        clock: Callable[[], float],
        throttle_s: float,
    ) -> None:
        self._stream, self._forecast, self._begun, self._clock = stream, forecast, begun, clock
        self._start, self._first, self._throttle_s, self._left = clock(), True, throttle_s, threading.Event()

    def __iter__(self) -> Iterator[Chunk]:
        if self._throttle_s:
            self._left.wait(self._throttle_s)
        for event in self._stream:
            try:
                chunk = read_chunk(event)
            except WireError as error:
                raise EngineError(f"llama.cpp: {error.what}") from error
            if self._first and (chunk.text or chunk.finish):
                self._first = False
                self._forecast.first(self._begun, (self._clock() - self._start) * 1e3)
            yield chunk

    def cancel(self) -> None:
        self._left.set()
        self._stream.cancel()

    def ended(self, *, complete: bool) -> None:
        if not complete:
            self._stream.cancel()
        self._forecast.ended(self._begun, (self._clock() - self._start) * 1e3 if complete else None)

    def cut(self, error: HostError) -> None:
        """Never of a device."""


class _HostFeed:
    source = "host"

    def __init__(self, stream: OpenAiStream, hosts: Hosts, index: int, size: int) -> None:
        self._stream, self._hosts, self._index, self._size = stream, hosts, index, size

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._stream)

    def cancel(self) -> None:
        self._stream.cancel()

    def ended(self, *, complete: bool) -> None:
        self._stream.close()

    def cut(self, error: HostError) -> None:
        self._hosts.cut(self._index, self._size, error)
