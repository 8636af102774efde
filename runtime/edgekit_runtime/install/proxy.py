"""Which proxy a download goes through, as the environment says, and how.

    proxy = proxy_for(urlsplit("https://models.example/net.ekb"))       # None: straight there
    proxy.tunnel(sock, "models.example", 443)

Rules:
- http_proxy, https_proxy and no_proxy are read as other programs read them; a proxy is one that speaks HTTP without
  encryption, and any other kind is refused, so that a password meant for TLS does not go out without it;
- https goes through it from end to end, encrypted: the proxy learns the host's name and no more;
- the proxy's own password goes to the proxy alone, and into no message, event or file.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from edgekit_runtime.deadline import TimedSocket
from edgekit_runtime.errors import DownloadError

__all__ = ["Proxy", "basic", "proxy_for"]

_MOST_HEAD = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})([^\r\n]{0,80})")


class FinalError(DownloadError):
    """A second try would fail in the same way. `fetch` raises it as its parent."""


@dataclass(frozen=True)
class Proxy:
    """variable: that named it. authorization: for it alone; empty where it asks for none."""

    host: str
    port: int
    variable: str
    authorization: str = field(default="", repr=False)

    @property
    def told(self) -> str:
        return f"the proxy {self.host}:{self.port} ({self.variable})"

    def tunnel(self, sock: TimedSocket, host: str, port: int) -> None:
        """A way through, on a socket that is connected to the proxy. Raises DownloadError, OSError."""
        place = f"[{host}]:{port}" if ":" in host else f"{host.encode('idna').decode()}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if self.authorization:
            lines.append(f"Proxy-Authorization: {self.authorization}")
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        head = _head(sock)
        found = _STATUS.match(head)
        if found is None or len(head) > _MOST_HEAD:
            raise FinalError(f"{self.told} gives no answer of HTTP", do=f"Check {self.variable}")
        if not 200 <= int(found[1]) < 300:
            raise self.refusal(int(found[1]), found[2].decode("latin-1"))

    def refusal(self, status: int, reason: str) -> DownloadError:
        """What the proxy says for itself, and not for the server."""
        what = f"{self.told} answered {status} {reason.strip()}".strip()
        if status == 407:
            return FinalError(what, do=f"Give its name and password: {self.variable}=http://USER:PASSWORD@HOST:PORT")
        if 400 <= status < 500:
            return FinalError(what, do="Ask who runs the proxy; or go past it: name the host in no_proxy")
        return DownloadError(what, do="Try again later")


def proxy_for(parts: SplitResult) -> Proxy | None:
    """Of a URL; None for the straight way. Raises DownloadError where the environment names none that can be used."""
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
    """The name and password of a URL, as HTTP takes them."""
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode()


def _write(variable: str) -> str:
    return f"Write {variable}=http://HOST:PORT"


def _head(sock: TimedSocket) -> bytes:
    """Of the answer, and not a byte more: what follows is the other end's. Raises OSError."""
    head = bytearray()
    while not head.endswith((b"\r\n\r\n", b"\n\n")) and len(head) <= _MOST_HEAD:
        byte = sock.recv(1)
        if not byte:
            raise ConnectionAbortedError("it hung up")
        head += byte
    return bytes(head)
