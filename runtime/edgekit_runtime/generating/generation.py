"""One answer, while it is generated.

    for piece in model.generate("Where is the depot?"): print(piece, end="")
    async for piece in model.generate("Where is the depot?"): ...
    answer = model.generate("Where is the depot?"); answer.read()       # all of it
    answer.source, answer.finish, answer.first_ms, answer.tokens_per_s

Rules:
- nothing is asked before the first token is; leaving the loop, or `close`, ends the work on the device or the server;
- stop strings are left out, also where two pieces share one;
- a server that fails before its first token makes way for the next choice of the budget; one that is cut later raises
  HostError (host-cut), or is continued by the device with resume=True; `cut` says why;
- each answer is counted once, with its source and the time to its first token.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from edgekit_runtime.remote.chunks import Chunk, StopStrings
from edgekit_runtime.system.errors import HostError, InputError

if TYPE_CHECKING:
    from edgekit_runtime.generating.options import TextRequest


class Feed(Protocol):
    """Chunks from one source. `cancel` from any thread; `ended` once, with its outcome."""

    source: str

    def __iter__(self) -> Iterator[Chunk]: ...
    def cancel(self) -> None: ...
    def ended(self, *, complete: bool) -> None: ...
    def cut(self, error: HostError) -> None: ...


class GeneratedText:
    """An answer. Iterate it, or `read` it; in one thread or task.

    text: what came so far.
    source: "device" or "host", of the last piece; empty before the first.
    finish: "stop" (the model ended it, or a stop string), "length" (max_tokens, or a full cache), "cancelled";
        None before the end.
    tokens: of the answer so far. reused: of the prompt, that were not computed again; None if not known.
    first_ms: from the call to the first token. met_budget: None without a budget.
    cut: why a server's stream ended early, if the device went on.
    """

    def __init__(
        self,
        request: TextRequest,
        open_feed: Callable[[TextRequest], Feed],
        done: Callable[[GeneratedText, BaseException | None], None],
        *,
        budget_ms: float | None,
        resume: Callable[[TextRequest], Feed] | None,
        again: Callable[[], TextRequest | None],
    ) -> None:
        self._request, self._open, self._done, self._resume, self._again = request, open_feed, done, resume, again
        self._start, self._budget_ms = perf_counter(), budget_ms
        self._stop = StopStrings(request.stops)
        self._feed: Feed | None = None
        self._chunks: Iterator[Chunk] | None = None
        self._reading, self._left = threading.Lock(), False
        self._before, self._reason = 0, "stop"
        self.text, self.source, self.cut = "", "", ""
        self.finish: str | None = None
        self.tokens = 0
        self.reused: int | None = None
        self.first_ms: float | None = None
        self.last_ms: float | None = None

    @property
    def met_budget(self) -> bool | None:
        if self._budget_ms is None or self.first_ms is None:
            return None
        return self.first_ms <= self._budget_ms

    @property
    def tokens_per_s(self) -> float | None:
        """Of the tokens behind the first; None with fewer than two."""
        if self.first_ms is None or self.last_ms is None or self.tokens < 2 or self.last_ms <= self.first_ms:
            return None
        return (self.tokens - 1) / (self.last_ms - self.first_ms) * 1e3

    def read(self) -> str:
        """All of the answer. Raises as the iteration does."""
        list(self)
        return self.text

    async def aread(self) -> str:
        async for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """End it, from any thread. Idempotent."""
        self._left = True
        if self._feed is not None and self.finish is None:
            self._feed.cancel()
        if self._reading.acquire(blocking=False):  # else the reader sees the end
            try:
                self._end("cancelled")
            finally:
                self._reading.release()

    def __iter__(self) -> Iterator[str]:
        """Raises BudgetExceeded, EngineError, HostError, InputError (context-full)."""
        try:
            while (piece := self._next()) is not None:
                yield piece
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        import asyncio

        try:
            while (piece := await asyncio.to_thread(self._next)) is not None:
                yield piece
        finally:
            self.close()

    def _next(self) -> str | None:
        """The next piece with text; None at the end."""
        with self._reading:
            try:
                while self.finish is None and not self._left:
                    if (piece := self._advance()) and not self._left:
                        self.text += piece
                        return piece
            except BaseException as error:
                self._end("cancelled" if self._left else "error", None if self._left else error)
                if self._left:
                    return None
                raise
            if self._left:
                self._end("cancelled")
            return None

    def _advance(self) -> str:
        if self._chunks is None:
            self._begin(self._open(self._request))
        assert self._feed is not None
        assert self._chunks is not None
        try:
            chunk = next(self._chunks, None)
        except InputError as error:
            shorter = self._again() if error.code == "context-full" and not self.text else None
            if shorter is None:
                raise
            self._feed.ended(complete=False)
            self._request = shorter
            self._begin(self._open(shorter))
            return ""
        except HostError as error:
            if self._resume is None or error.code != "host-cut" or self._left:
                self._feed.cut(error)
                raise
            self.cut = str(error)
            self._feed.cut(error)
            self._feed.ended(complete=False)
            self._before = self.tokens
            self._begin(self._resume(self._request.continued(self.text + self._stop.rest(), self.tokens)))
            return ""
        if chunk is None:
            return "" if self._left else self._finished()
        if chunk.text:
            self.last_ms = (perf_counter() - self._start) * 1e3
            self.first_ms = self.last_ms if self.first_ms is None else self.first_ms
            self.tokens += 1
        self.tokens = self.tokens if chunk.tokens is None else self._before + chunk.tokens
        self.reused = self.reused if chunk.reused is None else chunk.reused
        piece = self._stop.feed(chunk.text)
        if self._stop.found is not None:
            self._feed.cancel()
            return piece + self._finished()
        if chunk.finish is not None:
            self._reason = "length" if chunk.finish == "length" else "stop"
        return piece

    def _begin(self, feed: Feed) -> None:
        self._feed, self._chunks, self.source = feed, iter(feed), feed.source
        if self._left:
            feed.cancel()

    def _finished(self) -> str:
        """The rest of the text."""
        self._end("stop" if self._stop.found is not None else self._reason)
        return self._stop.rest()

    def _end(self, finish: str, error: BaseException | None = None) -> None:
        """Count it, once."""
        if self.finish is not None:
            return
        self.finish = finish
        if self._feed is not None:
            self._feed.ended(complete=finish in ("stop", "length"))
        self._done(self, error)
