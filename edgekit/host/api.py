"""The Open Inference Protocol's resources: a request in, a response out, without a socket.

    api = Api(repository)
    response = await api.handle(InferenceRequest(head, body, arrived=clock()))

Rule: a failure is a status and `{"error": "..."}`: an edgekit error's message, else a 500 without details and a log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.host.access import Client, Tokens
from edgekit.host.admission import Admission, Lane
from edgekit.host.http1 import Head, RequestError, Response
from edgekit.host.loading import Loader
from edgekit.host.models import Repository, ServedModel
from edgekit_runtime import EdgekitError
from edgekit_runtime.bundle.manifest import RUNTIME_VERSION
from edgekit_runtime.remote.oip import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    Wire,
    decode_request,
    encode_response,
    parse_json,
    peek_request,
)
from edgekit_runtime.system.errors import ClosedError, InputError, WireError
from edgekit_runtime.system.strict_json import MOST_VALUES
from edgekit_runtime.telemetry.metrics import CONTENT_TYPE, family_text, metrics_text

LONG_JSON = 32 * 2**10
"""Longest JSON handled on the event loop. Longer bodies go to a thread, one at a time: parsing takes the memory of one,
whatever the number of connections."""

_OPEN = (("v2", "health", "live"), ("v2", "health", "ready"))
"""Paths open to probes without a token."""

_LOG = logging.getLogger("edgekit.host")


@dataclass(frozen=True)
class InferenceRequest:
    """One inference to answer.

    arrived: time of its first byte, on the api's clock.
    reserve: takes memory for the answer, or raises RequestError.
    client: None if no token is needed.
    """

    head: Head
    body: bytearray
    arrived: float
    reserve: Callable[[int], None] = lambda _: None
    client: Client | None = None


class Api:
    """Belongs to one event loop. tokens: None admits every client. counts: responses by status."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.monotonic) -> None:
        self._repository = repository
        self._clock = clock
        self._lanes = {id(one): Lane(one.models, clock) for one in repository.all()}
        self._loader = Loader(repository, self._lanes, lambda served: Lane(served.models, clock))
        self._long_json = asyncio.Semaphore(1)
        self.tokens: Tokens | None = None
        self.draining = False
        self.counts: Counter[int] = Counter()

    def admit(self, head: Head) -> Client | None:
        """Identify the client by the head. Raises RequestError(401 or 429)."""
        if self.tokens is None or head.segments in _OPEN:
            return None
        match head.segments:
            case ("v2", "models", _, "ready") | ("v2", "models", _, "versions", _, "ready"):
                return self.tokens.admit(head.headers, self._clock(), counts=False)
        return self.tokens.admit(head.headers, self._clock())

    def refuse_early(self, head: Head, text: bytearray, arrived: float) -> Response | None:
        """400 or 503 from the JSON of an inference, before its tensors have come; None to continue."""
        match head.segments:
            case ("v2", "models", name, "infer"):
                version = None
            case ("v2", "models", name, "versions", version, "infer"):
                pass
            case _:
                return None
        try:
            shapes, timeout_us = peek_request(text)
            served = self._repository.find(name, version)
            deadline = None if timeout_us is None else arrived + timeout_us / 1e6
            self._lanes[id(served)].admit(served.count(shapes), deadline)
        except WireError:
            return None
        except RequestError as error:
            if error.status == 404:
                return None
            self.counts[error.status] += 1
            return refusal(error)
        return None

    async def handle(self, request: InferenceRequest) -> Response:
        """Answer one request. Raises nothing but CancelledError."""
        try:
            response = await self._route(request)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            response = refusal(error)
        self.counts[response.status] += 1
        return response

    async def _route(self, request: InferenceRequest) -> Response:
        method, segments = request.head.method, request.head.segments
        match segments:
            case ("v2",):
                own = [BINARY_EXTENSION] + ["model_repository"] * (self._repository.folder is not None)
                return _get(method, {"name": "edgekit", "version": RUNTIME_VERSION, "extensions": own})
            case ("v2", "health", "live"):
                return _get(method, {"live": True})
            case ("v2", "health", "ready"):
                return _get(method, {"ready": True}) if not self.draining else _unready()
            case ("v2", "repository", "index"):
                _allow(method, "POST")
                asked = parse_json(request.body, "the body") if request.body else {}
                return _json(await self._loader.index(ready=asked.get("ready") is True))
            case ("v2", "repository", "models", name, "load" | "unload" as what):
                return await self._change(request, name, what)
            case ("v2", "models", name, "versions", version, *rest):
                return await self._model(request, name, version, rest)
            case ("v2", "models", name, *rest):
                return await self._model(request, name, None, rest)
            case ("metrics",):
                _allow(method, "GET")
                served = [one for one in self._repository.all() if id(one) in self._lanes]
                of_host = host_metrics(self.counts, [(one, self._lanes[id(one)].admission) for one in served])
                of_models = await asyncio.to_thread(
                    lambda: metrics_text([model.measured() for one in served for model in one.models])
                )
                return Response(200, ((of_models + of_host).encode(),), {"Content-Type": CONTENT_TYPE})
        raise RequestError(404, "not found; the protocol starts at /v2")

    async def _change(self, request: InferenceRequest, name: str, what: str) -> Response:
        """Load or unload a model."""
        _allow(request.head.method, "POST")
        if self._repository.folder is None:
            raise RequestError(404, "this server has no model folder")
        if request.client is None or not request.client.admin:
            raise RequestError(403, "this token may not load or unload models")
        if self.draining:
            return _unready()
        parameters = (parse_json(request.body, "the body") if request.body else {}).get("parameters")
        version = parameters.get("version") if isinstance(parameters, dict) else None
        if not (version is None or isinstance(version, str)):
            raise RequestError(400, "parameters.version is not a string")
        _LOG.info("%s asks to %s '%.100s'", request.client.name, what, name)
        await (self._loader.load if what == "load" else self._loader.unload)(name, version)
        return _json({})

    async def _model(self, request: InferenceRequest, name: str, version: str | None, rest: list[str]) -> Response:
        method = request.head.method
        try:
            served = self._repository.find(name, version)
        except RequestError:
            if self._loader.loading(name, version):
                raise RequestError(503, f"'{name}' is loading") from None
            raise
        name = served.manifest.name
        match rest:
            case []:
                return _get(method, served.metadata(self._repository.versions(name)))
            case ["ready"]:
                return _get(method, {"name": name, "ready": True}) if not self.draining else _unready()
            case ["infer"]:
                _allow(method, "POST")
                return await self._infer(request, served)
        raise RequestError(404, "unknown path; a model has /ready and /infer")

    async def _infer(self, request: InferenceRequest, served: ServedModel) -> Response:
        read, lane = self._clock(), self._lanes[id(served)]
        asked = await self._decode(request)
        self._check_identity(asked, served)
        deadline = None if asked.timeout_us is None else request.arrived + asked.timeout_us / 1e6
        items = served.items(asked.inputs)
        if request.client is not None:
            request.client.charge(len(items) - 1)
        request.reserve(len(items) * served.answer_bytes)
        answered = await lane.run(items, deadline)
        outputs = served.outputs([one.answer for one in answered], asked.outputs)
        own = {"edgekit_artifact": served.artifact.blob}
        answer = InferResponse(outputs, served.manifest.name, served.manifest.version, asked.id, own)
        wire = await self._encode(answer, [name for name in outputs if asked.wants_binary(name)])
        queued_ms = max(one.queued_ms for one in answered)
        rest_ms = max(0.0, (self._clock() - read) * 1e3 - queued_ms)
        timing = {"Server-Timing": f"queue;dur={queued_ms:.3f}, infer;dur={rest_ms:.3f}"}
        return Response(200, wire.parts, wire.headers | timing)

    @staticmethod
    def _check_identity(asked: InferRequest, served: ServedModel) -> None:
        """Refuse a device that names another model or contract. Raises RequestError(409)."""
        manifest = served.manifest
        for kind, ours in (("contract", manifest.contract_digest), ("model", manifest.model_id)):
            theirs = asked.parameters.get(f"edgekit_{kind}")
            if theirs is not None and theirs != ours:
                raise RequestError(409, f"'{manifest.name}' is served with a different {kind} than requested")

    async def _decode(self, request: InferenceRequest) -> InferRequest:
        length = request.head.headers.get(HEADER_LENGTH.lower())
        as_json = request.head.json_bytes
        if min(len(request.body), len(request.body) if as_json is None else as_json) <= LONG_JSON:
            return decode_request(request.body, length)
        async with self._long_json:
            return await asyncio.to_thread(decode_request, request.body, length)

    async def _encode(self, answer: InferResponse, binary: list[str]) -> Wire:
        as_json = sum(array.size for name, array in answer.outputs.items() if name not in binary)
        try:
            if as_json * 16 <= LONG_JSON:
                return encode_response(answer, binary=binary)
            if as_json > MOST_VALUES:
                raise WireError(f"the answer has {as_json:,} values", do="Request binary data, or fewer items")
            async with self._long_json:
                return await asyncio.to_thread(encode_response, answer, binary=binary)
        except WireError as error:  # NaN or too many values; the request was right, the form asked for is not
            raise RequestError(400, str(error)) from error


def refusal(error: Exception) -> Response:
    """The response for an exception."""
    if isinstance(error, RequestError):
        later = {"Retry-After": "1"} if error.status == 503 else {}
        return _json({"error": error.what}, error.status, close=error.close, headers={**later, **error.headers})
    if isinstance(error, (WireError, InputError)):
        return _json({"error": str(error)}, 400)
    if isinstance(error, ClosedError):
        return _json({"error": "the model was unloaded or the server is shutting down"}, 503)
    _LOG.error("a request failed", exc_info=error)
    return _json({"error": error.what if isinstance(error, EdgekitError) else "internal error"}, 500)


def _json(value: Any, status: int = 200, *, close: bool = False, headers: Mapping[str, str] | None = None) -> Response:
    own = {"Content-Type": "application/json", **(headers or {})}
    return Response(status, (json.dumps(value).encode(),), own, close)


def _get(method: str, value: Mapping[str, Any]) -> Response:
    _allow(method, "GET")
    return _json(value)


def _unready() -> Response:
    return _json({"error": "the server is shutting down"}, 503)


def _allow(method: str, allowed: str) -> None:
    if method != allowed:
        raise RequestError(405, f"{method} not allowed; use {allowed}", headers={"Allow": allowed})


_STATUSES = (200, 400, 401, 404, 429, 500, 503)
"""Reported from the start, so that the first occurrence yields a rate."""


def host_metrics(responses: Mapping[int, int], served: Sequence[tuple[ServedModel, Admission]]) -> str:
    """The server's own metrics as Prometheus text. served: each model with its admission."""
    counted = sorted({**dict.fromkeys(_STATUSES, 0), **responses}.items())
    statuses = [({"status": str(status)}, number) for status, number in counted]
    text = family_text("edgekit_host_responses_total", "counter", "HTTP responses by status.", statuses)
    for name, meaning, value in _GAUGES:
        samples = [({"model": o.manifest.name, "version": o.manifest.version}, value(at)) for o, at in served]
        text += family_text(f"edgekit_host_{name}", "gauge", meaning, samples)
    return text


_GAUGES: tuple[tuple[str, str, Callable[[Admission], float]], ...] = (
    ("items", "Items of requests waiting or running.", lambda at: at.ahead),
    ("expected_seconds", "Expected time of an inference.", lambda at: (at.typical_ms or 0.0) / 1e3),
    ("margin_seconds", "Margin added to it, learnt from late answers.", lambda at: at.margin_ms / 1e3),
)
