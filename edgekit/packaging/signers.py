"""Signers: private keys and signer commands; further signatures of a bundle.

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
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.packaging.bundle_options import SigningOptions
from edgekit.packaging.key_folder import KeyFolder, default_folder, open_to_others
from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.writer import Signer, load_private_key, load_signing_key, signed_head, write_whole
from edgekit_runtime.bundle.header import read_header
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.bundle.signature import MAX_KEY_FILE_BYTES, keyid_of, parse_public_key, raw_key

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


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
        """Raises KeysError if the command fails or prints anything but this key's signature."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519

        printed = self._run_command(message)
        text = b"".join(printed.split())
        decoded = [printed]
        if _HEX.fullmatch(text):
            decoded.append(bytes.fromhex(text.decode()))
        with contextlib.suppress(binascii.Error):
            decoded.append(base64.b64decode(text, validate=True))
        signature = next((one for one in decoded if len(one) == 64), None)
        if signature is None:
            raise KeysError(
                f"the signer printed {len(printed)} bytes, which are not a signature",
                where=self.command,
                do="It should print the 64 bytes of an Ed25519 signature, raw, as base64 or as hex, and nothing else",
            )
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            raise KeysError(
                f"the signer did not sign these bytes with key {self.keyid[:8]}",
                where=self.command,
                do="Check that --sign names the public half of its key, and that it signs the bytes as they are",
            ) from None
        return signature

    def _run_command(self, message: bytes) -> bytes:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise KeysError(f"--signer is not a command: {error}", where=self.command, do="Check its quotes") from error
        if not words:
            raise KeysError("--signer is empty", do="Pass a command that signs what it reads")
        with tempfile.TemporaryDirectory(prefix="edgekit-sign-") as folder:
            file = Path(folder) / "message"
            if any("{}" in word for word in words):
                file.write_bytes(message)
            argv = [word.replace("{}", str(file)) for word in words]
            try:
                done = subprocess.run(argv, input=message, stdout=subprocess.PIPE, timeout=self.timeout_s, check=False)
            except OSError as error:
                why = error.strerror or error
                raise KeysError(
                    f"the signer cannot be started: {why}", where=argv[0], do="Check the command"
                ) from error
            except subprocess.TimeoutExpired as error:
                what = f"the signer did not finish within {self.timeout_s:g} s"
                raise KeysError(what, where=self.command) from error
        if done.returncode != 0:
            do = "Its own message is above"
            raise KeysError(f"the signer exited with {done.returncode}", where=self.command, do=do)
        return done.stdout


def open_signers(signing: SigningOptions, folder: KeyFolder | None = None) -> list[Signer]:
    """folder: of names, None for the user's own.

    Raises KeysError, PackagingError or SignatureError naming the key that cannot sign.
    """
    folder = folder or KeyFolder(default_folder())
    found: dict[bytes, Signer] = {}
    external = 0
    for named in signing.sign:
        path = folder.private(named)
        if _is_public(path):
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
            _warn_if_open(path, signing)
            signer = load_signing_key(path, signing.passphrase)
        found.setdefault(signer.public, signer)
    if signing.signer is not None and not external:
        raise KeysError(
            "--signer is a command that signs for a public key, and --sign names none",
            do="Add --sign PUBLIC.pem, the public half of the key that the command uses",
        )
    return list(found.values())


def _warn_if_open(path: Path, signing: SigningOptions) -> None:
    """Warn if other users have access to the private key."""
    with contextlib.suppress(OSError):  # the reader of private keys says it better
        if signing.warn is not None and open_to_others(path.stat().st_mode):
            signing.warn(path)


def _is_public(path: Path) -> bool:
    """Whether it is a PEM public key; False if it cannot be read."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return b"-----BEGIN PUBLIC KEY-----" in file.read(MAX_KEY_FILE_BYTES)
    return False


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
    head = signed_head(header.manifest_bytes, signers, header.signatures)
    write_whole(output or path, head + data[header.blobs_at :], "the bundle")
    added = tuple(name for name in map(keyid_of, (signer.public for signer in signers)) if name not in there)
    return SigningResult(output or path, checked.manifest, checked.digest, added, tuple(sorted({*there, *added})))


def sign_openssf(
    path: Path, signing: SigningOptions, folder: KeyFolder, output: Path | None = None
) -> tuple[Path, Path]:
    """Sign a bundle for OpenSSF Model Signing; return the signature's file and the public key's.

    signing: its one key is private, of a NIST curve, because that format has no Ed25519
    output: the signature's file, None for `path` with .sig

    Raises BundleError, KeysError, PackagingError, OutputError.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from model_signing.signing import Config

    (named,) = signing.sign
    stem = Path(named).name.removesuffix(".pem").removesuffix(".pub")
    make = f"Make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {stem}-p256.pem"
    try:
        key = folder.private(named)
    except KeysError as error:
        raise KeysError(error.what, where=error.where, do=make) from None
    _warn_if_open(key, signing)
    given: list[bytes | None] = []

    def passphrase(file: Path) -> bytes | None:
        given.append(signing.passphrase(file))
        return given[0]

    private = load_private_key(key, passphrase, make)
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name not in _CURVES:
        raise KeysError("the key should be on the curve P-256, P-384 or P-521", where=str(key), do=make)
    read_bundle(path)  # a damaged one is not signed
    beside = output or path.with_name(f"{path.name}.sig")
    public = beside.with_name(f"{stem}.openssf.pub.pem")
    with tempfile.TemporaryDirectory(prefix="edgekit-sign-") as place:
        made = Path(place, "signature")
        # Its annotation says str, its code wants bytes
        config = Config().use_elliptic_key_signer(private_key=key, password=next(iter(given), None))  # type: ignore
        config.sign(path, made)
        write_whole(beside, made.read_bytes(), "the signature")
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_whole(public, private.public_key().public_bytes(*form), "the public key")
    return beside, public
