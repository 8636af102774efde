"""The server's TLS: its certificate and key, and the authority of its clients' certificates.

    context = tls_context(Path("host.pem"), client_ca=Path("boards.pem"))

Rules:
- TLS 1.2 or later; with a client authority a client without its certificate gets no connection;
- another user must not be able to replace the key.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from edgekit.host.errors import ServeError
from edgekit_runtime import pem
from edgekit_runtime.strict_modes import first_unsafe

__all__ = ["load_certificate", "tls_context"]


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
            raise _unusable(error, "Give the authorities' certificates, in PEM") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """What new connections get from now on. Raises ServeError (serve-certificate)."""
    if unsafe := first_unsafe(key or certificate):
        raise ServeError(unsafe.what, where=str(unsafe.where), do=unsafe.do, code="serve-certificate")
    try:
        pem.load_certificate(context, certificate, key)
    except pem.PemError as error:
        raise _unusable(error, "Give a PEM certificate, and its private key behind it or with --key") from error


def _unusable(error: pem.PemError, do: str) -> ServeError:
    return ServeError(error.what, where=error.where, do=do, code="serve-certificate")
