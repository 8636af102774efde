"""Access to the pages: open, by password, or for users that a trusted proxy has signed in.

    access = Access.by_password("correct horse", clock=time.monotonic)
    token = access.sign_in("192.0.2.7", "correct horse")            # a session's; None when it is wrong
    access.viewer(Asking(peer="192.0.2.7", cookie=token))           # Viewer(name="operator", csrf="...")

Rules:
- the password is kept as scrypt's hash, with a salt of this process; tokens of sessions as their SHA-256;
- one password is hashed at a time. An account may be wrong from an address five times at once, an address 20 times,
  all together 60 times. An account that was right before has only the first of these bounds, so others' guesses do not
  lock it out;
- behind a trusted proxy the address is the one that it forwards; no other sender's header counts;
- a session ends after twelve hours, by signing out, and with the process; the oldest of 1,000 makes room;
- a proxy's header counts only on a connection from that proxy's own address;
- the token of a form is an HMAC of who sees it, so one viewer's is worth nothing with another's session;
- a form has at most 16 KiB, and the token of the viewer who was shown it, or it is refused.

    form = await read_form(request, access, viewer)         # {"csrf": "...", "device": "porch-1"}
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException  # noqa: TID253
from starlette.requests import Request  # noqa: TID253

from edgekit.fleet.store.fleet_errors import FleetError
from edgekit.peers import peer_of

LEAST_CHARACTERS = 10
SESSION_S = 12 * 3600.0
_MOST_PASSWORD = 1024
_MOST_SESSIONS = 1000
_MOST_PEERS = 10_000
_MOST_NAME = 64


class TooManyError(Exception):
    """Too many wrong passwords. wait_s: until the next attempt."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong passwords; try again in {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass(frozen=True)
class Asking:
    """Credentials of a request.
    peer: its address, as `Access.address_of` has it.
    cookie: the session's token.
    basic: of `Authorization: Basic`."""

    peer: str
    cookie: str = ""
    basic: str = ""
    user: str = ""


@dataclass(frozen=True)
class Viewer:
    """name: "" without sign-in. csrf: the token of this viewer's forms."""

    name: str
    csrf: str


class _Rate:
    """A token bucket: `most` at once, one more every `every_s`."""

    def __init__(self, most: int, every_s: float) -> None:
        self._most, self._every_s = most, every_s
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: Hashable, now: float) -> float:
        left, at = self._left.get(key, (float(self._most), now))
        left = min(self._most, left + (now - at) / self._every_s)
        return 0.0 if left >= 1 else (1 - left) * self._every_s

    def take(self, key: Hashable, now: float) -> None:
        left, at = self._left.pop(key, (float(self._most), now))
        self._left[key] = (min(self._most, left + (now - at) / self._every_s) - 1, now)
        if len(self._left) > _MOST_PEERS:
            self._left.popitem(last=False)


class Access:
    """clock: monotonic seconds. header: the proxy's, in small letters; proxies: its addresses."""

    def __init__(
        self, clock: Callable[[], float], *, password: str | None = None, header: str = "", proxies: Sequence[str] = ()
    ) -> None:
        self._clock = clock
        self._key, self._salt = secrets.token_bytes(32), secrets.token_bytes(16)
        self._hash = None if password is None else self._scrypt(password)
        self.header = header.lower()
        self.proxies = frozenset(proxies)
        self._sessions: OrderedDict[bytes, float] = OrderedDict()
        self._known: bytes | None = None
        self._hashing = threading.Lock()
        self._each, self._peers, self._all = _Rate(5, 12.0), _Rate(20, 12.0), _Rate(60, 1.0)
        self._right_before: OrderedDict[tuple[str, str], None] = OrderedDict()

    @classmethod
    def open(cls) -> Access:
        """Access for everyone who can reach the pages."""
        return cls(lambda: 0.0)

    @classmethod
    def by_password(cls, password: str, clock: Callable[[], float], proxies: Sequence[str] = ()) -> Access:
        """Raises FleetError for a password that is too short or too long, or an invalid address."""
        if not LEAST_CHARACTERS <= len(password) <= _MOST_PASSWORD:
            raise FleetError(
                f"the password has {len(password)} characters",
                where="--password",
                do=f"Choose one of {LEAST_CHARACTERS} to {_MOST_PASSWORD} characters",
            )
        return cls(clock, password=password, proxies=[_address(proxy) for proxy in proxies])

    @classmethod
    def by_proxy(cls, header: str, proxies: Sequence[str]) -> Access:
        """Raises FleetError for an invalid header or address."""
        if not header or not all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in header):
            raise FleetError("not a header name", where=header, do="Write it like X-Forwarded-User")
        return cls(lambda: 0.0, header=header, proxies=[_address(proxy) for proxy in proxies])

    @property
    def needs_password(self) -> bool:
        return self._hash is not None

    @property
    def restricted(self) -> bool:
        return self.needs_password or bool(self.header)

    def address_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """The address whose guesses are counted. forwarded: the values of X-Forwarded-For."""
        if self.header or peer not in self.proxies:
            return peer
        for text in reversed(",".join(forwarded).split(",")):
            try:
                address = _address(text.strip())
            except FleetError:
                break
            if address not in self.proxies:
                return address
        return peer

    def viewer(self, asking: Asking) -> Viewer | None:
        """The viewer, or None if not signed in.

        With `basic` it may hash a password, so it must not run on the event loop."""
        if self.header:
            named = asking.peer in self.proxies and asking.user.strip()[:_MOST_NAME]
            return self._viewer(named, named) if named else None
        if self._hash is None:
            return self._viewer("", "anybody")
        until = self._sessions.get(_digest(asking.cookie)) if asking.cookie else None
        if until is not None and self._clock() < until:
            return self._viewer("operator", asking.cookie)
        if asking.basic and self._right(asking.peer, *_of_basic(asking.basic)):
            return self._viewer("operator", "basic")
        return None

    def sign_in(self, peer: str, password: str) -> str | None:
        """A new session's token. Raises TooManyError."""
        if not self._right(peer, "", password):
            return None
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = self._clock() + SESSION_S
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return token

    def sign_out(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def form_token(self, subject: str) -> str:
        return hmac.new(self._key, subject.encode(), "sha256").hexdigest()

    def is_form_token(self, viewer: Viewer, given: str) -> bool:
        return hmac.compare_digest(viewer.csrf.encode(), given.encode())

    def _viewer(self, name: str, subject: str) -> Viewer:
        return Viewer(name, self.form_token(subject))

    def _right(self, peer: str, account: str, password: str) -> bool:
        """Check the password. account: as a script names itself; any has the same password.

        Raises TooManyError before comparing, so even a correct guess is refused then."""
        peer = peer_of(peer)
        one = peer, account[:_MOST_NAME]
        with self._hashing:
            now = self._clock()
            wait_s = self._each.wait_s(one, now)
            if one not in self._right_before:
                wait_s = max(wait_s, self._peers.wait_s(peer, now), self._all.wait_s("", now))
            if wait_s:
                raise TooManyError(wait_s)
            known = hmac.digest(self._key, password.encode(), "sha256")
            seen = self._known is not None and hmac.compare_digest(known, self._known)
            fits = len(password) <= _MOST_PASSWORD
            right = seen or (fits and hmac.compare_digest(self._scrypt(password), self._hash or b""))
            if right:
                self._known, self._right_before[one] = known, None
                if len(self._right_before) > _MOST_PEERS:
                    self._right_before.popitem(last=False)
            else:
                self._each.take(one, now)
                self._peers.take(peer, now)
                self._all.take("", now)
            return right

    def _scrypt(self, password: str) -> bytes:
        return hashlib.scrypt(password.encode(), salt=self._salt, n=2**14, r=8, p=1)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise FleetError("not an IP address", where=text, do="Write it like 127.0.0.1") from error


def _of_basic(text: str) -> tuple[str, str]:
    """(account, password)"""
    try:
        account, _, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return account, password


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


_MOST_BYTES = 16 * 1024


async def read_form(request: Request, access: Access, viewer: Viewer) -> dict[str, str]:
    """Raises HTTPException: 413, 415, 400 and, without the viewer's token, 403."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415, "Not a form.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, "The form is too large.")
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=50))
    except ValueError as error:
        raise HTTPException(400, "The form cannot be parsed.") from error
    if not access.is_form_token(viewer, form.get("csrf", "")):
        raise HTTPException(403, "This form has expired. Go back, reload the page and try again.")
    return form
