"""PEM files of TLS, of a device as of a host's server: loaded, or refused with the reason.

    load_certificate(context, Path("board.pem"))
    with pem_errors(path):
        context.load_verify_locations(path)

Rules:
- a private key with a passphrase is refused: no one is there to type it;
- a file that cannot be used is a PemError, whatever `ssl` says about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from typing import NoReturn

PemPath = str | os.PathLike[str]


class PemError(Exception):
    """A PEM file that cannot be used. where: the file. what: the reason, for a person."""

    def __init__(self, path: PemPath, error: Exception) -> None:
        self.where = os.fspath(path)
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "it is no PEM file"
        self.what = f"it cannot be used for TLS: {why}"
        super().__init__(f"{self.where}: {self.what}")


@contextmanager
def pem_errors(path: PemPath) -> Iterator[None]:
    """Turn what `ssl` raises about this file into a PemError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise PemError(path, error) from error


def load_certificate(context: ssl.SSLContext, certificate: PemPath, key: PemPath | None = None) -> None:
    """certificate: its private key follows it in the file where `key` is None. Raises PemError."""
    with pem_errors(certificate):
        context.load_cert_chain(certificate, key, password=_refuse)


def _refuse() -> NoReturn:
    raise ValueError("its private key has a passphrase")
