"""Who signs: private keys, or commands that sign; and a bundle that is signed once more.

    signing = SigningOptions(("alice", "token.pub.pem"), signer="pkcs11-sign --key 3", passphrase=ask)
    signers = open_signers(signing, KeyFolder(default_folder()))
    endorsed = endorse(Path("net-raspberry-pi-4.ekb"), signers)      # two people sign at two desks

Rules:
- a private key signs by itself, a public one needs a command; a key that is named twice signs once;
- a private key that other users can read signs with a warning;
- the command is split as a shell would, without a shell. It gets the bytes on its standard input, and in a temporary
  file in place of `{}`; its standard error and the terminal are its own;
- it prints the signature raw, as base64 or as hex, which is verified;
- a bundle is checked whole before it is signed again; its manifest, blobs and older signatures do not change, and the
  file is replaced whole or not at all.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.packaging.key_folder import KeyFolder, default_folder, open_to_others
from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.writer import Signer, load_signing_key, signature_block, write_whole
from edgekit_runtime.bundle.header import MAGIC, align_up, read_header
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.signature import MAX_KEY_FILE_BYTES, keyid_of, parse_public_key, raw_key

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")


@dataclass(frozen=True)
class ExternalSigner:
    """public: the raw 32 bytes of its key. timeout_s: a person may have to touch a token."""

    command: str
    public: bytes
    timeout_s: float = 300.0

    @property
    def keyid(self) -> str:
        return keyid_of(self.public)

    def sign(self, message: bytes) -> bytes:
        """Raises KeysError if the command fails or does not print a signature by this key."""
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
    """What a signer should print. fits: whether bytes have that form."""

    described: str
    fits: Callable[[bytes], bool]


_ED25519 = SignatureForm("the 64 bytes of an Ed25519 signature", lambda signature: len(signature) == 64)


def signature_from(command: str, message: bytes, form: SignatureForm, timeout_s: float = 300.0) -> bytes:
    """What `command` prints for `message`, decoded, not verified. Raises KeysError."""
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
    printed, text = done.stdout, b"".join(done.stdout.split())
    decoded = [printed]
    if _HEX.fullmatch(text):
        decoded.append(bytes.fromhex(text.decode()))
    with contextlib.suppress(binascii.Error):
        decoded.append(base64.b64decode(text, validate=True))
    for signature in decoded:
        if form.fits(signature):
            return signature
    raise KeysError(
        f"the signer printed {len(printed)} bytes that are no signature",
        where=command,
        do=f"It should print {form.described}, raw, as base64 or as hex, and nothing else",
    )


def not_by(command: str, key: str) -> KeysError:
    """The error for a well-formed signature that is not by the named key."""
    return KeysError(
        f"what the signer printed is no signature of key {key} over these bytes",
        where=command,
        do="Check that --sign names the public half of the key it uses, and that it signs the bytes as they are",
    )


@dataclass(frozen=True)
class SigningOptions:
    """keys: names or PEM files
    signer: a command for public ones
    passphrase: called with the file of an encrypted key
    warn: called with the file of a private key that other users could read or write
    """

    keys: tuple[str, ...] = ()
    signer: str | None = None
    passphrase: Callable[[Path], bytes | None] | None = None
    warn: Callable[[Path], None] | None = None


def open_signers(signing: SigningOptions, folder: KeyFolder | None = None) -> list[Signer]:
    """folder: of names, None for the user's own.

    Raises KeysError, PackagingError or SignatureError naming the key that cannot sign.
    """
    folder = folder or KeyFolder(default_folder())
    found: dict[bytes, Signer] = {}
    external = 0
    for named in signing.keys:
        path = folder.private(named)
        if is_public(path):
            if signing.signer is None:
                raise KeysError(
                    "this is a public key, which cannot sign by itself",
                    where=str(path),
                    do="Name the private one, or pass --signer with the command that signs for it",
                )
            signer: Signer = ExternalSigner(
                signing.signer, raw_key(parse_public_key(path.read_bytes()[:MAX_KEY_FILE_BYTES], str(path)))
            )
            external += 1
        else:
            warn_where_open(path, signing)
            signer = load_signing_key(path, signing.passphrase)
        found.setdefault(signer.public, signer)
    if signing.signer is not None and not external:
        raise KeysError(
            "--signer is a command that signs for a public key, and --sign names none",
            do="Add --sign PUBLIC.pem, the public half of the key that the command uses",
        )
    return list(found.values())


def warn_where_open(path: Path, signing: SigningOptions) -> None:
    """Warn if other users have access to the private key."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # the reader of private keys says it better
    if signing.warn is not None and open_to_others(mode):
        signing.warn(path)


def is_public(path: Path) -> bool:
    """Whether it is a PEM public key; False also if it cannot be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return b"-----BEGIN PUBLIC KEY-----" in file.read(MAX_KEY_FILE_BYTES)
    except OSError:
        return False  # the reader of private keys says it better


@dataclass(frozen=True)
class SigningResult:
    """digest: of the manifest. added: keyids that signed now. signed_by: all that have."""

    path: Path
    manifest: Manifest
    digest: str
    added: tuple[str, ...]
    signed_by: tuple[str, ...]


def endorse(path: Path, signers: Sequence[Signer], output: Path | None = None) -> SigningResult:
    """Sign the bundle at `path`. output: None to replace it.

    Raises BundleError, IntegrityError, KeysError, PackagingError, OutputError.
    """
    checked = read_bundle(path)
    data = path.read_bytes()
    header = read_header(data, str(path))
    if header.digest != checked.digest:
        raise KeysError("the file was changed while it was read", where=str(path), do="Run it again")
    there = [name for name, _ in header.signatures]
    block = signature_block(header.manifest_bytes, signers, header.signatures)
    head = MAGIC + struct.pack("<I", len(header.manifest_bytes)) + header.manifest_bytes
    head += struct.pack("<I", len(block)) + block
    head += hashlib.sha256(head).digest()
    head += bytes(align_up(len(head)) - len(head))
    write_whole(output or path, head + data[header.blobs_at :], "the bundle")
    added = tuple(name for name in map(keyid_of, (signer.public for signer in signers)) if name not in there)
    return SigningResult(output or path, checked.manifest, checked.digest, added, tuple(sorted({*there, *added})))
