"""What the server says no to: a request, with the status that goes on the wire, or the way it was started."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = ["RequestError", "ServeError"]


class ServeError(EdgekitError):
    """The server cannot start: the port is taken, two bundles have one name."""

    code = "serve"


class RequestError(EdgekitError):
    """One request that gets no answer. status: of HTTP. close: nothing more can be read from this connection. allow:
    the method that would have been taken."""

    code = "request"

    def __init__(self, status: int, what: str, *, close: bool = False, allow: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.close = close
        self.allow = allow
