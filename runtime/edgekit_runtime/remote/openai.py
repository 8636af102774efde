"""A server that generates text by OpenAI's protocol: vLLM, llama.cpp, any other.

    model = OpenAiModel(Host("http://gpu-box:8000", protocol="openai"), manifest, example)
    stream, answer = model.open("chat", {"messages": [...], "max_tokens": 100}, timeout_s=0.5)
    answer.total_ms                             # until the first token
    for chunk in stream: print(chunk.text, end="")

Rules:
- the client is that of the tensors' hosts: one deadline, a token that never travels unencrypted, kept connections;
- the deadline is of the first token; each later one may take SILENCE_S, comments that keep a connection open included;
- a stream that ends without a reason to, inside an event or between two, is HostError (host-cut);
- an event of more than MOST_EVENT bytes, anything but an event, and more events than the answer may have tokens are
  host-protocol;
- it is another model than the device's: nothing is compared, and `proven` says that it answered once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgekit_runtime.policy.options import Host
from edgekit_runtime.remote.chunks import Chunk, read_chunk
from edgekit_runtime.remote.client import HostAnswer, HostClient, tls_context, token_reader
from edgekit_runtime.remote.endpoint import Deadline
from edgekit_runtime.system.errors import HostError, WireError

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import Manifest
    from edgekit_runtime.engines.llamacpp import Way
    from edgekit_runtime.loading.replay import ReplayExample
    from edgekit_runtime.remote.pool import StreamedReply

_PATHS: dict[Way, str] = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
SILENCE_S = 30.0
MOST_EVENT = 1 << 20
_MOST_BYTES = 64 << 20
_EMPTY_EVENTS = 256
"""Events without text that an answer may have, and as many again as it has tokens."""


class OpenAiStream:
    """The chunks of one answer. Iterate in one thread; `cancel` from any."""

    def __init__(
        self, reply: StreamedReply, url: str, most_tokens: int, deadline: Deadline, clock: Callable[[], float]
    ) -> None:
        self._reply, self._url, self._clock = reply, url, clock
        self._left = 2 * most_tokens + _EMPTY_EVENTS
        self._deadline: Deadline | None = deadline  # of the first token
        self._finished = self._cancelled = self._closed = False
        self.first: Chunk | None = None

    def begin(self) -> None:
        """Wait for the first token, which the iteration gives again. Raises HostError."""
        while self.first is None:
            chunk = self._read()
            if chunk is None or chunk.text or chunk.finish:
                self.first = chunk or Chunk()
        self._deadline = None

    def __iter__(self) -> Iterator[Chunk]:
        try:
            if self.first is not None:
                yield self.first
            while (chunk := self._read()) is not None:
                yield chunk
        finally:
            self.close()

    def cancel(self) -> None:
        """End it: the server sees a closed connection, and stops."""
        self._cancelled = True
        self._reply.end()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reply.close()

    def _read(self) -> Chunk | None:
        """The next chunk; None at the end. Raises HostError."""
        first, cause = self._deadline is not None, None
        deadline = self._deadline or Deadline(SILENCE_S, self._clock)
        try:
            event = self._event(deadline)
        except TimeoutError as error:
            if first:
                raise self._error("no answer within the time given", "host-late") from error
            raise self._error(f"the stream was silent for {SILENCE_S:g} s", "host-cut") from error
        except OSError as error:
            event, cause = None, str(error)
        if event is None:
            if self._finished or self._cancelled:
                return None
            raise self._error(f"the stream ended before the answer did{f' ({cause})' if cause else ''}", "host-cut")
        if event == b"[DONE]":
            if not self._finished:
                raise self._error("the stream says that it is done, and not why", "host-cut")
            self._reply.read(1)  # to its end, so that the connection can be kept
            return None
        self._left -= 1
        if self._left < 0:
            raise self._error("the stream continues after max_tokens")
        try:
            chunk = read_chunk(event)
        except WireError as error:
            raise self._error(error.what) from error
        self._finished = self._finished or chunk.finish is not None
        return chunk

    def _event(self, deadline: Deadline) -> bytes | None:
        """The data of the next event; None if the stream ends first."""
        parts: list[bytes] = []
        size = 0
        while line := self._reply.line(MOST_EVENT + 1, deadline):
            size += len(line)
            if size > MOST_EVENT:
                raise self._error(f"an event has more than {MOST_EVENT:,} bytes")
            if not line.endswith(b"\n"):
                return None  # the end came inside a line
            line = line.rstrip(b"\r\n")
            if not line and parts:
                return b"\n".join(parts)
            if line.startswith(b"data:"):
                parts.append(line[5:].removeprefix(b" "))
            elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise self._error("a line is not one of a stream of events")
        return None

    def _error(self, what: str, code: str = "host-protocol") -> HostError:
        do = "Ask again, or generate(resume=True), which continues on the device" if code == "host-cut" else ""
        return HostError(what, where=self._url, do=do, code=code)


class OpenAiModel:
    """Thread-safe. Raises HostError (host-address, host-secret). example: not sent."""

    def __init__(
        self,
        host: Host | str,
        manifest: Manifest,
        example: ReplayExample,
        clock: Callable[[], float] = time.monotonic,
        connections: int = 4,
    ) -> None:
        options = Host(host, protocol="openai") if isinstance(host, str) else host
        self._client = HostClient(
            options.url.rstrip("/").removesuffix("/v1"),
            model=options.model or manifest.name,
            most_bytes=_MOST_BYTES,
            token=token_reader(options),
            tls=tls_context(options),
            connections=connections,
            clock=clock,
        )
        self.url, self._proven_at = self._client.url, -1
        self._name, self._clock = options.model, clock
        self._chat = manifest.contract.generation is not None and manifest.contract.generation.chat

    @property
    def proven(self) -> bool:
        """Whether it answered once, and has been there since."""
        return self._proven_at == self._client.changes

    def open(self, way: Way, body: Mapping[str, Any], timeout_s: float) -> tuple[OpenAiStream, HostAnswer]:
        """Ask; the stream once its first token is there, and how long that took. Raises HostError.

        body: as the protocol has it, with `max_tokens`, without the model's name.
        """
        start, deadline = self._clock(), Deadline(timeout_s, self._clock)
        asked = {"model": self._model(timeout_s), **body, "stream": True, "stream_options": {"include_usage": True}}
        reply = self._client.stream(_PATHS[way], json.dumps(asked).encode(), deadline)
        stream = OpenAiStream(reply, self.url, body["max_tokens"], deadline, self._clock)
        try:
            stream.begin()
        except BaseException:
            stream.close()
            raise
        ms = (self._clock() - start) * 1e3
        return stream, HostAnswer({}, ms, ms, None, None)

    def prove(self, timeout_s: float) -> HostAnswer:
        """Ask for one token. Raises HostError."""
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
        body |= {"messages": [{"role": "user", "content": "Hello"}]} if self._chat else {"prompt": "Hello"}
        stream, answer = self.open("chat" if self._chat else "text", body, timeout_s)
        list(stream)
        self._proven_at = self._client.changes
        return answer

    def ping(self, timeout_s: float) -> float:
        """Milliseconds of a round trip. Raises HostError."""
        return self._client.ping(timeout_s, "/v1/models")

    def close(self) -> None:
        self._client.close()

    def _model(self, timeout_s: float) -> str:
        """What the server calls its model: as given, else the first that it lists. Raises HostError."""
        if self._name is None:
            listed = self._client.get("/v1/models", timeout_s).get("data")
            names = [one.get("id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            if not names or not isinstance(names[0], str) or not 0 < len(names[0]) <= 500:
                what = "it lists no model at /v1/models"
                raise HostError(what, where=self.url, do="Name it: Host(model=...)", code="host-refused")
            self._name = names[0]
        return self._name
