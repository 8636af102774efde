"""Generates on the device or on a server, by who will give the first token in time.

    generator = Generator(engine, example_ms, hosts, count, count_error, queue=1024, throttle_s=lambda: 0.0)
    generator.generate("Where is the depot?", budget_ms=500)

Rules:
- `budget.decide` decides, as for tensors: the device if its first token is likely in time, else the likelier server;
- without a budget the device answers; a request that none would begin in time is refused at once;
- a server that fails before its first token is left out, and what is left of the budget decides again;
- at most `queue` answers are open on the device, more are QueueFull;
- each answer is counted once: the time to its first token, and the mean of its later tokens.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgekit_runtime.engines.llamacpp import SLOTS
from edgekit_runtime.generating.forecast import ActivePrompt, Forecast
from edgekit_runtime.generating.generation import Feed, GeneratedText
from edgekit_runtime.generating.options import Prompt, TextRequest, check_request
from edgekit_runtime.policy.budget import HostOutlook, OffloadDecision, decide
from edgekit_runtime.remote.chunks import Chunk, read_chunk
from edgekit_runtime.system.errors import (
    BudgetExceeded,
    ClosedError,
    EngineError,
    HostError,
    QueueFull,
    WireError,
    model_closed,
)
from edgekit_runtime.system.records import record

if TYPE_CHECKING:
    from edgekit_runtime.engines.llamacpp import EventStream, LlamaEngine
    from edgekit_runtime.remote.hosts import Hosts
    from edgekit_runtime.remote.openai import OpenAiStream

_OUT = HostOutlook(ready=False)


@record(frozen=True)
class GenerationStats:
    """context: tokens that the cache holds; kv_mb: what it takes, MB (1e6 bytes).
    active: answers that are open on the device.
    answers, tokens: generated here since the model was opened, and by hosts.
    tokens_per_s: of the last answer; first_ms: its time to the first token. None before one, or if not known.
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
    """Thread-safe.

    example_ms: what a golden example took.
    count, count_error: called once for each answer or error; they do not raise.
    throttle_s: what a drill adds to each answer.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        example_ms: float,
        hosts: Hosts | None,
        count: Callable[[str, float, bool | None, Mapping[str, float]], None],
        count_error: Callable[[BaseException], None],
        queue: int,
        throttle_s: Callable[[], float],
    ) -> None:
        self._engine, self._hosts, self._queue = engine, hosts, queue
        self._count, self._count_error = count, count_error
        self._forecast, self._throttle_s = Forecast(SLOTS, example_ms), throttle_s
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
        shorter: Callable[[], Prompt | None] = lambda: None,
        **options: Any,
    ) -> GeneratedText:
        """See `Model.generate`. shorter: another prompt for one that is too long, or None."""

        def checked(prompt: Prompt) -> TextRequest:
            return check_request(prompt, chat=self._engine.chat, **options)

        request = checked(prompt)
        if self._closed:
            raise model_closed()
        start = perf_counter()
        try:
            first = [self._decide(request, start, budget_ms, set())]
        except BudgetExceeded as error:
            self._count_error(error)
            raise

        def open_feed(asked: TextRequest) -> Feed:
            failed: set[int] = set()
            decision = first.pop() if first else self._decide(asked, start, budget_ms, failed)
            while decision.destination == "host":
                assert decision.host is not None
                assert budget_ms is not None
                try:
                    return self._on_host(decision.host, asked, _left_ms(start, budget_ms) / 1e3)
                except HostError as error:
                    failed.add(decision.host)
                    try:
                        decision = self._decide(asked, start, budget_ms, failed)
                    except BudgetExceeded as refusal:
                        raise refusal from error
            return self._on_device(asked)

        def again() -> TextRequest | None:
            prompt = shorter()
            return None if prompt is None else checked(prompt)

        resumed = self._on_device if resume else None
        generation = GeneratedText(request, open_feed, self._done, budget_ms=budget_ms, resume=resumed, again=again)
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
            *((None, None, None) if last is None else (last.tokens_per_s, last.first_ms, last.reused)),
        )

    def drain(self, timeout_s: float) -> None:
        """Take no more, let open answers end, cancel the rest."""
        self._closed = True
        with self._changed:
            self._changed.wait_for(lambda: not any(one.source for one in self._open), timeout_s)
            left = list(self._open)
        for generation in left:
            generation.close()

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
        left_ms = _left_ms(start, budget_ms)
        decision = decide(left_ms, outlook, known)
        if decision.destination == "neither":
            what = f"no first token expected within {budget_ms:g} ms: {left_ms:.3g} ms are left, and the device would "
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
            return _DeviceFeed(stream, self._forecast, begun, self._throttle_s())
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
        if error is not None and not isinstance(error, ClosedError):
            self._count_error(error)
        if error is not None or generation.first_ms is None:
            return
        self._answers, self._tokens, self._last = self._answers + 1, self._tokens + generation.tokens, generation
        speed = generation.tokens_per_s
        later = {} if speed is None else {"token": 1e3 / speed}
        self._count(generation.source, generation.first_ms, generation.met_budget, later)


def _left_ms(start: float, budget_ms: float) -> float:
    return budget_ms - (perf_counter() - start) * 1e3


class _DeviceFeed:
    source = "device"

    def __init__(self, stream: EventStream, forecast: Forecast, begun: ActivePrompt, throttle_s: float) -> None:
        self._stream, self._forecast, self._begun = stream, forecast, begun
        self._start, self._first, self._throttle_s, self._left = perf_counter(), True, throttle_s, threading.Event()

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
                self._forecast.first(self._begun, (perf_counter() - self._start) * 1e3)
            yield chunk

    def cancel(self) -> None:
        self._left.set()
        self._stream.cancel()

    def ended(self, *, complete: bool) -> None:
        if not complete:
            self._stream.cancel()
        self._forecast.ended(self._begun, (perf_counter() - self._start) * 1e3 if complete else None)

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
