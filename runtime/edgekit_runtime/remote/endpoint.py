"""HTTP/1.1 to one place, under one deadline: look up, connect, tunnel, encrypt, send, read.

    connection = Endpoint("https://gpu-box:8000", connect_timeout_s=1.0).connect(Deadline(0.050))
    connection.request("GET", "/v2")                  # http.client's
    connection.getresponse().read()

Rules:
- a socket's own timeout restarts with each read, and http.client reads headers, chunk extensions and trailers without
  end: time and bytes are limited below it, in `TimedSocket`;
- the system's resolver has no timeout, so a name is resolved in a thread of its own, one at a time for each endpoint,
  and kept until a connection fails; a numeric address needs no thread;
- a proxy speaks plain HTTP and tunnels https. Its password goes to the proxy alone;
- Nagle's algorithm is off: a small tensor must not wait for an acknowledgement.
"""

from __future__ import annotations

import io
import ipaddress
import math
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # not the built-in one on Python 3.10
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from edgekit_runtime.system.errors import HostError, MemoryExceeded
from edgekit_runtime.system.threads import begin

if TYPE_CHECKING:
    import ssl

Address = tuple[int, Any]  # family, what socket.connect takes


class TooManyBytesError(OSError):
    """The other side sent more than the exchange may take."""


class ProxyRefusal(OSError):  # noqa: N818 - an answer
    """The proxy opened no tunnel. status: 0 if its answer is not HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.reason = status, reason


class Deadline:
    """timeout_s from now, on a monotonic clock.

    step_s: the longest single wait within it.
    late_s: its last part, unknown to the other side: an answer in it is too late, and shows how late.
    """

    def __init__(
        self,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        step_s: float = math.inf,
        late_s: float = 0.0,
    ) -> None:
        self._clock, self._step_s, self._late_s = clock, step_s, late_s
        self._at = clock() + timeout_s

    def left(self) -> float:
        """Seconds that a single wait may take, more than 0. Raises TimeoutError if none are left."""
        left = self._at - self._clock()
        if left <= 0:
            raise TimeoutError("the time given ran out")
        return min(left, self._step_s)

    def wanted_us(self) -> int:
        """Microseconds in which an answer is in time, at least 1. Raises TimeoutError."""
        return max(1, int((self.left() - self._late_s) * 1e6))


class TimedSocket(io.RawIOBase):
    """A connected socket with a deadline, which the owner sets for each exchange.

    received: bytes so far.
    most: limit of `received`; the owner may raise it.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline, most: float = math.inf) -> None:
        self.sock = sock
        self.deadline = deadline
        self.received = 0
        self.most = most

    def sendall(self, data: Any) -> None:
        # An SSL socket's own sendall applies its timeout to every record, so the loop is ours.
        view = memoryview(data).cast("B")
        while view:
            self.sock.settimeout(self.deadline.left())
            view = view[self.sock.send(view) :]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Raises TimeoutError, TooManyBytesError."""
        self.sock.settimeout(self.deadline.left())
        count = self.sock.recv_into(buffer)
        self.received += count
        if self.received > self.most:
            raise TooManyBytesError("more bytes came than were promised")
        return count

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """Does nothing: http.client closes before it reads a response, and a response at its end."""


class TimedConnection(HTTPConnection):
    """http.client's connection over a connected `TimedSocket`. idle_since: for a pool."""

    auto_open = 0

    def __init__(self, name: str, port: int, default_port: int, timed: TimedSocket) -> None:
        super().__init__(name, port)
        self.default_port = default_port  # decides whether the header Host names the port
        self.sock: Any = timed
        self.timed = timed
        self.idle_since = 0.0

    @property
    def ended(self) -> bool:
        """Whether the other side has closed it, or sent unrequested bytes."""
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(self.timed.sock, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        self.close()
        self.timed.sock.close()


@dataclass(frozen=True)
class Proxy:
    """variable: environment variable that named it.
    authorization: header value, empty if it needs none.
    """

    host: str
    port: int
    variable: str
    authorization: str = field(default="", repr=False)


class Endpoint:
    """url: http://name:port or https://name, with a path in front of /v2 if a proxy needs one.

    Raises HostError (host-address) for any other URL.
    """

    def __init__(
        self, url: str, *, connect_timeout_s: float, tls: ssl.SSLContext | None = None, proxy: Proxy | None = None
    ) -> None:
        self.url = url.rstrip("/")
        try:
            parts = parse_url(self.url)
            if parts.username or parts.query or parts.fragment:
                raise ValueError("an address without user, query and fragment is needed")
        except ValueError as error:
            what, do = f"{url[:200]!r} is not a host address", "Write it as http://name:8000 or https://name"
            raise HostError(what, do=do, code="host-address") from error
        self.tls, self.name, self.prefix = parts.scheme == "https", parts.hostname or "", parts.path
        self.port = port_of(parts)
        self._proxy, self._context, self._connect_timeout_s = proxy, tls, connect_timeout_s
        self._place = (self.name, self.port) if proxy is None else (proxy.host, proxy.port)
        self._lock = threading.Lock()
        self._addresses: tuple[Address, ...] = ()
        self._lookup: Future[tuple[Address, ...]] | None = None

    def connect(self, deadline: Deadline, most: float = math.inf) -> TimedConnection:
        """most: bytes that may come.

        Raises HostError (host-unreachable), OSError, HTTPException.
        """
        timed = TimedSocket(self._open(deadline), deadline, most)
        try:
            if self.tls and self._proxy is not None:
                self._tunnel(timed, self._proxy)
            if self.tls:
                self._encrypt(timed)
            return TimedConnection(self.name, self.port, 443 if self.tls else 80, timed)
        except BaseException:
            self._addresses = ()
            timed.sock.close()
            raise

    def _open(self, deadline: Deadline) -> socket.socket:
        last: OSError | None = None
        for family, where in self._resolve(deadline):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(min(self._connect_timeout_s, deadline.left()))
                sock.connect(where)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                sock.close()
                deadline.left()  # out of time is the caller's trouble, not the host's
                last = error
        self._addresses = ()
        if isinstance(last, TimeoutError):
            why = "no connection in time"
        elif isinstance(last, ConnectionRefusedError):
            why = "nothing listens there"
        else:
            why = f"no connection ({getattr(last, 'strerror', None) or last})"
        raise self._unreachable(why, "Check that the host runs and that a firewall lets it be reached")

    def _tunnel(self, timed: TimedSocket, proxy: Proxy) -> None:
        """Raises ProxyRefusal, HTTPException, OSError."""
        place = f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name.encode('idna').decode()}:{self.port}"
        connection = TimedConnection(proxy.host, proxy.port, 80, timed)
        connection.putrequest("CONNECT", place, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", place)
        if proxy.authorization:
            connection.putheader("Proxy-Authorization", proxy.authorization)
        connection.endheaders()
        try:
            response = connection.getresponse()
        except HTTPException as error:
            if isinstance(error, ConnectionError):
                raise
            raise ProxyRefusal(0, "it does not speak HTTP") from error
        if not 200 <= response.status < 300:
            raise ProxyRefusal(response.status, response.reason)
        response.close()  # what it read ahead is lost: no TLS server speaks first

    def _encrypt(self, timed: TimedSocket) -> None:
        import ssl

        if self._context is None:
            self._context = ssl.create_default_context()
        timed.sock.settimeout(timed.deadline.left())
        try:
            timed.sock = self._context.wrap_socket(timed.sock, server_hostname=self.name)
        except ssl.SSLCertVerificationError as error:
            what = f"its certificate is not accepted ({error.verify_message}); a wrong clock is a common cause"
            raise self._unreachable(what, "Set this machine's clock, or trust the certificate's authority") from error

    def _resolve(self, deadline: Deadline) -> tuple[Address, ...]:
        name, port = self._place
        with self._lock:
            if not self._addresses and _is_number(name):
                self._addresses = _look_up(name, port)
            if self._addresses:
                return self._addresses
            lookup = self._lookup
            if lookup is None:
                lookup = self._lookup = Future()
                resolving = threading.Thread(target=self._answer, args=(lookup,), name="edgekit-resolve", daemon=True)
                try:
                    if not begin(resolving):
                        lookup.set_exception(socket.gaierror("the interpreter ends"))
                except MemoryExceeded as error:
                    self._lookup = None
                    raise HostError(error.what, where=self.url, do=error.do) from error
        try:
            return lookup.result(deadline.left())
        except FutureTimeoutError as error:
            raise TimeoutError(f"the name '{name}' was not looked up in time") from error
        except TimeoutError:  # of the deadline
            raise
        except OSError as error:
            what = f"the name '{name}' cannot be resolved"
            raise self._unreachable(what, "Check the spelling, or give the address") from error

    def _answer(self, lookup: Future[tuple[Address, ...]]) -> None:
        try:
            found = _look_up(*self._place)
        except (OSError, UnicodeError) as error:
            self._lookup = None
            lookup.set_exception(error if isinstance(error, socket.gaierror) else socket.gaierror(str(error)))
            return
        self._addresses, self._lookup = found, None
        lookup.set_result(found)

    def _unreachable(self, what: str, do: str) -> HostError:
        return HostError(what, where=self.url, do=do, code="host-unreachable")


def parse_url(url: str) -> SplitResult:
    """Raises ValueError for anything but an http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("not an http or https URL")
    if "[" in parts.netloc and not _is_number(parts.hostname):  # Python 3.11 looks itself
        raise ValueError("the brackets hold no IP address")
    if any(letter <= " " or letter == "\x7f" for letter in url):
        raise ValueError("a URL has no blanks and control characters")
    return parts


def port_of(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _look_up(name: str, port: int) -> tuple[Address, ...]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys((int(family), where) for family, _, _, _, where in found))


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name.split("%")[0])
    except ValueError:
        return False
    return True
