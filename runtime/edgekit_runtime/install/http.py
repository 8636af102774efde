"""One bundle over HTTP, from a byte on: a stream that ends by itself, and says what it is a part of.

    stream = get("https://models.example/net.ekb", start=4096, validator='"5f3e"', limits=Limits())
    while chunk := stream.read(): ...

Rules:
- nothing blocks for ever: connecting, every wait for a byte, and all that comes before the answer's first byte (a proxy's word,
  the beginning of TLS, the head) are bounded; whoever reads bounds the whole (`fetch`);
- few redirects are followed, and none from https to http; a password in the URL goes to its own host alone;
- a part is asked for only with the validator of what is here (If-Range), and taken only where the answer says that it is
  that part; any other answer is the whole from its first byte;
- bytes come as they are stored: an answer that is compressed on the way is refused.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from edgekit_runtime.install.errors import DownloadError, FinalError
from edgekit_runtime.install.proxy import KEPT, Proxy, basic, proxy_for

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

__all__ = ["KEPT", "HttpStream", "Limits", "get", "told_url"]

_CHUNK = 256 << 10
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_MOVED = (301, 302, 303, 307, 308)
_FOR_NOW = (408, 421, 425, 429)
_AS_WRITTEN = "/?%:=&~#+!$,;'@()*[]"
_AGAIN = f"Try again later{KEPT}"


@dataclass(frozen=True)
class Limits:
    """silence_s: the longest wait for a byte. head_s: until the head of the answer is there. least_rate: bytes a second, over
    slow_s seconds. total_s: all of it. redirects: followed. tries: connections without a new byte before it is given up.
    """

    silence_s: float = 30.0
    head_s: float = 60.0
    least_rate: float = 1024.0
    slow_s: float = 30.0
    total_s: float = 6 * 3600.0
    redirects: int = 5
    tries: int = 4


@dataclass
class HttpStream:
    """start: which byte of the file comes first. total: of the whole file, None where the server does not say.

    validator: a strong ETag, else the date of the last change, else empty.
    """

    start: int
    total: int | None
    validator: str
    _response: HTTPResponse
    _connection: HTTPConnection

    def read(self) -> bytes:
        """What is there now, at most 256 KiB; empty at the end. Raises DownloadError."""
        from http.client import HTTPException

        try:
            return self._response.read1(_CHUNK)
        except TimeoutError as error:
            raise DownloadError("nothing came for a while", do=_AGAIN) from error
        except (OSError, HTTPException, ValueError, AttributeError) as error:  # AttributeError: http.client, cut off
            raise DownloadError(f"the connection broke: {_why(error)}", do=_AGAIN) from error

    def close(self) -> None:
        self._connection.close()


def told_url(url: str) -> str:
    """Without user, password and fragment. A query may hold a token, so it is left out as well."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def get(url: str, *, start: int = 0, validator: str = "", limits: Limits | None = None) -> HttpStream:
    """Raises DownloadError: no such host, an answer that is none, a status that is no bundle."""
    from http.client import HTTPConnection

    limits = limits or Limits()
    first = urlsplit(url)
    for _ in range(limits.redirects + 1):
        parts = _checked(url, first)
        proxy = proxy_for(parts)
        connection = HTTPConnection(parts.hostname or "", _port(parts))  # speaks over the socket that it is given
        try:
            response = _ask(connection, parts, proxy, _headers(parts, first, start, validator), limits)
            if response.status in _MOVED:
                url = urljoin(url, response.headers.get("Location", ""))
                connection.close()
                continue
            if proxy is not None and response.status == 407:
                raise proxy.refusal(response.status, response.reason)
            return _stream(response, connection, start, validator)
        except BaseException:
            connection.close()
            raise
    raise FinalError(f"more than {limits.redirects} redirects", do="Name the file itself")


def _checked(url: str, first: SplitResult) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FinalError(f"no URL: {error}", do="Check the URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise FinalError(f"cannot be fetched from {told_url(url) or 'nowhere'!r:.100}", do="Pass an http or https URL")
    if first.scheme == "https" and parts.scheme != "https":
        raise FinalError("an https address leads on to one without encryption", do="Name the file itself")
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise FinalError("a URL has no blanks and control characters", do="Write them as %20")
    return parts


def _headers(parts: SplitResult, first: SplitResult, start: int, validator: str) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "edgekit-runtime"}
    owner = (
        parts
        if parts.username
        else first
        if parts.netloc.rpartition("@")[2] == first.netloc.rpartition("@")[2]
        else None
    )
    if owner is not None and owner.username:
        headers["Authorization"] = basic(owner)
    if start and validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    return headers


def _ask(
    connection: HTTPConnection, parts: SplitResult, proxy: Proxy | None, headers: dict[str, str], limits: Limits
) -> HTTPResponse:
    """The head of the answer. Byte by byte it could take days without one wait being long, as could the proxy's word and the
    beginning of TLS: so all of it is bounded as a whole."""
    from http.client import HTTPException

    with _Deadline(limits.head_s) as deadline:
        try:
            connection.sock = _way(parts, proxy, limits, deadline)
            path = quote(urlunsplit(("", "", parts.path or "/", parts.query, "")), safe=_AS_WRITTEN)
            headers["Host"] = parts.netloc.rpartition("@")[2].encode("idna").decode()
            if proxy is not None and parts.scheme == "http":
                path = f"http://{headers['Host']}{path}"
                headers |= {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            if deadline.over:  # a head that is cut off counts as whole there
                raise TimeoutError
            return response
        except (OSError, HTTPException, ValueError, AttributeError) as error:
            place = f"{connection.host}:{connection.port}" + (f" through {proxy.told}" if proxy is not None else "")
            why = f"no answer began within {limits.head_s:g} s" if deadline.over else _why(error)
            raise DownloadError(f"cannot be fetched from {place}: {why}", do=_AGAIN) from error


def _way(parts: SplitResult, proxy: Proxy | None, limits: Limits, deadline: _Deadline) -> socket.socket:
    """A socket on whose other end the server is, encrypted where the URL says so. Raises OSError, DownloadError."""
    host, port = parts.hostname or "", _port(parts)
    place = (host, port) if proxy is None else (proxy.host, proxy.port)
    sock = socket.create_connection(place, timeout=limits.silence_s)
    try:
        deadline.covers(sock)
        if parts.scheme != "https":
            return sock
        import ssl

        if proxy is not None:
            proxy.tunnel(sock, host, port)
        return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


class _Deadline:
    """Hangs up after so many seconds, in whatever call of the system somebody waits then. over: whether it did."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._socket: socket.socket | None = None
        self.over = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    def covers(self, sock: socket.socket) -> None:
        """By a second descriptor: TLS takes the first one for itself. Raises TimeoutError where it is too late."""
        self._socket = sock.dup()
        if self.over:
            raise TimeoutError

    def _end(self) -> None:
        self.over = True
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def _stream(response: HTTPResponse, connection: HTTPConnection, start: int, validator: str) -> HttpStream:
    headers, status = response.headers, response.status
    if status == 416 and start:  # it is shorter now than what is here
        connection.close()
        raise DownloadError("the file is another than the one that was begun", do=_AGAIN)
    if status not in (200, 206):
        what = f"the server answered {status} {response.reason}".strip()
        if 400 <= status < 500 and status not in _FOR_NOW:
            raise FinalError(what, do="Check the URL")
        raise DownloadError(what, do=_AGAIN)
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise FinalError(f"the server sends it compressed ({coding:.20})", do="Let it serve .ekb files as they are")
    length = _number(headers.get("Content-Length"))
    found = headers.get("ETag", "").strip()
    found = found if found.startswith('"') else headers.get("Last-Modified", "").strip()
    if status == 200:
        return HttpStream(0, length, found, response, connection)
    part = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
    fits = part is not None and start and int(part[1]) == start and (not found or found == validator)
    if part is None or not fits:
        connection.close()
        raise WrongPartError("the server sent another part than the one that was asked for", do=_AGAIN)
    total = None if part[3] == "*" else int(part[3])
    return HttpStream(start, total, found or validator, response, connection)


class WrongPartError(DownloadError):
    """Caught where the download begins again from its first byte."""


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text.strip()) else None


def _why(error: BaseException) -> str:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}); a clock that is wrong is a common cause"
    if isinstance(error, AttributeError):
        return "the connection was cut"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
