"""Who signs, from what a command line says.

signing = Signing(("alice", "token.pub.pem"), signer="pkcs11-sign --key 3", passphrase=ask)
signers = open_signers(signing, KeyFolder(default_folder()))

Rules: a private key signs by itself; a public one needs the command that signs for it. One that is named twice signs once.
A private key that other users can read signs, because a build machine's modes are not always its owner's to choose; who asked
is told of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgekit.keys.errors import KeysError
from edgekit.keys.external import ExternalSigner
from edgekit.keys.folder import KeyFolder, default_folder, open_to_others
from edgekit.packaging.signing import Signer, load_signing_key
from edgekit_runtime.trust.signature import MAX_KEY_FILE_BYTES, parse_public_key, raw_key

__all__ = ["Signing", "is_public", "open_signers", "warn_where_open"]


@dataclass(frozen=True)
class Signing:
    """keys: names or PEM files. signer: a command for those of them that are public. passphrase: asked for a key that is
    encrypted, given its file. warn: called with the file of a private key that other users could read or write."""

    keys: tuple[str, ...] = ()
    signer: str | None = None
    passphrase: Callable[[Path], bytes | None] | None = None
    warn: Callable[[Path], None] | None = None


def open_signers(signing: Signing, folder: KeyFolder | None = None) -> list[Signer]:
    """folder: where names are looked up, None for the user's own.

    Raises KeysError, PackagingError or SignatureError naming the key that cannot sign."""
    folder = folder or KeyFolder(default_folder())
    found: dict[bytes, Signer] = {}
    external = 0
    for named in signing.keys:
        path = folder.private(named)
        if is_public(path):
            signer = _external(path, signing.signer)
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


def _external(path: Path, command: str | None) -> Signer:
    if command is None:
        raise KeysError(
            "this is a public key, which cannot sign by itself",
            where=str(path),
            do="Name the private one, or pass --signer with the command that signs for it",
        )
    return ExternalSigner(command, raw_key(parse_public_key(path.read_bytes()[:MAX_KEY_FILE_BYTES], str(path))))


def warn_where_open(path: Path, signing: Signing) -> None:
    """Tell who signs that the private key at `path` is not theirs alone."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # the reader of private keys says it better
    if signing.warn is not None and open_to_others(mode):
        signing.warn(path)


def is_public(path: Path) -> bool:
    """Whether a PEM public key lies there; False also where nothing can be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return b"-----BEGIN PUBLIC KEY-----" in file.read(MAX_KEY_FILE_BYTES)
    except OSError:
        return False  # the reader of private keys says it better
