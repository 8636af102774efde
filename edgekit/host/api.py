"""The Open Inference Protocol's resources: a request that was read in, a response out. No socket is known here.

    api = Api(repository)
    response = await api.handle(Request(head, body, arrived=clock()))

Every failure is a status and `{"error": "..."}`; what is an edgekit error has a word for the client, anything else is a
500 without details, and goes to the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgekit import __version__
from edgekit.host.errors import RequestError
from edgekit.host.http1 import Head, Response
from edgekit.host.lane import Lane
from edgekit.host.models import Repository, Served
from edgekit_runtime import EdgekitError
from edgekit_runtime.errors import ClosedError, InputError, WireError
from edgekit_runtime.remote.oip import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    Wire,
    decode_request,
    encode_response,
)
from edgekit_runtime.strict_json import MOST_VALUES

__all__ = ["Api", "Request", "refusal"]

_LONG_JSON = 32 * 2**10
"""Bytes of JSON that are parsed or written on the event loop. More is done beside it, one body at a time: so the memory
that parsing takes is that of one body, whatever the number of connections."""

_LOG = logging.getLogger("edgekit.host")


@dataclass(frozen=True)
class Request:
    """arrived: when its first byte came, on the api's clock. reserve: memory for the answer, before it is worked out;
    raises RequestError where there is none left."""

    head: Head
    body: bytearray
    arrived: float
    reserve: Callable[[int], None] = lambda _: None


class Api:
    """Belongs to one event loop. counts: responses by status, since the start."""

    def __init__(self, repository: Repository, clock: Callable[[], float] = time.monotonic) -> None:
        self._repository = repository
        self._clock = clock
        self._lanes = {id(one): Lane(one.model, clock) for one in repository.all()}
        self._long_json = asyncio.Semaphore(1)
        self.draining = False
        self.counts: Counter[int] = Counter()

    async def handle(self, request: Request) -> Response:
        """Never raises but for cancellation."""
        try:
            response = await self._route(request)
        except Exception as error:  # noqa: BLE001 - a server answers whatever happens
            response = refusal(error)
        self.counts[response.status] += 1
        return response

    async def _route(self, request: Request) -> Response:
        method, segments = request.head.method, request.head.segments
        match segments:
            case ("v2",):
                return _get(method, {"name": "edgekit", "version": __version__, "extensions": [BINARY_EXTENSION]})
            case ("v2", "health", "live"):
                return _get(method, {"live": True})
            case ("v2", "health", "ready"):
                return _get(method, {"ready": True}) if not self.draining else _unready()
            case ("v2", "repository", "index"):
                return self._index(method)
            case ("v2", "models", name, "versions", version, *rest):
                return await self._model(request, self._repository.find(name, version), rest)
            case ("v2", "models", name, *rest):
                return await self._model(request, self._repository.find(name), rest)
        raise RequestError(404, "there is nothing here; the protocol starts at /v2")

    def _index(self, method: str) -> Response:
        _allow(method, "POST")
        models = [(one.manifest.name, one.manifest.version) for one in self._repository.all()]
        return _json([{"name": name, "version": version, "state": "READY", "reason": ""} for name, version in models])

    async def _model(self, request: Request, served: Served, rest: list[str]) -> Response:
        method, name = request.head.method, served.manifest.name
        match rest:
            case []:
                return _get(method, served.metadata(self._repository.versions(name)))
            case ["ready"]:
                return _get(method, {"name": name, "ready": True}) if not self.draining else _unready()
            case ["infer"]:
                _allow(method, "POST")
                return await self._infer(request, served)
        raise RequestError(404, "a model has /ready and /infer")

    async def _infer(self, request: Request, served: Served) -> Response:
        read = self._clock()
        asked = await self._decode(request)
        self._check_identity(asked, served)
        deadline = None if asked.timeout_us is None else request.arrived + asked.timeout_us / 1e6
        items = served.items(asked.inputs)
        request.reserve(len(items) * served.answer_bytes)
        answered = await self._lanes[id(served)].run(items, deadline)
        outputs = served.outputs([one.answer for one in answered], asked.outputs)
        own = {"edgekit_artifact": served.artifact.blob}
        answer = InferResponse(outputs, served.manifest.name, served.manifest.version, asked.id, own)
        wire = await self._encode(answer, [name for name in outputs if asked.wants_binary(name)])
        queued_ms = max(one.queued_ms for one in answered)
        rest_ms = max(0.0, (self._clock() - read) * 1e3 - queued_ms)
        timing = {"Server-Timing": f"queue;dur={queued_ms:.3f}, infer;dur={rest_ms:.3f}"}
        return Response(200, wire.parts, wire.headers | timing)

    @staticmethod
    def _check_identity(asked: InferRequest, served: Served) -> None:
        """Refuse a device that names another model or contract. Raises RequestError(409)."""
        manifest = served.manifest
        for kind, ours in (("contract", manifest.contract_digest), ("model", manifest.model_id)):
            theirs = asked.parameters.get(f"edgekit_{kind}")
            if theirs is not None and theirs != ours:
                raise RequestError(409, f"'{manifest.name}' is served with another {kind} than the one asked for")

    async def _decode(self, request: Request) -> InferRequest:
        length = request.head.headers.get(HEADER_LENGTH.lower())
        binary = length is not None and length.isdigit() and len(length) < 6 and int(length) <= _LONG_JSON
        if binary or len(request.body) <= _LONG_JSON:
            return decode_request(request.body, length)
        async with self._long_json:
            return await asyncio.to_thread(decode_request, request.body, length)

    async def _encode(self, answer: InferResponse, binary: list[str]) -> Wire:
        as_json = sum(array.size for name, array in answer.outputs.items() if name not in binary)
        try:
            if as_json * 16 <= _LONG_JSON:
                return encode_response(answer, binary=binary)
            if as_json > MOST_VALUES:
                raise WireError(
                    f"the answer has {as_json:,} values", do="Ask for binary data, or for fewer items at once"
                )
            async with self._long_json:
                return await asyncio.to_thread(encode_response, answer, binary=binary)
        except WireError as error:  # NaN or too many values; the request was right, the form asked for is not
            raise RequestError(400, str(error)) from error


def refusal(error: Exception) -> Response:
    """The response for what was raised."""
    if isinstance(error, RequestError):
        response = _json({"error": error.what}, error.status, close=error.close)
        return replace(response, headers={**response.headers, "Allow": error.allow}) if error.allow else response
    if isinstance(error, (WireError, InputError)):
        return _json({"error": str(error)}, 400)
    if isinstance(error, ClosedError):
        return _json({"error": "the server is shutting down"}, 503)
    _LOG.error("a request failed", exc_info=error)
    return _json({"error": error.what if isinstance(error, EdgekitError) else "internal error"}, 500)


def _json(value: Any, status: int = 200, *, close: bool = False) -> Response:
    return Response(status, (json.dumps(value).encode(),), {"Content-Type": "application/json"}, close)


def _get(method: str, value: Mapping[str, Any]) -> Response:
    _allow(method, "GET")
    return _json(value)


def _unready() -> Response:
    return _json({"error": "the server is shutting down"}, 503)


def _allow(method: str, allowed: str) -> None:
    if method != allowed:
        raise RequestError(405, f"{method} is not taken here; use {allowed}", allow=allowed)
