"""A certificate authority, and certificates by it for 127.0.0.1, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def authority(folder: Path) -> Path:
    """ca.pem, with its key beside it.

    Python 3.13 asks for a key usage, and for the issuer's key id in what it signs.
    """
    _openssl(
        folder, "req", "-x509", *_KEY, "-days", "1", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    return folder / "ca.pem"


def certificate(folder: Path, name: str) -> Path:
    """NAME.pem: the certificate and its key; NAME.crt and NAME.key apart."""
    _openssl(folder, "req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / "ext").write_text(
        "subjectAltName=IP:127.0.0.1\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "1", "-extfile", "ext", "-out", f"{name}.crt",
    )  # fmt: skip
    whole = folder / f"{name}.pem"
    whole.write_bytes((folder / f"{name}.crt").read_bytes() + (folder / f"{name}.key").read_bytes())
    return whole


def lock(folder: Path, name: str) -> None:
    """locked.key: NAME's key, with a passphrase; locked.pem: NAME's certificate before it."""
    _openssl(folder, "pkey", "-in", f"{name}.key", "-aes256", "-passout", "pass:x", "-out", "locked.key")
    (folder / "locked.pem").write_bytes((folder / f"{name}.crt").read_bytes() + (folder / "locked.key").read_bytes())


def _openssl(folder: Path, *command: str) -> None:
    done = subprocess.run(["openssl", *command], capture_output=True, cwd=folder)
    assert done.returncode == 0, done.stderr
