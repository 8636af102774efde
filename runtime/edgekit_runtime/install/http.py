"""Read one bundle over HTTP from a byte offset, as a bounded stream.

    stream = get("https://models.example/net.ekb", start=4096, validator='"5f3e"', limits=DownloadLimits())
    while chunk := stream.read(): ...

Rules:
- nothing blocks for ever: everything before the first byte (DNS, connecting, proxy, TLS, head) has one deadline, each
  `read` another; the caller bounds the whole (`fetch`);
- bytes that are not of the file (headers, chunk sizes and extensions, trailers) exceed the file by at most 1 MiB;
- few redirects are followed, none from https to http; a password in the URL goes to its own host alone;
- a range is requested with a validator (If-Range), or if the caller knows the whole by a digest (by_digest), and
  accepted only if the answer confirms it; any other answer is the whole file. A compressed answer is refused;
- a proxy speaks plain HTTP, as http_proxy, https_proxy and no_proxy name it, and tunnels https. Its password goes to
  the proxy alone, and into no message, event or file.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from edgekit_runtime.remote.deadline import Deadline, TimedSocket, TooManyBytesError
from edgekit_runtime.remote.endpoint import Endpoint
from edgekit_runtime.system.errors import DownloadError, EdgekitError, HostError

if TYPE_CHECKING:
    from http.client import HTTPResponse

_MOST_HEAD = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})([^\r\n]{0,80})")
_CHUNK = 256 << 10
_MOST_FRAMING = 1 << 20
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_MOVED = (301, 302, 303, 307, 308)
_FOR_NOW = (408, 421, 425, 429)
_AS_WRITTEN = "/?%:=&~#+!$,;'@()*[]"
_AGAIN = "Try again later"


@dataclass(frozen=True)
class DownloadLimits:
    """silence_s: longest wait for a byte of the file.
    head_s: until the answer's head is complete.
    least_rate: bytes a second, over slow_s seconds.
    total_s: for the whole download.
    tries: connections in a row without a new byte.
    """

    silence_s: float = 30.0
    head_s: float = 60.0
    least_rate: float = 1024.0
    slow_s: float = 30.0
    total_s: float = 6 * 3600.0
    redirects: int = 5
    tries: int = 4


class FinalError(DownloadError):
    """A retry would fail in the same way. `fetch` raises its parent class."""


@dataclass(frozen=True)
class Proxy:
    """variable: environment variable that named it.
    authorization: header value, empty if it needs none.
    """

    host: str
    port: int
    variable: str
    authorization: str = field(default="", repr=False)

    @property
    def display(self) -> str:
        return f"the proxy {self.host}:{self.port} ({self.variable})"

    def tunnel(self, sock: TimedSocket, host: str, port: int) -> None:
        """Open a tunnel on a socket connected to the proxy. Raises DownloadError, OSError."""
        place = f"[{host}]:{port}" if ":" in host else f"{host.encode('idna').decode()}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if self.authorization:
            lines.append(f"Proxy-Authorization: {self.authorization}")
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        head = bytearray()  # of the answer, and not a byte more: what follows is the other end's
        while not head.endswith((b"\r\n\r\n", b"\n\n")) and len(head) <= _MOST_HEAD:
            byte = sock.recv(1)
            if not byte:
                raise ConnectionAbortedError("it hung up")
            head += byte
        found = _STATUS.match(head)
        if found is None or len(head) > _MOST_HEAD:
            raise FinalError(f"{self.display} gives no answer of HTTP", do=f"Check {self.variable}")
        if not 200 <= int(found[1]) < 300:
            raise self.refusal(int(found[1]), found[2].decode("latin-1"))

    def refusal(self, status: int, reason: str) -> DownloadError:
        """The error for an answer of the proxy itself, not of the server."""
        what = f"{self.display} answered {status} {reason.strip()}".strip()
        if status == 407:
            return FinalError(what, do=f"Give its name and password: {self.variable}=http://USER:PASSWORD@HOST:PORT")
        if 400 <= status < 500:
            return FinalError(what, do="Ask who runs the proxy; or go past it: name the host in no_proxy")
        return DownloadError(what, do="Try again later")


def proxy_for(parts: SplitResult) -> Proxy | None:
    """The proxy of a URL, None for a direct connection. Raises DownloadError if it is unusable."""
    from urllib.request import getproxies, proxy_bypass

    address = getproxies().get(parts.scheme)
    if not address or proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    variable = f"{parts.scheme}_proxy"
    try:
        place = urlsplit(address if "//" in address else f"//{address}")
        port = place.port or 80
    except ValueError as error:  # its text may hold the password
        raise FinalError("the address of the proxy is none", where=variable, do=_write(variable)) from error
    if place.scheme not in ("", "http"):
        what = f"a proxy by {place.scheme}: is not supported"
        raise FinalError(what, where=variable, do=f"{_write(variable)}, if the proxy takes that")
    if not place.hostname:
        raise FinalError("the address of the proxy is none", where=variable, do=_write(variable))
    return Proxy(place.hostname, port, variable, basic(place) if place.username else "")


def basic(parts: SplitResult) -> str:
    """The Authorization value for a URL's name and password."""
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode()


def _write(variable: str) -> str:
    return f"Write {variable}=http://HOST:PORT"


@dataclass
class HttpStream:
    """start: offset of the first byte.
    total: bytes of the whole file, None if the server does not say.
    validator: a strong ETag, else Last-Modified, else empty.
    """

    start: int
    total: int | None
    validator: str
    _response: HTTPResponse
    _wire: TimedSocket
    _silence_s: float
    _read: int = 0

    def read(self) -> bytes:
        """The next bytes, at most 256 KiB; empty at the end. Raises DownloadError."""
        from http.client import HTTPException

        self._wire.deadline = Deadline(self._silence_s)
        self._wire.most = 2 * self._read + _MOST_FRAMING
        try:
            data = self._response.read1(_CHUNK)
        except TimeoutError as error:
            raise DownloadError("nothing came for a while", do=_AGAIN) from error
        except TooManyBytesError as error:
            raise FinalError("the server sends more headers and trailers than data", do="Check the server") from error
        except (OSError, HTTPException, ValueError) as error:
            raise DownloadError(f"the connection broke: {_why(error)}", do=_AGAIN) from error
        self._read += len(data)
        return data

    def close(self) -> None:
        self._wire.end()


def display_url(url: str) -> str:
    """Without user, password, fragment, and the query, which may hold a token."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def get(
    url: str, *, start: int = 0, validator: str = "", limits: DownloadLimits | None = None, by_digest: bool = False
) -> HttpStream:
    """Raises DownloadError: unknown host, invalid answer, a status other than success."""
    limits = limits or DownloadLimits()
    first = parts = _checked(url)
    for _ in range(limits.redirects + 1):
        if first.scheme == "https" and parts.scheme != "https":
            raise FinalError("an https address leads on to one without encryption", do="Name the file itself")
        proxy = proxy_for(parts)
        wire, response = _ask(parts, proxy, _headers(parts, first, start, validator, by_digest), limits)
        try:
            if response.status in _MOVED:
                try:
                    parts = _checked(urljoin(urlunsplit(parts), response.headers.get("Location", "")))
                except ValueError as error:
                    raise FinalError(f"the redirect leads to no URL: {error}", do="Name the file itself") from error
                wire.end()
                continue
            if proxy is not None and response.status == 407:
                raise proxy.refusal(response.status, response.reason)
            place = _place(response, start, validator, by_digest)
            return HttpStream(*place, response, wire, limits.silence_s)
        except BaseException:
            wire.end()
            raise
    raise FinalError(f"more than {limits.redirects} redirects", do="Name the file itself")


def _checked(url: str) -> SplitResult:
    """Raises FinalError for anything but an http or https URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FinalError(f"no URL: {error}", do="Check the URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise FinalError(
            f"cannot be fetched from {display_url(url) or 'nowhere'!r:.100}", do="Pass an http or https URL"
        )
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise FinalError("a URL has no blanks and control characters", do="Write them as %20")
    return parts


def _headers(parts: SplitResult, first: SplitResult, start: int, validator: str, by_digest: bool) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "edgekit-runtime"}
    same_host = parts.netloc.rpartition("@")[2] == first.netloc.rpartition("@")[2]
    owner = first if same_host and not parts.username else parts
    if owner.username:
        headers["Authorization"] = basic(owner)
    if start and (validator or by_digest):
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": validator} if validator else {})
    return headers


def _ask(
    parts: SplitResult, proxy: Proxy | None, headers: dict[str, str], limits: DownloadLimits
) -> tuple[TimedSocket, HTTPResponse]:
    """The socket and the answer's head."""
    from http.client import HTTPConnection, HTTPException

    deadline = Deadline(limits.head_s, step_s=limits.silence_s)
    connection = HTTPConnection(parts.hostname or "", _port(parts))
    wire = None
    try:
        wire = _connect(parts, proxy, deadline)
        connection.sock = wire  # what http.client needs of a socket
        path = quote(urlunsplit(("", "", parts.path or "/", parts.query, "")), safe=_AS_WRITTEN)
        headers["Host"] = parts.netloc.rpartition("@")[2].encode("idna").decode()
        if proxy is not None and parts.scheme == "http":
            path = f"http://{headers['Host']}{path}"
            headers |= {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
        connection.request("GET", path, headers=headers)
        return wire, connection.getresponse()
    except BaseException as error:
        if wire is not None:
            wire.end()
        if not isinstance(error, (OSError, HTTPException, ValueError, HostError)):
            raise
        place = f"{connection.host}:{connection.port}" + (f" through {proxy.display}" if proxy is not None else "")
        late = isinstance(error, TimeoutError)
        why = f"no answer began within {limits.head_s:g} s" if late else _why(error)
        raise DownloadError(f"cannot be fetched from {place}: {why}", do=_AGAIN) from error


def _connect(parts: SplitResult, proxy: Proxy | None, deadline: Deadline) -> TimedSocket:
    """A socket to the server, encrypted for https. Raises OSError, HostError, DownloadError."""
    host, port = parts.hostname or "", _port(parts)
    name, number = (host, port) if proxy is None else (proxy.host, proxy.port)
    place = Endpoint(f"http://{f'[{name}]' if ':' in name else name}:{number}", connect_timeout_s=math.inf)
    wire = TimedSocket(place.connect(deadline), deadline, _MOST_FRAMING)
    try:
        if parts.scheme == "https":
            import ssl

            if proxy is not None:
                proxy.tunnel(wire, host, port)
            wire.secure(ssl.create_default_context(), host)
        return wire
    except BaseException:
        wire.end()
        raise


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _place(response: HTTPResponse, start: int, validator: str, by_digest: bool) -> tuple[int, int | None, str]:
    """Start, total and validator of an `HttpStream`.

    Raises DownloadError for an answer without a part of the file.
    """
    headers, status = response.headers, response.status
    if status == 416 and start:  # it is shorter now than what is here
        raise DownloadError("the file is another than the one that was begun", do=_AGAIN)
    if status not in (200, 206):
        what = f"the server answered {status} {response.reason}".strip()
        if 400 <= status < 500 and status not in _FOR_NOW:
            raise FinalError(what, do="Check the URL")
        raise DownloadError(what, do=_AGAIN)
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise FinalError(f"the server sends it compressed ({coding:.20})", do="Let it serve .ekb files as they are")
    found = headers.get("ETag", "").strip()
    found = found if found.startswith('"') else headers.get("Last-Modified", "").strip()
    if status == 200:
        length = headers.get("Content-Length", "").strip()
        return 0, int(length) if re.fullmatch(r"\d{1,18}", length) else None, found
    part = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if part is None or not start or int(part[1]) != start or (found and not by_digest and found != validator):
        raise WrongPartError("the server sent another part than the one that was asked for", do=_AGAIN)
    return start, None if part[3] == "*" else int(part[3]), found or validator


class WrongPartError(DownloadError):
    """Caught where the download begins again from its first byte."""


def _why(error: BaseException) -> str:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}); a clock that is wrong is a common cause"
    if isinstance(error, EdgekitError):
        return error.what
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
