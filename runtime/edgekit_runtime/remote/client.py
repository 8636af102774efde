"""A client for the Open Inference Protocol v2 over HTTP/1.1, on the standard library alone.

    client = HostClient("http://gpu-box:8000", model="digits", expects=ModelIdentity(model_id, version, digest))
    answer = client.infer({"image": pixels[None]}, timeout_s=0.05)      # arrays have their batch axis, both ways
    answer.outputs["probs"][0], answer.network_ms

Rules:
- one deadline covers DNS, connecting, sending, each read and a retry; `parameters.timeout` tells the host what is left;
- every failure is a HostError, and leaves no thread and no broken connection behind;
- an answer of another model or version, or with NaN or infinity, is a HostError (host-protocol);
- binary tensors go to hosts that advertise them; any other host is tried once, with JSON as the fallback. What was
  learnt is kept until the host is gone;
- a token goes with every request, and never unencrypted, except to loopback. It is read when needed, from a variable or
  a file that other users may not read, and again after a 401 or 403; no message and no disk has it.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from edgekit_runtime.remote.endpoint import Deadline, Endpoint
from edgekit_runtime.remote.oip import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    InferResponse,
    decode_response,
    encode_request,
    parse_json,
)
from edgekit_runtime.remote.pool import MAX_BODY, Parts, Pool, Reply, StreamedReply
from edgekit_runtime.system.closing import ClosedOnExit
from edgekit_runtime.system.errors import HostError, SecretError, WireError, shorten
from edgekit_runtime.system.strict_json import load_json

if TYPE_CHECKING:
    import ssl

    from edgekit_runtime.policy.options import Host

_NOT_BINARY = (400, 415, 422, 500)
"""Statuses of servers without the binary extension; others hang up."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_COMPLAINT = 64 << 10
Answered = TypeVar("Answered", Reply, StreamedReply)


@dataclass(frozen=True)
class ModelIdentity:
    """The model that an edgekit host must serve, by the device's manifest."""

    model_id: str
    version: str
    contract_digest: str


@dataclass(frozen=True)
class HostAnswer:
    """outputs: by name, with their batch axis, read-only.
    total_ms: from the call to the answer.
    network_ms: total less what the host reports: both ways and both codecs.
    queue_ms, infer_ms: as the host reports them, or None.
    artifact: digest of the model file that answered, if the host names it.
    version: of the model, if the host names it.
    """

    outputs: Mapping[str, NDArray[Any]]
    total_ms: float
    network_ms: float
    queue_ms: float | None
    infer_ms: float | None
    artifact: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class TensorInfo:
    """shape: with its batch axis, -1 for a free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class HostMetadata:
    """What a host says of itself and of the model.

    binary: whether it advertises binary tensors.
    edgekit: model_id, contract_digest, artifact, recipe and precision of an edgekit host, which takes canonical
        tensors; None for any other server.
    """

    binary: bool
    inputs: tuple[TensorInfo, ...]
    edgekit: Mapping[str, Any] | None


@dataclass(frozen=True)
class _HostFacts:
    """metadata: without `expects` only whether it advertises binary tensors.
    binary: None until tried.
    path: of the model.
    expects: what it must serve; None for another server, or if nothing is expected.
    """

    metadata: HostMetadata
    binary: bool | None
    path: str
    expects: ModelIdentity | None


class HostClient(ClosedOnExit["HostClient"]):
    """One model of one host. Thread-safe.

    url: http://name:port or https://name.
    expects: what an edgekit host must serve; it is refused if model, version or contract differ.
    any_server: with `expects`, whether another server of the protocol is accepted, too.
    version: of such a server's model, None for its own choice.
    connect_timeout_s: for one connection, within the deadline.
    connections: the most at once.
    most_bytes: of one answer.
    token: reads the bearer token; may raise HostError.
    tls: None for the system's trust.
    changes: how often another server or model may have taken the host's place.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        expects: ModelIdentity | None = None,
        any_server: bool = False,
        version: str | None = None,
        connect_timeout_s: float = 1.0,
        connections: int = 4,
        most_bytes: int = MAX_BODY,
        token: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        endpoint = Endpoint(url, connect_timeout_s=connect_timeout_s, tls=tls)
        self.url = endpoint.url
        self.model = model
        self._expects = expects
        self._any_server = any_server
        self._bare_path = f"/v2/models/{quote(model, safe='')}"
        if expects is not None and not any_server:
            version = expects.version
        self._path = self._versioned(version)
        self._read_token, self._token, self._token_refused = token, "", False
        self._clock = clock
        self._pool = Pool(endpoint, limit=connections, most_bytes=most_bytes, clock=clock)
        self._known: _HostFacts | None = None
        self.changes = self._probing_breaks = 0
        self._ids = itertools.count()

    def infer(self, tensors: Mapping[str, NDArray[Any]], timeout_s: float, *, late_s: float = 0.0) -> HostAnswer:
        """tensors: input name -> array with its batch axis.
        timeout_s: for everything, seconds.
        late_s: wait so much longer, unknown to the host, to learn how late the answer is.

        Raises HostError (host-unreachable, host-busy, host-refused, host-late, host-protocol).
        """
        start = self._clock()
        deadline = Deadline(timeout_s + late_s, self._clock, late_s=late_s)
        known = self._known or self._greet(deadline)
        if known.binary is None:
            reply = self._probe(known, tensors, deadline)
        else:
            reply = self._post(tensors, known, known.binary, deadline)
        if reply.status != 200:
            self._raise(reply)
        try:
            answer = decode_response(reply.body, reply.headers.get(HEADER_LENGTH))
        except WireError as error:
            where = f"{self.url}, {error.where}" if error.where else self.url
            raise HostError(error.what, where=where, code="host-protocol") from error
        self._check_answer(answer, known.expects)
        artifact = answer.parameters.get("edgekit_artifact")
        if not isinstance(artifact, str) or not _DIGEST.fullmatch(artifact):
            artifact = None
        total_ms = (self._clock() - start) * 1e3
        said = server_timing(reply.headers.get("Server-Timing", ""))
        queue_ms, infer_ms = said.get("queue"), said.get("infer")
        network_ms = max(0.0, total_ms - (queue_ms or 0.0) - (infer_ms or 0.0))
        return HostAnswer(
            answer.outputs, total_ms, network_ms, queue_ms, infer_ms, artifact, version=answer.model_version
        )

    def greet(self, timeout_s: float) -> HostMetadata:
        """The host's metadata; with `expects` kept until it is gone. Raises HostError."""
        deadline = Deadline(timeout_s, self._clock)
        if self._expects is None:
            return self._metadata(deadline, self._path)
        return (self._known or self._greet(deadline)).metadata

    def forget(self) -> None:
        """Query the metadata again at the next request: another server may be there by now."""
        self._known, self.changes = None, self.changes + 1

    @property
    def breaks(self) -> int:
        """How often a kept connection had ended: another server may listen there now."""
        return self._pool.breaks - self._probing_breaks

    def ping(self, timeout_s: float, path: str = "") -> float:
        """Milliseconds of a query: whether the model is ready, or another path. Raises HostError."""
        start, known = self._clock(), self._known
        path = path or f"{self._path if known is None else known.path}/ready"
        reply = self._exchange("GET", path, Deadline(timeout_s, self._clock))
        if reply.status >= 500 or reply.status == 408:
            self._raise(reply)
        return (self._clock() - start) * 1e3

    def get(self, path: str, timeout_s: float) -> dict[str, Any]:
        """The object that a GET returns, else {}. Raises HostError for every status but 200."""
        return self._get(path, Deadline(timeout_s, self._clock))

    def close(self) -> None:
        """Close idle connections, and busy ones when their exchange ends. Idempotent."""
        self._pool.close()

    def _greet(self, deadline: Deadline) -> _HostFacts:
        """Learn whether the host takes binary data, and check that it serves the expected model."""
        expects, path = self._expects, self._path
        found = self._advertised(deadline) if expects is None else self._metadata(deadline, path)
        if self._any_server and found.edgekit is not None and expects is not None:  # ours: its versions are known
            path = self._versioned(expects.version)
            found = self._metadata(deadline, path)
        if self._any_server and found.edgekit is None:
            expects = None
        if expects is not None:
            self._check(expects, found.edgekit)
        self._known = _HostFacts(found, True if found.binary else None, path, expects)
        return self._known

    def _versioned(self, version: str | None) -> str:
        return self._bare_path if version is None else f"{self._bare_path}/versions/{quote(version, safe='')}"

    def _check(self, expects: ModelIdentity, edgekit: Mapping[str, Any] | None) -> None:
        if edgekit is None:
            what = f"this server does not serve '{self.model}' from an edgekit bundle"
            do = "Serve the host's bundle of the same build with: edgekit host serve"
            raise self._error(what, "host-refused", do)
        for key, kind in (("contract_digest", "contract"), ("model_id", "model")):
            if edgekit.get(key) != getattr(expects, key):
                what = f"it serves another {kind} under the name '{self.model}'"
                do = "Serve the host's bundle of the same build as this device's"
                raise self._error(what, "host-refused", do)

    def _probe(self, known: _HostFacts, tensors: Mapping[str, NDArray[Any]], deadline: Deadline) -> Reply:
        """Try binary once, with JSON as the fallback."""
        before = self._pool.breaks
        try:
            reply = self._post(tensors, known, True, deadline)
        except HostError as error:  # MLServer hangs up on what it cannot parse
            if error.code != "host-unreachable":
                raise
            reply = None
        binary = reply is not None and reply.status not in _NOT_BINARY
        if reply is None or not binary:
            reply = self._post(tensors, known, False, deadline)
            self._probing_breaks += self._pool.breaks - before
        if reply.status == 200:
            self._known = replace(known, binary=binary)
        return reply

    def _post(self, tensors: Mapping[str, NDArray[Any]], known: _HostFacts, binary: bool, deadline: Deadline) -> Reply:
        own = None
        if known.expects is not None:
            own = {"edgekit_contract": known.expects.contract_digest, "edgekit_model": known.expects.model_id}
        try:
            timeout_us = deadline.wanted_us()
            wire = encode_request(
                tensors, binary=binary, timeout_us=timeout_us, parameters=own, id=str(next(self._ids))
            )
        except TimeoutError as error:
            raise self._late_error() from error
        except WireError as error:
            form = "" if binary else "; this host takes JSON only"
            raise HostError(
                f"{error.what}{form}", where=error.where or self.url, do=error.do, code="host-refused"
            ) from error
        return self._exchange("POST", f"{known.path}/infer", deadline, wire.headers, wire.parts)

    def _check_answer(self, answer: InferResponse, ours: ModelIdentity | None) -> None:
        """Raises HostError (host-protocol) for another model or version, and for NaN or infinity."""
        named, version = answer.model_name, answer.model_version
        if named != self.model and (named is not None or ours is not None):
            raise self._error(f"model '{self.model}' was asked for, but '{named}' answered")
        if ours is not None and version != ours.version:
            raise self._error(f"version {ours.version} was asked for, but {version} answered")
        for name, array in answer.outputs.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise self._error(f"output '{name}' holds NaN or infinity")

    def _advertised(self, deadline: Deadline) -> HostMetadata:
        """What is needed where nothing is expected: the model is not asked about."""
        try:
            return HostMetadata(self._takes_binary(deadline), (), None)
        except HostError as error:  # it may know its models all the same
            if error.code != "host-refused":
                raise
            return HostMetadata(False, (), None)

    def _metadata(self, deadline: Deadline, path: str) -> HostMetadata:
        binary, model = self._takes_binary(deadline), self._get(path, deadline)
        edgekit = model.get("edgekit")
        return HostMetadata(binary, _infos(model.get("inputs")), edgekit if isinstance(edgekit, dict) else None)

    def _takes_binary(self, deadline: Deadline) -> bool:
        extensions = self._get("/v2", deadline).get("extensions")
        return isinstance(extensions, list) and BINARY_EXTENSION in extensions

    def _get(self, path: str, deadline: Deadline) -> dict[str, Any]:
        """The object that a GET returns, else {}. Raises HostError for every status but 200."""
        reply = self._exchange("GET", path, deadline)
        if reply.status != 200:
            self._raise(reply)
        try:
            return parse_json(reply.body, self.url)
        except WireError:
            return {}

    def _exchange(
        self, method: str, path: str, deadline: Deadline, headers: Mapping[str, str] | None = None, parts: Parts = ()
    ) -> Reply:
        allowed = self._authorized(headers)
        return self._guarded(lambda: self._pool.exchange(method, path, deadline, allowed, parts))

    def stream(self, path: str, body: bytes, deadline: Deadline) -> StreamedReply:
        """POST JSON; the answer as soon as its head is there, with status 200. Raises HostError."""
        headers = self._authorized({"Content-Type": "application/json", "Accept": "text/event-stream"})
        reply = self._guarded(lambda: self._pool.stream(path, deadline, headers, (body,)))
        if reply.status != 200:
            try:
                said = self._guarded(lambda: Reply(reply.status, reply.headers, reply.read(_MOST_COMPLAINT)))
            finally:
                reply.close()
            self._raise(said)
        return reply

    def _authorized(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        if self._read_token is None:
            return dict(headers or {})
        if not self._token or self._token_refused:
            self._token, self._token_refused = self._read_token(), False
        return {**(headers or {}), "Authorization": f"Bearer {self._token}"}

    def _guarded(self, ask: Callable[[], Answered]) -> Answered:
        """Every failure is a HostError."""
        try:
            reply = ask()
            if reply.status in (401, 403):
                self._token_refused = True  # it may have been replaced
            return reply
        except HostError as error:
            if error.code == "host-unreachable":
                self.forget()
            raise
        except TimeoutError as error:
            raise self._late_error() from error
        except OSError as error:  # TLS that breaks, a network that goes down
            self.forget()
            raise self._error(f"the connection broke ({error})", "host-unreachable") from error

    def _late_error(self) -> HostError:
        return self._error("no answer within the time given", "host-late")

    def _error(self, what: str, code: str = "host-protocol", do: str = "") -> HostError:
        return HostError(what, where=self.url, do=do, code=code)

    def _raise(self, reply: Reply) -> NoReturn:
        said = _complaint(reply)
        if self._token:
            said = said.replace(self._token, "***")
        what = f"{reply.status} {said}" if said else f"status {reply.status}"
        known = {429: "host-busy", 503: "host-busy", 408: "host-late", 504: "host-late"}
        refused = "host-refused" if 300 <= reply.status < 500 else "host-protocol"
        error = self._error(what, known.get(reply.status, refused))
        error.status = reply.status
        if reply.status == 409:
            self.forget()
        raise error


def server_timing(header: str) -> dict[str, float]:
    """Milliseconds: `queue;dur=1.5, infer;dur=3` -> {"queue": 1.5, "infer": 3.0}."""
    found: dict[str, float] = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            try:
                duration = float(value.strip().strip('"'))
            except ValueError:
                continue
            if key.strip().lower() == "dur" and math.isfinite(duration) and duration >= 0:
                found[name.lower()] = duration
    return found


def _complaint(reply: Reply) -> str:
    """The server's own words (`error`, `detail` or plain text), short and on one line."""
    text = reply.body[:4000].decode("utf-8", "replace")
    try:
        value = load_json(reply.body[:4000])
        if isinstance(value, dict):
            said = value.get("error") or value.get("detail") or text
            said = said.get("message") or said if isinstance(said, dict) else said
            text = said if isinstance(said, str) else json.dumps(said)
    except ValueError:
        pass
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shorten(line, 200)


def _infos(listed: object) -> tuple[TensorInfo, ...]:
    """The valid tensors that a server declares: an odd one must not stop a working inference."""
    found = []
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict):
            continue
        name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
        texts = isinstance(name, str) and isinstance(datatype, str)
        if texts and isinstance(shape, list) and all(type(n) is int for n in shape):
            found.append(TensorInfo(str(name), str(datatype), tuple(shape)))
    return tuple(found)


def token_reader(host: Host) -> Callable[[], str] | None:
    """Reads the host's token; None if it has none. Both raise HostError (host-secret)."""
    source = host.token
    if source is None:
        return None
    parts = urlsplit(host.url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise HostError("the token would travel unencrypted", where=host.url, do="Write https://", code="host-secret")

    def read() -> str:
        from edgekit_runtime.bundle.secrets import from_file, from_variable

        kind, _, name = source.partition(":")
        try:
            data = from_variable(name) if kind == "env" else from_file(Path(name).expanduser(), source)
        except (SecretError, RuntimeError) as error:
            cause = error.__cause__
            why = cause.strerror if isinstance(cause, OSError) else getattr(error, "what", str(error))
            do = "Set the variable, or put the token into a file of mode 0600"
            raise HostError(f"the token cannot be read: {why}", where=source, do=do, code="host-secret") from error
        token = data.strip().decode("latin-1")
        if not token or not (token.isascii() and token.isprintable() and " " not in token):
            what = "not a token: one word of printable ASCII is required"
            raise HostError(what, where=source, do="Put the token there, and nothing else", code="host-secret")
        return token

    read()
    return read


def tls_context(host: Host) -> ssl.SSLContext | None:
    """None if the system's trust is enough. Raises HostError (host-secret)."""
    if host.ca is None and host.certificate is None:
        return None
    import ssl

    from edgekit_runtime.system.files import PemError, load_certificate, pem_errors

    try:
        with pem_errors(host.ca or ""):
            context = ssl.create_default_context(cafile=host.ca)
        if host.certificate is not None:
            load_certificate(context, host.certificate)
    except PemError as error:
        do = "Give PEM files: ca= the authorities, certificate= a certificate followed by its private key"
        raise HostError(error.what, where=error.where, do=do, code="host-secret") from error
    return context
