"""A signer that is a command: a token, an HSM, a service. The private key is never here.

signer = ExternalSigner("openssl pkeyutl -sign -rawin -inkey key.pem -in {}", public)
signer.sign(message)                                   # 64 bytes, checked against the public key

Rules: the command is split as a shell would, and no shell runs it. It gets the bytes on its standard input and, where an
argument has `{}`, in a file of that name that goes away afterwards; it prints the signature as 64 raw bytes, as base64 or as
hex. What it prints is verified before it is used. Its standard error and the terminal are its own: it may ask for a PIN.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgekit.keys.errors import KeysError
from edgekit_runtime.bundle.signature import keyid_of

__all__ = ["ExternalSigner"]

_HEX = re.compile(rb"[0-9a-fA-F]{128}")


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

        signature = self._decoded(self._printed(message))
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            raise KeysError(
                f"what the signer printed is no signature of key {self.keyid[:8]} over these bytes",
                where=self.command,
                do="Check that --sign names the public half of the key it uses, and that it signs the bytes as they are",
            ) from None
        return signature

    def _printed(self, message: bytes) -> bytes:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise KeysError(f"--signer is no command: {error}", where=self.command, do="Check its quotes") from error
        if not words:
            raise KeysError("--signer names no command", do="Pass a command that signs what it reads")
        with tempfile.TemporaryDirectory(prefix="edgekit-sign-") as folder:
            file = Path(folder) / "message"
            if any("{}" in word for word in words):
                file.write_bytes(message)
            argv = [word.replace("{}", str(file)) for word in words]
            try:
                done = subprocess.run(argv, input=message, stdout=subprocess.PIPE, timeout=self.timeout_s, check=False)
            except OSError as error:
                raise KeysError(
                    f"the signer cannot be started: {error.strerror or error}", where=argv[0], do="Check the command"
                ) from error
            except subprocess.TimeoutExpired as error:
                raise KeysError(f"the signer did not answer within {self.timeout_s:g} s", where=self.command) from error
        if done.returncode != 0:
            raise KeysError(
                f"the signer ended with {done.returncode}", where=self.command, do="Its own words are above"
            )
        return done.stdout

    def _decoded(self, printed: bytes) -> bytes:
        if len(printed) == 64:
            return printed
        text = b"".join(printed.split())
        if _HEX.fullmatch(text):
            return bytes.fromhex(text.decode())
        try:
            signature = base64.b64decode(text, validate=True)
        except binascii.Error:
            signature = b""
        if len(signature) != 64:
            raise KeysError(
                f"the signer printed {len(printed)} bytes that are no signature",
                where=self.command,
                do="It should print the 64 bytes of an Ed25519 signature, raw, as base64 or as hex, and nothing else",
            )
        return signature
