"""Language models in GGUF on llama.cpp, in a process of its own.

    engine = load_engine("gguf", data)
    stream = engine.stream("chat", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20})
    for event in stream: ...                    # JSON texts, as an OpenAI-compatible server streams them
    stream.cancel()                             # from any thread; the loop ends
    engine.run([prompt_row("1, 2, 3,", 4)])     # token ids, the most probable each: what golden examples compare

Rules:
- llama.cpp parses strangers' files and allocates by them, so it runs in a child, also with isolate=False. The header
  was checked before;
- the file lies in shared memory, which the child maps: no decrypted model touches a disk, and a restart needs no copy;
- the cache of keys and values is one for all dialogues, within `EngineSetup.kv_mb`. SLOTS of them are computed at once,
  others wait. A prompt gets the slot with which it shares the longest beginning;
- no caller waits for the child to read: a thread writes, and what it has not written yet waits in a queue;
- a child that says nothing for SILENCE_S while it has work is killed. One that dies fails its streams, and the next
  request starts another, MOST_DEATHS times in a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.arena import Arena, frame, frames, read_frame
from edgekit_runtime.engines.isolated import LOAD_LIMIT_S, MOST_DEATHS, EngineChild
from edgekit_runtime.engines.registry import Engine, EngineInfo, EngineSetup, check_inputs
from edgekit_runtime.modelfile.gguf_structure import read_gguf
from edgekit_runtime.system.board import resident_mb
from edgekit_runtime.system.children import crash_signal, interrupt_signal
from edgekit_runtime.system.errors import EdgekitError, EngineError, EngineHung, InputError, ModelFileError, from_json

Way = Literal["chat", "text"]
_Outbox = queue.SimpleQueue[bytes | None]
"""Requests of one child that are not written yet; None behind the last."""
SLOTS = 4
"""Dialogues that are computed together."""
SILENCE_S = 120.0
USUAL_CONTEXT = 4096
"""Tokens of the cache where the caller sets no bound, or fewer if the model has fewer."""
CONTEXT_STEP = 256
"""llama.cpp makes room for so many tokens at a time."""
PROMPT_BYTES, TOKENS = 256, 8
"""Of a golden example: the longest prompt, and the most tokens of its answer."""
_LOAD_BYTES_S = 20e6
_END_S = 2.0


def prompt_row(prompt: str, tokens: int) -> NDArray[np.uint8]:
    """A golden example's input: the number of tokens, the prompt in UTF-8, zeros."""
    row = np.zeros((1, 1 + PROMPT_BYTES), np.uint8)
    text = prompt.encode()
    row[0, 0], row[0, 1 : 1 + len(text)] = tokens, np.frombuffer(text, np.uint8)
    return row


def context_tokens(kv_mb: float | None, kv_bytes_per_token: int, trained: int) -> int:
    """Tokens that the cache holds. Raises EngineError if that is too few."""
    if kv_mb is None:
        return min(trained, USUAL_CONTEXT)
    tokens = min(int(kv_mb * 1e6 / kv_bytes_per_token), SLOTS * trained)
    if tokens < CONTEXT_STEP:
        least = CONTEXT_STEP * kv_bytes_per_token / 1e6
        what = f"kv_mb={kv_mb:g} holds {tokens} tokens of this model, and {CONTEXT_STEP} are the least"
        raise EngineError(what, do=f"Allow at least ModelLimits(kv_mb={least:.3g})")
    return tokens - tokens % CONTEXT_STEP


class EventStream:
    """Events of one request, in order. Iterate in one thread; `cancel` from any."""

    def __init__(self, process: LlamaProcess, number: int) -> None:
        self._process, self._number = process, number
        self.events: queue.SimpleQueue[str | EdgekitError | None] = queue.SimpleQueue()
        self._ended = False

    def __iter__(self) -> Iterator[str]:
        """Raises InputError, EngineError, EngineHung."""
        while not self._ended:
            event = self._process.next_event(self.events)
            if isinstance(event, str):
                yield event
            else:
                self._ended = True
                if event is not None:
                    raise event

    def cancel(self) -> None:
        self._process.cancel(self._number)
        self.events.put(None)


class LlamaProcess:
    """The child, its restarts, and the streams that it serves. Thread-safe."""

    def __init__(self, data: bytes, job: Mapping[str, Any]) -> None:
        self._job, self._model = {**job, "size": len(data)}, Arena.create()
        self._model.write([np.frombuffer(data, np.uint8)])
        self._model.forget()
        self._lock = threading.RLock()
        self._streams: dict[int, EventStream] = {}
        self._child: EngineChild | None = None
        self._outbox: _Outbox = queue.SimpleQueue()
        self._number = self._deaths = self.restarts = 0
        self._heard, self._closed = monotonic(), False
        try:
            self._running()
        except BaseException:
            self.close()
            raise

    @property
    def dead(self) -> str | None:
        """Why no child is started any more, else None."""
        return f"llama.cpp's process died {self._deaths} times in a row" if self._deaths >= MOST_DEATHS else None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    @property
    def resident_mb(self) -> float | None:
        return None if self.pid is None else resident_mb(self.pid)

    @property
    def active(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    def stream(self, way: Way, body: Mapping[str, Any]) -> EventStream:
        """Raises EngineError."""
        with self._lock:
            self._running()
            self._number += 1
            stream = self._streams[self._number] = EventStream(self, self._number)
            if len(self._streams) == 1:
                self._heard = monotonic()
            job = {"number": self._number, "way": way, "body": json.dumps(body)}
            self._outbox.put(frame(b"g", json.dumps(job).encode()))
            return stream

    def cancel(self, number: int) -> None:
        with self._lock:
            if self._streams.pop(number, None) is not None:
                self._outbox.put(frame(b"c", json.dumps({"number": number}).encode()))

    def next_event(self, events: queue.SimpleQueue[str | EdgekitError | None]) -> str | EdgekitError | None:
        """The next event; EngineHung, and the child's end, after a silence of SILENCE_S."""
        while True:
            try:
                return events.get(timeout=1.0)
            except queue.Empty:
                silent_s = monotonic() - self._heard
            if silent_s >= SILENCE_S:
                child = self._child
                if child is not None:
                    child.process.kill()
                return EngineHung(
                    f"llama.cpp said nothing for {silent_s:.0f} s; its process was killed", do="Try again"
                )

    def close(self) -> None:
        """End the child; open streams end with EngineError. Idempotent."""
        self._closed = True
        child, self._child = self._child, None
        self._outbox.put(None)
        if child is not None:
            child.end(_END_S)
        self._model.close()

    def _running(self) -> None:
        """Start the child, again if it died. The lock is held."""
        if self._closed:
            raise EngineError("the engine was closed", do="Open the bundle again")
        child = self._child
        if child is not None and child.process.poll() is None:
            return
        if self.dead is not None:
            raise EngineError(self.dead, do="Open the bundle again, with a smaller model or ModelLimits(kv_mb=)")
        if child is not None:
            child.end(0)
            self.restarts += 1
        child = EngineChild("edgekit_runtime.engines.llamacpp_child", arena=self._model)
        try:
            self._load(child)
        except BaseException:
            child.end(0)
            raise
        self._child, self._outbox = child, queue.SimpleQueue()
        answers, requests = os.fdopen(os.dup(child.from_child), "rb"), os.fdopen(os.dup(child.to_child), "wb")
        for work in ((self._listen, child, answers, self._outbox), (_deliver, requests, self._outbox)):
            threading.Thread(target=work[0], args=work[1:], name="edgekit-llama", daemon=True).start()

    def _load(self, child: EngineChild) -> None:
        """Raises EngineError."""
        limit_s = LOAD_LIMIT_S + self._job["size"] / _LOAD_BYTES_S
        with contextlib.suppress(BrokenPipeError):  # there is no answer then, either
            os.write(child.to_child, frame(b"l", json.dumps(self._job).encode()))
        if not child.poll.poll(limit_s * 1e3):
            raise EngineError(f"llama.cpp did not load the model within {limit_s:.0f} s", do="Use a smaller model")
        answer = read_frame(child.from_child)
        if answer is None:
            self._deaths += 1
            raise EngineError(f"llama.cpp's process died while it loaded the model ({_end_of(child)})", do="Try again")
        if answer[0] == b"e":
            raise from_json(json.loads(answer[1])["error"], EngineError)

    def _listen(self, child: EngineChild, answers: IO[bytes], outbox: _Outbox) -> None:
        """Pass events on until the child ends."""
        for operation, body in frames(answers):
            self._heard = monotonic()
            value = json.loads(body)
            with self._lock:
                stream = self._streams.get(value["number"])
                if stream is not None and operation != b"t":
                    del self._streams[value["number"]]
            if stream is None:
                continue
            self._deaths = 0
            if operation == b"t":
                stream.events.put(value["event"])
            else:
                stream.events.put(None if operation == b"d" else from_json(value["error"], EngineError))
        outbox.put(None)
        with self._lock:
            lost, self._streams = self._streams, {}
            self._deaths += bool(lost)
        if self._closed:
            error = EngineError("the engine was closed", do="Open the bundle again")
        else:
            error = EngineError(f"llama.cpp's process died ({_end_of(child)}); it will be restarted", do="Try again")
        for stream in lost.values():
            stream.events.put(error)


def _deliver(requests: IO[bytes], outbox: _Outbox) -> None:
    """Write each frame, until None or the child's end."""
    with contextlib.suppress(BrokenPipeError), requests:
        while (request := outbox.get()) is not None:
            requests.write(request)
            requests.flush()


def _end_of(child: EngineChild) -> str:
    code = child.process.wait()
    return crash_signal(code) or interrupt_signal(code) or f"exit code {code}"


class LlamaEngine(Engine):
    """One model. `run` takes golden examples; `stream` everything else, from any thread.

    context: tokens of all dialogues together. kv_mb: what their keys and values take.
    """

    def __init__(self, module: Any, info: EngineInfo, form: str, data: bytes, setup: EngineSetup) -> None:
        try:
            model = read_gguf(data)
        except ModelFileError as error:
            raise EngineError(f"llama.cpp {info.version} refuses the artifact: {error.what}") from error
        if not sys.executable or getattr(sys, "frozen", False):  # also where self-tests start no child
            raise EngineError("llama.cpp needs a process of its own, and none can be started here")
        self.info, self.chat = info, model.chat
        self.context = context_tokens(setup.kv_mb, model.kv_bytes_per_token, model.context)
        self.kv_mb = self.context * model.kv_bytes_per_token / 1e6
        job = {"context": self.context, "slots": SLOTS, "threads": info.threads, "confidential": not setup.keep}
        self.host = LlamaProcess(data, job)
        self.inputs = (TensorSpec("prompt", "prompt", "uint8", (1, 1 + PROMPT_BYTES)),)
        self.outputs = (TensorSpec("tokens", "tokens", "int32", (1, TOKENS)),)

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """A row of `prompt_row` -> token ids, the most probable each; -1 behind the last."""
        check_inputs(self, inputs)
        row = inputs[0][0]
        found = self.probable(bytes(row[1:]).rstrip(b"\0").decode(), max(1, min(TOKENS, int(row[0]))))
        ids = [one["id"] for one in found]
        return [np.array([(ids + [-1] * TOKENS)[:TOKENS]], np.int32)]

    def probable(self, prompt: str, tokens: int, *, others: int = 1) -> list[dict[str, Any]]:
        """The next tokens as llama.cpp lists them: `id`, `logprob`, `top_logprobs` of `others`."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "logprobs": others, "cache_prompt": False}
        try:
            (event,) = self.stream("text", body)
            found: list[dict[str, Any]] = json.loads(event)["choices"][0]["logprobs"]["content"]
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"llama.cpp's answer has no tokens ({error!r})", where=self.info.name) from error
        except InputError as error:
            raise EngineError(error.what, where=self.info.name) from error
        return found

    def stream(self, way: Way, body: Mapping[str, Any]) -> EventStream:
        """Ask as an OpenAI-compatible server is asked, for a chat or a text. Raises EngineError."""
        return self.host.stream(way, body)

    def close(self) -> None:
        self.host.close()
