"""What the server refuses.
A request, with the status of its response, or the way it was started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from edgekit_runtime.errors import EdgekitError


class ServeError(EdgekitError):
    """The server cannot start: the port is taken, two bundles have one name."""

    code = "serve"
    reasons: ClassVar[dict[str, str]] = {
        "serve-certificate": "a certificate, its key or the clients' authority cannot be used for TLS",
        "serve-tokens": "the file of tokens cannot be read or does not add up",
        "serve-unencrypted": "the address is beyond loopback, and there is no TLS",
    }


class ExportError(EdgekitError):
    """A bundle that cannot be exported: no fitting artifact, a state, or an existing folder."""

    code = "export"


class RequestError(EdgekitError):
    """One request that gets no answer.
    status: of HTTP.
    close: nothing more can be read from this connection.

    headers: of the response.
    """

    code = "request"

    def __init__(
        self, status: int, what: str, *, close: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(what)
        self.status = status
        self.close = close
        self.headers = dict(headers or {})
