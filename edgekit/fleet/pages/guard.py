"""Middleware of every page: host names, sign-in, and security headers.

    Middleware(Guard, access=access, names=Names(("127.0.0.1", "fleet.example")))

Rules:
- a request names one of the server's own hosts, or it is refused with 421: a page elsewhere cannot rebind its name;
- without a sign-in there is nothing but the sign-in page, its style and whether the server is well;
- a request that changes something comes from a page of this server (Origin, or Sec-Fetch-Site);
  the form's own token is checked where the form is read;
- bundle files are for boards: their names are secret enough, and no browser looks at them;
- every answer has its security headers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool  # noqa: TID253
from starlette.requests import Request  # noqa: TID253
from starlette.responses import PlainTextResponse, RedirectResponse, Response  # noqa: TID253
from starlette.types import ASGIApp, Message, Receive, Scope, Send  # noqa: TID253

from edgekit.fleet.pages.access import Access, Asking, TooManyError

COOKIE = "edgekit-fleet"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BUNDLE = re.compile(r"/bundles/[0-9a-f]{64}\.ekb\Z")
_UNGUARDED = ("/sign-in", "/healthz")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_NOT_FROM_HERE = (
    "Forbidden: changes are accepted from this server's own pages only. In scripts use `edgekit fleet` with "
    "forget, acknowledge, silence, pause, resume, abort or undo.\n"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Names:
    """given: of --listen and --host.
    any_address: it listens on every address, so each counts."""

    given: Collection[str] = ()
    any_address: bool = False

    def has(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = _name_of(host)
        if name is None:
            return False
        return name in _LOOPBACK or name in self.given or (self.any_address and _is_address(name))

    @classmethod
    def of(cls, listen: str, more: Sequence[str] = ()) -> Names:
        """listen: the address without its port."""
        everywhere = _is_address(listen) and ipaddress.ip_address(listen).is_unspecified
        return cls(frozenset(name.lower().rstrip(".") for name in (listen, *more)), everywhere)


def _name_of(host: str) -> str | None:
    """The host without port and brackets, in lower case; None if invalid."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises for an invalid port
    except ValueError:
        return None
    if parts.netloc != host or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    def __init__(self, app: ASGIApp, access: Access, names: Names) -> None:
        self._app, self._access, self._names = app, access, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extra = [(k.encode(), v.encode()) for k, v in {**_HEADERS, "content-security-policy": _POLICY}.items()]
        if self._access.restricted and not scope["path"].startswith("/static/"):
            extra.append((b"cache-control", b"no-store"))

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in named)]
            await send(message)

        refused = await self._refusal(Request(scope))
        await (refused or self._app)(scope, receive, secured)

    async def _refusal(self, request: Request) -> Response | None:
        if _BUNDLE.match(request.url.path) and request.method in ("GET", "HEAD"):
            return None
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or _name_of(hosts[0]) is None:
            return PlainTextResponse("Bad Request: exactly one Host header is required.\n", 400)
        if not self._names.has(hosts[0]):
            what = "Misdirected Request: unknown host name; start the server with --host NAME to add it.\n"
            return PlainTextResponse(what, 421)
        if request.method not in ("GET", "HEAD") and not self._from_here(request, hosts[0]):
            return PlainTextResponse(_NOT_FROM_HERE, 403)
        who = asking(request, self._access)
        try:
            viewer = await run_in_threadpool(self._access.viewer, who) if who.basic else self._access.viewer(who)
        except TooManyError as error:
            return PlainTextResponse(f"{error}\n", 429, {"retry-after": f"{error.wait_s:.0f}"})
        request.scope["viewer"] = viewer
        if viewer is not None or request.url.path in _UNGUARDED or request.url.path.startswith("/static/"):
            return None
        return self._ask_to_sign_in(request)

    def _ask_to_sign_in(self, request: Request) -> Response:
        if self._access.header:
            what = f"Forbidden: requests must come through the sign-in proxy, with the header {self._access.header}.\n"
            return PlainTextResponse(what, 403)
        if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", ""):
            there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"/sign-in?next={quote(there, safe='')}", 303)
        return PlainTextResponse(
            "Unauthorized: sign in first.\n", 401, {"www-authenticate": 'Basic realm="edgekit fleet"'}
        )

    def _from_here(self, request: Request, host: str) -> bool:
        """Whether a page of this server sent it.

        A proxy may change the Host, so the given names count as Origin."""
        origin = request.headers.get("origin")
        if origin is None:
            return request.headers.get("sec-fetch-site") == "same-origin"
        scheme, _, there = origin.partition("://")
        return scheme in ("http", "https") and (there.lower() == host.lower() or _name_of(there) in self._names.given)


def address_of(request: Request, access: Access) -> str:
    return access.address_of(request.client.host if request.client else "", request.headers.getlist("x-forwarded-for"))


def asking(request: Request, access: Access) -> Asking:
    scheme, _, basic = request.headers.get("authorization", "").partition(" ")
    users: list[Any] = request.headers.getlist(access.header) if access.header else []
    return Asking(
        peer=address_of(request, access),
        cookie=request.cookies.get(COOKIE, ""),
        basic=basic.strip() if scheme.lower() == "basic" and access.needs_password else "",
        user=users[0] if len(users) == 1 else "",
    )
