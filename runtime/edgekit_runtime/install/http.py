"""One bundle over HTTP, from a byte on: a stream that ends by itself, and says what it is a part of.

    stream = get("https://models.example/net.ekb", start=4096, validator='"5f3e"', limits=Limits())
    while chunk := stream.read(): ...

Rules:
- nothing blocks for ever: connecting, every wait for a byte, and the head of the answer are bounded; whoever reads bounds
  the whole (`fetch`);
- few redirects are followed, and none from https to http; a password in the URL goes to its own host alone;
- a part is asked for only with the validator of what is here (If-Range), and taken only where the answer says that it is
  that part; any other answer is the whole from its first byte;
- bytes come as they are stored: an answer that is compressed on the way is refused.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

from edgekit_runtime.install.errors import DownloadError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

__all__ = ["HttpStream", "Limits", "get", "told_url"]

_CHUNK = 256 << 10
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_MOVED = (301, 302, 303, 307, 308)
_AGAIN = "Try again later; what arrived is kept"


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
    limits = limits or Limits()
    first = urlsplit(url)
    for _ in range(limits.redirects + 1):
        parts = _checked(url, first)
        connection, path = _connection(parts, limits)
        try:
            response = _ask(connection, path, _headers(parts, first, start, validator), limits)
            if response.status in _MOVED:
                url = urljoin(url, response.headers.get("Location", ""))
                connection.close()
                continue
            return _stream(response, connection, start, validator)
        except BaseException:
            connection.close()
            raise
    raise DownloadError(f"more than {limits.redirects} redirects", do="Name the file itself")


def _checked(url: str, first: SplitResult) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise DownloadError(f"no URL: {error}", do="Check the URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise DownloadError(
            f"cannot be fetched from {told_url(url) or 'nowhere'!r:.100}", do="Pass an http or https URL"
        )
    if first.scheme == "https" and parts.scheme != "https":
        raise DownloadError("an https address leads on to one without encryption", do="Name the file itself")
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise DownloadError("a URL has no blanks and control characters", do="Write them as %20")
    return parts


def _connection(parts: SplitResult, limits: Limits) -> tuple[HTTPConnection, str]:
    """Through the proxy that the environment names, if any."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.request import getproxies, proxy_bypass

    host, path = parts.hostname or "", urlunsplit(("", "", parts.path or "/", parts.query, ""))
    proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme)
    place = urlsplit(proxy if "//" in proxy else f"//{proxy}") if proxy else parts
    port = place.port or (443 if not proxy and parts.scheme == "https" else 80)
    if parts.scheme == "https":
        import ssl

        secure = HTTPSConnection(
            place.hostname or "", port, timeout=limits.silence_s, context=ssl.create_default_context()
        )
        if proxy:
            secure.set_tunnel(host, parts.port or 443, _proxy_authorization(place))
        return secure, path
    plain = HTTPConnection(place.hostname or "", port, timeout=limits.silence_s)
    return plain, urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", "")) if proxy else path


def _proxy_authorization(place: SplitResult) -> dict[str, str]:
    return {"Proxy-Authorization": _basic(place)} if place.username else {}


def _basic(parts: SplitResult) -> str:
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


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
        headers["Authorization"] = _basic(owner)
    if start and validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    return headers


def _ask(connection: HTTPConnection, path: str, headers: dict[str, str], limits: Limits) -> HTTPResponse:
    """The head of the answer. Byte by byte it could take days without one wait being long: so it is bounded as a whole."""
    from http.client import HTTPException

    try:
        connection.connect()
        with _ended_after(limits.head_s, connection.sock):
            connection.request("GET", path, headers=headers)
            return connection.getresponse()
    except (OSError, HTTPException, ValueError, AttributeError) as error:
        place = f"{connection.host}:{connection.port}"
        raise DownloadError(f"cannot be fetched from {place}: {_why(error)}", do=_AGAIN) from error


@contextlib.contextmanager
def _ended_after(seconds: float, sock: socket.socket) -> Iterator[None]:
    def end() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _stream(response: HTTPResponse, connection: HTTPConnection, start: int, validator: str) -> HttpStream:
    headers, status = response.headers, response.status
    if status == 416 and start:  # it is shorter now than what is here
        connection.close()
        raise DownloadError("the file is another than the one that was begun", do=_AGAIN)
    if status not in (200, 206):
        do = "Check the URL" if 400 <= status < 500 else _AGAIN
        raise DownloadError(f"the server answered {status} {response.reason}".strip(), do=do)
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise DownloadError(f"the server sends it compressed ({coding:.20})", do="Let it serve .ekb files as they are")
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
