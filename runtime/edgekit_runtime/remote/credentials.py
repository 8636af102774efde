"""Credentials for a `Host`: a bearer token, the CA of its certificate, a client certificate.

Rules:
- a token is read when needed, from a variable or a file that other users may not read; no message and no disk has it;
- a token never travels unencrypted, except to loopback.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edgekit_runtime.system.errors import HostError, SecretError

if TYPE_CHECKING:
    import ssl

    from edgekit_runtime.policy.options import Host

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def token_reader(host: Host) -> Callable[[], str] | None:
    """Reads the host's token; None if it has none. Both raise HostError (host-secret)."""
    source = host.token
    if source is None:
        return None
    parts = urlsplit(host.url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise HostError("the token would travel unencrypted", where=host.url, do="Write https://", code="host-secret")

    def read() -> str:
        from edgekit_runtime.bundle.secrets import from_file, from_variable

        kind, _, name = source.partition(":")
        try:
            data = from_variable(name) if kind == "env" else from_file(Path(name).expanduser(), source)
        except (SecretError, RuntimeError) as error:
            cause = error.__cause__
            why = cause.strerror if isinstance(cause, OSError) else getattr(error, "what", str(error))
            do = "Set the variable, or put the token into a file of mode 0600"
            raise HostError(f"the token cannot be read: {why}", where=source, do=do, code="host-secret") from error
        token = data.strip().decode("latin-1")
        if not token or not (token.isascii() and token.isprintable() and " " not in token):
            what = "this is no token: one word of printable ASCII is needed"
            raise HostError(what, where=source, do="Put the token there, and nothing else", code="host-secret")
        return token

    read()
    return read


def tls_context(host: Host) -> ssl.SSLContext | None:
    """None if the system's trust is enough. Raises HostError (host-secret)."""
    if host.ca is None and host.certificate is None:
        return None
    import ssl

    from edgekit_runtime.system.files import PemError, load_certificate, pem_errors

    try:
        with pem_errors(host.ca or ""):
            context = ssl.create_default_context(cafile=host.ca)
        if host.certificate is not None:
            load_certificate(context, host.certificate)
    except PemError as error:
        do = "Give PEM files: ca= the authorities, certificate= a certificate followed by its private key"
        raise HostError(error.what, where=error.where, do=do, code="host-secret") from error
    return context
