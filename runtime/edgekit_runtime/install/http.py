"""Read one bundle over HTTP from a byte offset, as a bounded stream.

    stream = get("https://models.example/net.ekb", start=4096, validator='"5f3e"', limits=DownloadLimits())
    while chunk := stream.read(): ...

Rules:
- nothing blocks for ever: everything before the first byte (DNS, connecting, proxy, TLS, head) has one deadline, each
  `read` another; the caller bounds the whole (`fetch`);
- bytes that are not of the file (headers, chunk sizes and extensions, trailers) exceed the file by at most 1 MiB;
- few redirects are followed, none from https to http; a password in the URL goes to its own host alone;
- a range is requested with a validator (If-Range), and accepted only if the answer confirms it; any other answer is
  the whole file. A compressed answer is refused;
- a proxy speaks plain HTTP, as http_proxy, https_proxy and no_proxy name it, and tunnels https. Its password goes to
  the proxy alone, and into no message, event or file.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from edgekit_runtime.remote.endpoint import (
    Deadline,
    Endpoint,
    Proxy,
    ProxyRefusal,
    TimedConnection,
    TooManyBytesError,
    parse_url,
    port_of,
)
from edgekit_runtime.system.errors import DownloadError, EdgekitError, HostError

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
    authorization: scheme://host:port, and the header for it alone.
    """

    silence_s: float = 30.0
    head_s: float = 60.0
    least_rate: float = 1024.0
    slow_s: float = 30.0
    total_s: float = 6 * 3600.0
    redirects: int = 5
    tries: int = 4
    authorization: tuple[str, str] = field(default=("", ""), repr=False)


class FinalError(DownloadError):
    """A retry would fail in the same way. `fetch` raises its parent class."""


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
        raise FinalError("invalid proxy address", where=variable, do=_write(variable)) from error
    if place.scheme not in ("", "http"):
        what = f"{place.scheme} proxies are not supported"
        raise FinalError(what, where=variable, do=f"{_write(variable)}, if the proxy takes that")
    if not place.hostname:
        raise FinalError("invalid proxy address", where=variable, do=_write(variable))
    return Proxy(place.hostname, port, variable, _basic(place) if place.username else "")


def _refused(proxy: Proxy, status: int, reason: str) -> DownloadError:
    """The error for an answer of the proxy itself, not of the server."""
    if status == 0:
        return FinalError(f"{_display(proxy)} does not speak HTTP", do=f"Check {proxy.variable}")
    what = f"{_display(proxy)} answered {status} {reason.strip():.80}".strip()
    if status == 407:
        do = f"Set its user and password: {proxy.variable}=http://USER:PASSWORD@HOST:PORT"
        return FinalError(what, do=do)
    if 400 <= status < 500:
        return FinalError(what, do="Ask the proxy's administrator, or bypass it: add the host to no_proxy")
    return DownloadError(what, do=_AGAIN)


def _display(proxy: Proxy) -> str:
    return f"the proxy {proxy.host}:{proxy.port} ({proxy.variable})"


def _basic(parts: SplitResult) -> str:
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
    _connection: TimedConnection
    _silence_s: float
    _read: int = 0

    def read(self) -> bytes:
        """The next bytes, at most 256 KiB; empty at the end. Raises DownloadError."""
        timed = self._connection.timed
        timed.deadline, timed.most = Deadline(self._silence_s), 2 * self._read + _MOST_FRAMING
        try:
            data = self._response.read1(_CHUNK)
        except TimeoutError as error:
            raise DownloadError("no data came in time", do=_AGAIN) from error
        except TooManyBytesError as error:
            raise FinalError("the server sends more headers and trailers than data", do="Check the server") from error
        except (OSError, HTTPException, ValueError) as error:
            raise DownloadError(f"the connection broke: {_why(error)}", do=_AGAIN) from error
        self._read += len(data)
        return data

    def close(self) -> None:
        self._connection.end()


def display_url(url: str) -> str:
    """Without user, password, fragment, and the query, which may hold a token."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def get(
    url: str, *, start: int = 0, validator: str = "", limits: DownloadLimits | None = None, body: bytes | None = None
) -> HttpStream:
    """body: JSON to post. Raises DownloadError: unknown host, invalid answer, no success."""
    limits = limits or DownloadLimits()
    first = parts = _checked(url)
    for _ in range(limits.redirects + 1):
        if first.scheme == "https" and parts.scheme != "https":
            raise FinalError("redirect from https to http refused", do="Pass the URL of the file itself")
        proxy = proxy_for(parts)
        headers = _headers(parts, first, start, validator)
        if limits.authorization[0] == f"{parts.scheme}://{parts.netloc}":
            headers["Authorization"] = limits.authorization[1]
        connection, response = _ask(parts, proxy, headers, limits, body)
        try:
            if response.status not in _MOVED:
                if proxy is not None and response.status == 407:
                    raise _refused(proxy, response.status, response.reason)
                return HttpStream(*_place(response, start, validator), response, connection, limits.silence_s)
            try:
                target = urljoin(urlunsplit(parts), response.headers.get("Location", ""))
            except ValueError as error:
                raise FinalError(
                    f"redirect to an invalid URL: {error}", do="Pass the URL of the file itself"
                ) from error
        except BaseException:
            connection.end()
            raise
        connection.end()
        parts = _checked(target)
    raise FinalError(f"more than {limits.redirects} redirects", do="Pass the URL of the file itself")


def _checked(url: str) -> SplitResult:
    """Raises FinalError for anything but an http or https URL."""
    try:
        return parse_url(url)
    except ValueError as error:
        raise FinalError(f"invalid URL: {error}", do="Pass an http or https URL, with blanks as %20") from error


def _headers(parts: SplitResult, first: SplitResult, start: int, validator: str) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "edgekit-runtime"}
    same_host = parts.netloc.rpartition("@")[2] == first.netloc.rpartition("@")[2]
    owner = first if same_host and not parts.username else parts
    if owner.username:
        headers["Authorization"] = _basic(owner)
    if start and validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    return headers


def _ask(
    parts: SplitResult, proxy: Proxy | None, headers: dict[str, str], limits: DownloadLimits, body: bytes | None
) -> tuple[TimedConnection, HTTPResponse]:
    """The connection and the answer's head."""
    place = parts.netloc.rpartition("@")[2]
    deadline, connection = Deadline(limits.head_s, step_s=limits.silence_s), None
    try:
        endpoint = Endpoint(f"{parts.scheme}://{place}", connect_timeout_s=math.inf, proxy=proxy)
        connection = endpoint.connect(deadline, _MOST_FRAMING)
        path = quote(urlunsplit(("", "", parts.path or "/", parts.query, "")), safe=_AS_WRITTEN)
        headers["Host"] = place.encode("idna").decode()
        if proxy is not None and parts.scheme == "http":
            path = f"http://{headers['Host']}{path}"
            headers |= {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, body, headers=headers)
        return connection, connection.getresponse()
    except BaseException as error:
        if connection is not None:
            connection.end()
        if isinstance(error, ProxyRefusal) and proxy is not None:
            raise _refused(proxy, error.status, error.reason) from error
        if not isinstance(error, (OSError, HTTPException, ValueError, HostError)):
            raise
        where = f"{parts.hostname}:{port_of(parts)}" + (f" through {_display(proxy)}" if proxy is not None else "")
        late = isinstance(error, TimeoutError)
        why = f"no response within {limits.head_s:g} s" if late else _why(error)
        raise DownloadError(f"cannot be fetched from {where}: {why}", do=_AGAIN) from error


def _place(response: HTTPResponse, start: int, validator: str) -> tuple[int, int | None, str]:
    """Start, total and validator of an `HttpStream`.

    Raises DownloadError for an answer without a part of the file.
    """
    headers, status = response.headers, response.status
    if status == 416 and start:  # it is shorter now than what is here
        raise DownloadError("the file changed during the download", do=_AGAIN)
    if status not in (200, 206):
        what = f"the server answered {status} {response.reason}".strip()
        if 400 <= status < 500 and status not in _FOR_NOW:
            raise FinalError(what, do="Check the URL")
        raise DownloadError(what, do=_AGAIN)
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise FinalError(
            f"the server sent the file compressed ({coding:.20})", do="Serve .ekb files without compression"
        )
    found = headers.get("ETag", "").strip()
    found = found if found.startswith('"') else headers.get("Last-Modified", "").strip()
    if status == 200:
        length = headers.get("Content-Length", "").strip()
        return 0, int(length) if re.fullmatch(r"\d{1,18}", length) else None, found
    part = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
    if part is None or not start or int(part[1]) != start or (found and found != validator):
        raise WrongPartError("the server sent a different range than requested", do=_AGAIN)
    return start, None if part[3] == "*" else int(part[3]), found or validator


class WrongPartError(DownloadError):
    """Caught where the download begins again from its first byte."""


def _why(error: BaseException) -> str:
    if isinstance(error, EdgekitError):
        return error.what
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
