"""`edgekit host serve`: the server on a socket, protected, until a signal.

    sock = bind("127.0.0.1", 8080)
    serve(repository, sock, ready, Protection(certificate, key, tokens=tokens))

Rules:
- beyond loopback it needs TLS 1.2 or later, unless the owner allows clear text; with a client authority every client
  needs its certificate. Only the owner may be able to replace the key;
- certificates and tokens are read again when their files change.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.host.access import Tokens
from edgekit.host.api import Api
from edgekit.host.connection import Server
from edgekit.host.http1 import ServeError
from edgekit.host.models import Repository
from edgekit_runtime.system import files as pem
from edgekit_runtime.system.files import first_unsafe

_SWITCH_S = 0.0005
"""Switch interval between the event loop and an engine's thread. With Python's 5 ms, refusals took more than twice as
long at ten times capacity."""

_LOG = logging.getLogger("edgekit.host")
_Stamp = tuple[int, int, int]


class Reread:
    """Reload certificates and tokens when their files change.

    The caller has loaded them once. An invalid replacement is logged once and changes nothing.
    load: loads the files; may raise ServeError.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], None]) -> None:
        self._paths, self._load = paths, load
        self._seen = self._stamps()

    def check(self) -> None:
        """Reload the files if one of them has changed."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._load()
        except ServeError as error:
            _LOG.error("%s; the previous version stays in use", error)
        else:
            _LOG.info("reloaded %s", ", ".join(map(str, self._paths)))

    def _stamps(self) -> list[_Stamp | None]:
        stamps: list[_Stamp | None] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return stamps


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket; port 0 for any free port. Raises ServeError."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ServeError(
            f"'{host}' is not an address of this machine", where=where, do="Pass --listen ADDRESS:PORT"
        ) from error
    sock = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(where, error) from error
    return sock


def _cannot_listen(where: str, error: OSError) -> ServeError:
    return ServeError(
        f"cannot listen: {os.strerror(error.errno) if error.errno else error}",
        where=where,
        do="Stop the process on that port, or pass another, such as --listen 127.0.0.1:0 for any free port",
    )


@dataclass(frozen=True)
class Protection:
    """How a server is protected; all None on loopback.
    certificate, key, client_ca: PEM.
    tokens: see `Tokens`."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None

    def check(self) -> None:
        """Load every file once, before bundles are opened. Raises ServeError."""
        if self.certificate is not None:
            tls_context(self.certificate, self.key, self.client_ca)
        if self.tokens is not None:
            Tokens.read(self.tokens)


def check_exposure(sock: socket.socket, *, encrypted: bool) -> None:
    """Refuse a non-loopback address without TLS. Raises ServeError (serve-unencrypted)."""
    address = sock.getsockname()[0]
    if not encrypted and not ipaddress.ip_address(address.split("%")[0]).is_loopback:
        raise ServeError(
            "other machines reach the address and TLS is off: requests, answers and tokens could be read",
            where=address,
            do="Pass --certificate, listen on 127.0.0.1, or pass --unencrypted on a trusted network",
            code="serve-unencrypted",
        )


def serve(
    repository: Repository, sock: socket.socket, ready: Callable[[], None], protection: Protection | None = None
) -> tuple[int, str]:
    """Serve until SIGINT or SIGTERM. ready: called when the server accepts requests.

    Returns the exit code (130 after SIGINT, else 0) and a summary line. A second signal ends draining.
    Raises ServeError.
    """
    sys.setswitchinterval(_SWITCH_S)
    return asyncio.run(_serve(repository, sock, ready, protection or Protection()))


def protected(api: Api, protection: Protection) -> Server:
    """A protected server of the api; it reloads its files when they change. Raises ServeError."""
    rereads, tls, path = [], None, protection.tokens
    if path is not None:
        api.tokens = Tokens.read(path)
        rereads.append(Reread((path,), lambda: setattr(api, "tokens", Tokens.read(path, api.tokens))))
    certificate, key = protection.certificate, protection.key
    if certificate is not None:
        tls = context = tls_context(certificate, key, protection.client_ca)
        files = (certificate,) if key is None else (certificate, key)
        rereads.append(Reread(files, lambda: load_certificate(context, certificate, key)))
    return Server(api, tls=tls, every_second=[reread.check for reread in rereads])


async def _serve(
    repository: Repository, sock: socket.socket, ready: Callable[[], None], protection: Protection
) -> tuple[int, str]:
    api = Api(repository)
    server = protected(api, protection)
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, signals.put_nowait, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda received, _: loop.call_soon_threadsafe(signals.put_nowait, received))
    try:
        await server.start(sock)
    except OSError as error:
        raise _cannot_listen("{}:{}".format(*sock.getsockname()[:2]), error) from error
    ready()
    received = await signals.get()
    stopping = asyncio.ensure_future(server.stop())
    again = asyncio.ensure_future(signals.get())
    await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await server.stop(drain_s=0)
    again.cancel()
    return (130 if received == signal.SIGINT else 0), _summary(api.counts)


def _summary(counts: Mapping[int, int]) -> str:
    """`120 answered, 3 refused (404: 1, 413: 2)`."""
    refused = {status: n for status, n in sorted(counts.items()) if status >= 400}
    text = f"{sum(counts.values()) - sum(refused.values())} answered"
    if refused:
        text += f", {sum(refused.values())} refused ({', '.join(f'{status}: {n}' for status, n in refused.items())})"
    return text


def tls_context(certificate: Path, key: Path | None = None, client_ca: Path | None = None) -> ssl.SSLContext:
    """certificate: PEM, the server's first, and its key where `key` is None.
    Raises ServeError (serve-certificate)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate, key)
    if client_ca is not None:
        try:
            with pem.pem_errors(client_ca):
                context.load_verify_locations(client_ca)
        except pem.PemError as error:
            raise _unusable(error, "Pass the CA certificates in PEM") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Set the certificate of new connections. Raises ServeError (serve-certificate)."""
    if unsafe := first_unsafe(key or certificate):
        raise ServeError(unsafe.what, where=str(unsafe.where), do=unsafe.do, code="serve-certificate")
    try:
        pem.load_certificate(context, certificate, key)
    except pem.PemError as error:
        raise _unusable(error, "Pass a PEM certificate with its private key appended, or the key with --key") from error


def _unusable(error: pem.PemError, do: str) -> ServeError:
    return ServeError(error.what, where=error.where, do=do, code="serve-certificate")
