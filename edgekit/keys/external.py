"""A signer that is a command: a token, an HSM, a service. The private key is never here.

signer = ExternalSigner("openssl pkeyutl -sign -rawin -inkey key.pem -in {}", public)
signer.sign(message)                                   # 64 bytes, checked against the public key

Rules: the command is split as a shell would, and no shell runs it. It gets the bytes on its standard input and, where an
argument has `{}`, in a file of that name that goes away afterwards; it prints the signature raw, as base64 or as hex. What it
prints is verified before it is used. Its standard error and the terminal are its own: it may ask for a PIN.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgekit.keys.errors import KeysError
from edgekit_runtime.trust.signature import keyid_of

__all__ = ["ExternalSigner", "SignatureForm", "not_by", "signature_from"]

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")


@dataclass(frozen=True)
class ExternalSigner:
    """command: a line. public: the raw 32 bytes of the key it signs with. timeout_s: a person may have to touch something."""

    command: str
    public: bytes
    timeout_s: float = 300.0

    @property
    def keyid(self) -> str:
        return keyid_of(self.public)

    def sign(self, message: bytes) -> bytes:
        """Raises KeysError where the command fails, or what it prints is no signature by this key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519

        signature = signature_from(self.command, message, _ED25519, self.timeout_s)
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            raise not_by(self.command, self.keyid[:8]) from None
        return signature


@dataclass(frozen=True)
class SignatureForm:
    """What a signer should print. told: in words. fits: whether bytes have that form."""

    told: str
    fits: Callable[[bytes], bool]


_ED25519 = SignatureForm("the 64 bytes of an Ed25519 signature", lambda signature: len(signature) == 64)


def signature_from(command: str, message: bytes, form: SignatureForm, timeout_s: float = 300.0) -> bytes:
    """What `command` prints for `message`, decoded and not yet verified. Raises KeysError."""
    printed = _printed(command, message, timeout_s)
    for decode in (bytes, _hex, _base64):
        signature = decode(printed)
        if form.fits(signature):
            return signature
    raise KeysError(
        f"the signer printed {len(printed)} bytes that are no signature",
        where=command,
        do=f"It should print {form.told}, raw, as base64 or as hex, and nothing else",
    )


def not_by(command: str, key: str) -> KeysError:
    """What was printed has the form of a signature, and is none by the key that was named."""
    return KeysError(
        f"what the signer printed is no signature of key {key} over these bytes",
        where=command,
        do="Check that --sign names the public half of the key it uses, and that it signs the bytes as they are",
    )


def _printed(command: str, message: bytes, timeout_s: float) -> bytes:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise KeysError(f"--signer is no command: {error}", where=command, do="Check its quotes") from error
    if not words:
        raise KeysError("--signer names no command", do="Pass a command that signs what it reads")
    with tempfile.TemporaryDirectory(prefix="edgekit-sign-") as folder:
        file = Path(folder) / "message"
        if any("{}" in word for word in words):
            file.write_bytes(message)
        argv = [word.replace("{}", str(file)) for word in words]
        try:
            done = subprocess.run(argv, input=message, stdout=subprocess.PIPE, timeout=timeout_s, check=False)
        except OSError as error:
            raise KeysError(
                f"the signer cannot be started: {error.strerror or error}", where=argv[0], do="Check the command"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise KeysError(f"the signer did not answer within {timeout_s:g} s", where=command) from error
    if done.returncode != 0:
        raise KeysError(f"the signer ended with {done.returncode}", where=command, do="Its own words are above")
    return done.stdout


def _base64(printed: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(printed.split()), validate=True)
    except binascii.Error:
        return b""


def _hex(printed: bytes) -> bytes:
    text = b"".join(printed.split())
    return bytes.fromhex(text.decode()) if _HEX.fullmatch(text) else b""
