"""Clients of the host server, known by the SHA-256 of their bearer token, each with a rate.

    tokens = Tokens.read(Path("tokens.txt"))
    client = tokens.admit(head.headers, now)                # raises RequestError: 401, or 429 with Retry-After
    client.charge(items - 1)

    # name      SHA-256 of the token                    requests a second
    board-7     9f86d081884c7d659a2feaa0c55ad015...     50
    operator    60303ae22b998861bce3b28f33eec1be...     5       admin

Rules:
- the file holds hashes, not tokens, and only its owner can replace it;
- every line is compared in constant time, also after a match;
- a client may burst one second's worth of its rate; each item counts as a request; readiness checks, which devices make
  four times a second, do not count;
- messages and logs contain neither tokens nor hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgekit.host.http1 import RequestError, ServeError
from edgekit_runtime.system.files import first_unsafe, read_regular

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 2**20
_MOST_TOKEN = 4096


class Client:
    """One line of the file. rate: requests a second. admin: may load and unload models."""

    def __init__(self, name: str, digest: str, rate: float, *, admin: bool = False) -> None:
        self.name, self.admin = name, admin
        self._digest = bytes.fromhex(digest)
        self._rate = rate
        self._most = self._left = max(1.0, rate)
        self._at = -math.inf

    def holds(self, digest: bytes) -> bool:
        """Whether the hash is this client's, in constant time."""
        return hmac.compare_digest(self._digest, digest)

    def take(self, now: float) -> None:
        """Count one request. Raises RequestError(429)."""
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            wait_s = max(1, math.ceil((1 - self._left) / self._rate))
            raise RequestError(
                429,
                f"'{self.name}' exceeds its rate of {self._rate:g} requests per second",
                close=True,
                headers={"Retry-After": str(wait_s)},
            )
        self._left -= 1

    def charge(self, requests: int) -> None:
        """Count further requests, which delays the next ones."""
        self._left -= requests

    def resume(self, earlier: Client) -> None:
        """Carry over the remaining rate after the file was reloaded."""
        self._left, self._at = min(self._most, earlier._left), earlier._at


class Tokens:
    """The clients of one file."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = tuple(clients)

    @classmethod
    def read(cls, path: Path, before: Tokens | None = None) -> Tokens:
        """before: the previous contents. Raises ServeError (serve-tokens)."""
        if unsafe := first_unsafe(path):
            raise ServeError(unsafe.what, where=str(unsafe.where), do=unsafe.do, code="serve-tokens")
        try:
            text = read_regular(path, _MOST_BYTES).decode()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise _wrong(f"cannot read the tokens: {why}", str(path)) from error
        lines = enumerate(text.splitlines(), 1)
        clients = [_client(line, f"{path}, line {number}") for number, line in lines if line.split("#", 1)[0].strip()]
        if not clients:
            raise _wrong("the file lists no clients", str(path))
        names = [client.name for client in clients]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise _wrong(f"duplicate client '{twice}'", str(path))
        earlier = {} if before is None else {client.name: client for client in before._clients}
        for client in clients:
            if client.name in earlier:
                client.resume(earlier[client.name])
        return cls(clients)

    def admit(self, headers: Mapping[str, str], now: float, *, counts: bool = True) -> Client:
        """The client of a request. counts: against its rate. Raises RequestError(401 or 429)."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else ""
        digest = hashlib.sha256(given[:_MOST_TOKEN].encode("latin-1")).digest()
        found = [client for client in self._clients if client.holds(digest)]
        if not given or not found:
            said = "unknown token" if given else "token required: Authorization: Bearer TOKEN"
            raise RequestError(401, said, close=True, headers={"WWW-Authenticate": "Bearer"})
        if counts:
            found[0].take(now)
        return found[0]


def _client(line: str, where: str) -> Client:
    name, *fields = line.split("#", 1)[0].split()
    if len(fields) not in (2, 3) or (len(fields) == 3 and fields[2] != "admin"):
        raise _wrong("expected a name, a hash, a rate and optionally 'admin'", where)
    if not _DIGEST.fullmatch(fields[0]):
        raise _wrong("the hash is not 64 lowercase hexadecimal digits", where)
    try:
        rate = float(fields[1])
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise _wrong("the rate must be a positive number of requests per second", where)
    return Client(name, fields[0], rate, admin=len(fields) == 3)


def _wrong(what: str, where: str) -> ServeError:
    do = "Write one client per line: NAME SHA256-OF-TOKEN REQUESTS-PER-SECOND [admin]"
    return ServeError(what, where=where, do=do, code="serve-tokens")
