"""A host's endpoint: parse its address, resolve its name and connect, within the deadline.

Rules:
- the system's resolver has no timeout, so a name is resolved in a thread of its own, one at a time for each host, and
  kept until a connection fails; a numeric address needs no thread;
- Nagle's algorithm is off: a small tensor must not wait for an acknowledgement.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # not the built-in one on Python 3.10
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgekit_runtime.remote.deadline import Deadline
from edgekit_runtime.system.errors import HostError, MemoryExceeded
from edgekit_runtime.system.threads import begin

if TYPE_CHECKING:
    import ssl

Address = tuple[int, Any]  # family, what socket.connect takes


class Endpoint:
    """url: http://name:port or https://name, with a path in front of /v2 if a proxy needs one."""

    def __init__(self, url: str, *, connect_timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        self.tls, self.name, self.port, self.prefix = _parse(self.url)
        self._context = tls
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._addresses: tuple[Address, ...] = ()
        self._lookup: Future[tuple[Address, ...]] | None = None

    def connect(self, deadline: Deadline) -> socket.socket:
        """A connected socket, for https after the handshake. Raises TimeoutError, HostError."""
        last: OSError | None = None
        for address in self._resolve(deadline):
            try:
                return self._open(address, deadline)
            except OSError as error:
                deadline.left()  # out of time is the caller's trouble, not the host's
                last = error
        self._addresses = ()
        if isinstance(last, TimeoutError):
            why = "no connection in time"
        elif isinstance(last, ConnectionRefusedError):
            why = "nothing listens there"
        else:
            why = f"no connection ({getattr(last, 'strerror', None) or last})"
        do = "Check that the host runs and that a firewall lets it be reached"
        raise HostError(why, where=self.url, do=do, code="host-unreachable")

    def _open(self, address: Address, deadline: Deadline) -> socket.socket:
        family, where = address
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(min(self._connect_timeout_s, deadline.left()))
            sock.connect(where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self.tls:
                return sock
            sock.settimeout(deadline.left())
            if self._context is None:
                import ssl

                self._context = ssl.create_default_context()
            return self._context.wrap_socket(sock, server_hostname=self.name)
        except BaseException:
            sock.close()
            raise

    def _resolve(self, deadline: Deadline) -> tuple[Address, ...]:
        with self._lock:
            if self._addresses:
                return self._addresses
            if _is_number(self.name):
                self._addresses = _look_up(self.name, self.port)
                return self._addresses
            lookup = self._lookup
            if lookup is None:
                lookup = self._lookup = Future()
                resolving = threading.Thread(target=self._answer, args=(lookup,), name="edgekit-resolve", daemon=True)
                try:
                    if not begin(resolving):
                        self._lookup = None
                        lookup.set_exception(socket.gaierror("the interpreter ends"))
                except MemoryExceeded as error:
                    self._lookup = None
                    lookup.set_exception(HostError(error.what, where=self.url, do=error.do))
        try:
            return lookup.result(deadline.left())
        except FutureTimeoutError as error:
            raise TimeoutError(f"the name '{self.name}' was not looked up in time") from error
        except TimeoutError:  # of the deadline
            raise
        except OSError as error:
            what = f"the name '{self.name}' is not known here"
            do = "Check the spelling, or give the address"
            raise HostError(what, where=self.url, do=do, code="host-unreachable") from error

    def _answer(self, lookup: Future[tuple[Address, ...]]) -> None:
        try:
            found = _look_up(self.name, self.port)
        except (OSError, UnicodeError) as error:
            self._lookup = None
            lookup.set_exception(error if isinstance(error, socket.gaierror) else socket.gaierror(str(error)))
            return
        self._addresses, self._lookup = found, None
        lookup.set_result(found)


def _parse(url: str) -> tuple[bool, str, int, str]:
    """(TLS?, name, port, path in front of /v2)."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _no_address(url) from error
    odd = parts.username or parts.query or parts.fragment or any(c <= " " or c == "\x7f" for c in url)
    if parts.scheme not in ("http", "https") or not parts.hostname or odd:
        raise _no_address(url)
    return parts.scheme == "https", parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path


def _no_address(url: str) -> HostError:
    return HostError(
        f"{url[:200]!r} is no host's address", do="Write it as http://name:8000 or https://name", code="host-address"
    )


def _look_up(name: str, port: int) -> tuple[Address, ...]:
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys((int(family), where) for family, _, _, _, where in found))


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name.split("%")[0])
    except ValueError:
        return False
    return True
