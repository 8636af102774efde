"""The subset of HTTP/1.1 that a tensor server needs, without sockets: parse and write heads.

    head = parse_head(b"POST /v2/models/m/infer HTTP/1.1\\r\\nHost: h\\r\\nContent-Length: 12", HttpLimits())
    body_length(head, HttpLimits())                 # 12

Rules:
- a body needs a Content-Length; chunked bodies and ambiguous heads (folded lines, spaces before a colon, two lengths)
  are refused;
- a body that is too large is refused by its length, before it is read; the limit for JSON is lower than for binary
  tensors, because parsing takes several times its size;
- a refusal before the body was read ends the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import ClassVar, Literal
from urllib.parse import unquote

from edgekit_runtime.remote.oip import HEADER_LENGTH, MAX_JSON
from edgekit_runtime.system.errors import EdgekitError


class ServeError(EdgekitError):
    """The server cannot start: port in use, two bundles with the same name."""

    code = "serve"
    reasons: ClassVar[dict[str, str]] = {
        "serve-certificate": "a certificate, its key or the client CA cannot be used for TLS",
        "serve-tokens": "the token file cannot be read or is invalid",
        "serve-unencrypted": "the address is not loopback and TLS is off",
    }


class ExportError(EdgekitError):
    """The bundle cannot be exported: no suitable artifact, stateful, or the folder exists."""

    code = "export"


class RequestError(EdgekitError):
    """A refused request. status, headers: of the response. close: end the connection."""

    code = "request"

    def __init__(
        self, status: int, what: str, *, close: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(what)
        self.status = status
        self.close = close
        self.headers = dict(headers or {})


END_OF_HEAD = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([A-Za-z]{1,20}) ([\x21-\x7e]+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_ONCE = ("content-length", "host", "inference-header-content-length", "transfer-encoding")


@dataclass(frozen=True)
class HttpLimits:
    """Limits of the server.

    json_bytes: of a body without binary tensors.
    bodies_bytes: of all requests and answers in memory.
    half_open_a_peer: connections of one address that have not sent a complete head.
    """

    head_bytes: int = 16 * 2**10
    headers: int = 64
    body_bytes: int = 64 * 2**20
    json_bytes: int = MAX_JSON
    bodies_bytes: int = 512 * 2**20
    connections: int = 256
    half_open_a_peer: int = 64


State = Literal["opening", "idle", "head", "body", "busy", "skipping", "writing", "lingering"]
"""Of a connection."""


@dataclass(frozen=True)
class Patience:
    """Timeout of each connection state, in seconds."""

    idle: float = 75.0
    head: float = 10.0
    body: float = 60.0
    skipping: float = 10.0
    writing: float = 30.0
    lingering: float = 2.0


def overdue(state: State, age_s: float, patience: Patience) -> bool:
    """False while busy or opening: the api bounds requests, TLS its handshake."""
    return state not in ("opening", "busy") and age_s > float(getattr(patience, state))


@dataclass(frozen=True)
class Head:
    """segments: the path between its slashes, unquoted. headers: names in lower case."""

    method: str
    segments: tuple[str, ...]
    headers: Mapping[str, str]
    keep_alive: bool

    @property
    def json_bytes(self) -> int | None:
        """Bytes of JSON before the binary tensors; None if the header is missing or not a number."""
        text = self.headers.get(HEADER_LENGTH.lower(), "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


@dataclass(frozen=True)
class Response:
    """parts: pieces of the body, in order. close: end the connection afterwards."""

    status: int
    parts: tuple[bytes | memoryview, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False


def parse_head(data: bytes, limits: HttpLimits) -> Head:
    """data: request line and headers without the final empty line. Raises RequestError."""
    first, *lines = data.split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        raise RequestError(400, "the request line is not HTTP/1.1", close=True)
    if len(lines) > limits.headers:
        raise RequestError(431, f"more than {limits.headers} headers", close=True)
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise RequestError(400, "malformed header", close=True)
        name, value = header[1].decode("ascii").lower(), header[2].decode("latin-1").strip(" \t")
        if name in headers and name in _ONCE:
            raise RequestError(400, f"duplicate header {name}", close=True)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    modern = matched[3] == b"1"
    if modern and "host" not in headers:
        raise RequestError(400, "missing Host header", close=True)
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    keep_alive = "close" not in options if modern else "keep-alive" in options
    # the target is `/v2/models/a%2Fb?x` or `http://host/v2/...`; quoted slashes belong to a name
    path = re.sub(r"^https?://[^/?]*", "", matched[2].decode("ascii"), flags=re.IGNORECASE).split("?", 1)[0]
    segments = tuple(unquote(segment) for segment in path.split("/") if segment)
    return Head(matched[1].decode("ascii").upper(), segments, headers, keep_alive)


def body_length(head: Head, limits: HttpLimits) -> int:
    """Length of the body. Raises RequestError if it is too large or unknown."""
    if "transfer-encoding" in head.headers:
        raise RequestError(411, "chunked bodies are not supported; send a Content-Length", close=True)
    text = head.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise RequestError(400, "Content-Length is not a number", close=True)
    binary = HEADER_LENGTH.lower() in head.headers
    most = limits.body_bytes if binary else min(limits.body_bytes, limits.json_bytes)
    if len(text) > 15 or int(text) > most:
        advice = "" if binary or most == limits.body_bytes else "; send the tensors as binary data"
        raise RequestError(413, f"the body is larger than {most} bytes{advice}", close=True)
    return int(text)


def response_head(response: Response) -> bytes:
    """Status line and headers, including the final empty line."""
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {response.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines.append(f"Content-Length: {sum(map(len, response.parts))}")
    if response.close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
