"""A person's keys: NAME.pem signs, NAME.pub.pem is trusted, NAME.secret encrypts.

    folder = KeyFolder(default_folder())
    files = folder.create("alice", passphrase=b"...")      # KeysError if 'alice' exists
    folder.private("alice"), folder.public("keys/bob.pub.pem")
    folder.create_secret("camera").id

Rules:
- the folder is 0700 and a private key or secret 0600 from the moment it exists, whatever the umask; a folder that
  others may enter is refused;
- nothing is ever overwritten;
- a name with a separator, or of an existing file, is a path;
- a secret is 32 random bytes in hex below a comment.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from edgekit.packaging.output_errors import KeysError
from edgekit_runtime.bundle.cipher import KEY_BYTES
from edgekit_runtime.bundle.secrets import Secret, load_secret
from edgekit_runtime.bundle.signature import keyid_of, load_public_key, raw_key
from edgekit_runtime.bundle.trust_finding import config_dir, refuse_unsafe
from edgekit_runtime.system.errors import SecretError, SignatureError
from edgekit_runtime.system.files import first_unsafe

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_PRIVATE, _PUBLIC, ENDING = ".pem", ".pub.pem", ".secret"


@dataclass(frozen=True)
class KeyEntry:
    """raw: the 32 bytes of the public key
    private: None if only the public half is there
    encrypted: whether it needs a passphrase
    open_to_others: whether another user could read or write the private half
    """

    name: str
    keyid: str
    raw: bytes
    public: Path
    private: Path | None
    encrypted: bool = False
    open_to_others: bool = False


@dataclass(frozen=True)
class SecretEntry:
    """id: of the key in bundles and messages; empty if `trouble` says why."""

    name: str
    path: Path
    id: str
    trouble: str = ""


def default_folder() -> Path:
    """$EDGEKIT_KEYS, else `keys` in this user's settings; without a home an unusable path."""
    if named := os.environ.get("EDGEKIT_KEYS"):
        return Path(named)
    return (config_dir() or Path(os.devnull)) / "keys"


@dataclass(frozen=True)
class KeyFolder:
    """path: made with the first key."""

    path: Path

    def create(self, name: str, passphrase: bytes | None = None) -> KeyEntry:
        """Create an Ed25519 pair.
        Raises KeysError for a bad or taken name, or a folder open to others."""
        from cryptography.hazmat.primitives import serialization as pem
        from cryptography.hazmat.primitives.asymmetric import ed25519

        if passphrase == b"":
            raise KeysError("the passphrase is empty", do="Enter one, or omit the option")
        private, public = self._free(name, _PRIVATE, _PUBLIC)
        pair = ed25519.Ed25519PrivateKey.generate()
        locked: pem.KeySerializationEncryption = pem.NoEncryption()
        if passphrase is not None:
            locked = pem.BestAvailableEncryption(passphrase)
        secret_pem = pair.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, locked)
        public_pem = pair.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
        raw = raw_key(pair.public_key())
        _write_new(private, secret_pem, 0o600)
        _write_new(public, public_pem, 0o644)
        return KeyEntry(name, keyid_of(raw), raw, public, private, passphrase is not None)

    def create_secret(self, name: str) -> SecretEntry:
        """Create a key that encrypts. Raises KeysError as `create` does."""
        (path,) = self._free(name, ENDING)
        secret = Secret([os.urandom(KEY_BYTES)])
        (key,) = secret.to_pipe()
        text = f"# edgekit: key {secret.id} of encrypted bundles. Who has it can read them.\n{key}\n"
        _write_new(path, text.encode(), 0o600)
        return SecretEntry(name, path, secret.id)

    def secrets(self) -> tuple[SecretEntry, ...]:
        """The folder's secrets by name."""
        found = []
        for file in self._files(ENDING):
            name = file.name.removesuffix(ENDING)
            try:
                found.append(SecretEntry(name, file, load_secret(f"file:{file}").id))
            except SecretError as error:
                found.append(SecretEntry(name, file, "", error.what))
        return tuple(found)

    def entries(self) -> tuple[KeyEntry, ...]:
        """The folder's Ed25519 keys by name."""
        found = []
        for file in self._files(_PUBLIC):
            with contextlib.suppress(SignatureError):
                found.append(self._entry(file.name.removesuffix(_PUBLIC)))
        return tuple(found)

    def of(self, keyid: str) -> KeyEntry | None:
        return next((entry for entry in self.entries() if entry.keyid == keyid), None)

    def private(self, named: str) -> Path:
        """Return the private key's file; `named` is a name or a path. Raises KeysError."""
        return self._file(named, _PRIVATE)

    def public(self, named: str) -> KeyEntry:
        """Return a public key by its name or path. Raises KeysError, TrustError, SignatureError."""
        path = self._file(named, _PUBLIC)
        refuse_unsafe(path)
        raw = raw_key(load_public_key(path))
        return KeyEntry(path.name.removesuffix(_PRIVATE).removesuffix(".pub"), keyid_of(raw), raw, path, None)

    def _file(self, named: str, ending: str) -> Path:
        path, own = Path(named), self.path / f"{named}{ending}"
        if os.sep not in named and not path.is_file() and own.is_file():
            return own
        if os.sep in named or path.exists():
            return path
        known = ", ".join(entry.name for entry in self.entries()) or "none"
        raise KeysError(
            f"no key '{named}': not a file, and not in {self.path} (there: {known})",
            do=f"Make it: edgekit keys new {named}" if _NAME.fullmatch(named) else "Name a key or a PEM file",
        )

    def _entry(self, name: str) -> KeyEntry:
        public, private = self.path / f"{name}{_PUBLIC}", self.path / f"{name}{_PRIVATE}"
        raw = raw_key(load_public_key(public))
        try:
            with private.open("rb") as file:
                head = file.read(64)
                mode = os.fstat(file.fileno()).st_mode
        except OSError:
            return KeyEntry(name, keyid_of(raw), raw, public, None)
        return KeyEntry(name, keyid_of(raw), raw, public, private, b"ENCRYPTED" in head, open_to_others(mode))

    def _files(self, ending: str) -> list[Path]:
        """Files with that ending by name; none if the folder cannot be read."""
        with contextlib.suppress(OSError):
            return sorted(file for file in self.path.iterdir() if file.name.endswith(ending))
        return []

    def _free(self, name: str, *endings: str) -> list[Path]:
        """Files for a new key, in the folder, which is made. Raises KeysError if one exists."""
        if not _NAME.fullmatch(name) or name.endswith((_PRIVATE, ".pub")):
            raise KeysError(f"{name!r:.70} is not a valid key name", do="Use at most 64 letters, digits, '.', '_', '-'")
        self._make()
        paths = [self.path / f"{name}{ending}" for ending in endings]
        for path in paths:
            if os.path.lexists(path):
                raise KeysError(f"a key named '{name}' already exists", where=str(path), do="Choose another name")
        return paths

    def _make(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            mode = self.path.stat().st_mode
        except OSError as error:
            raise KeysError(
                f"the directory cannot be created: {error.strerror or error}",
                where=str(self.path),
                do="Name another with --folder, or set EDGEKIT_KEYS",
            ) from error
        if not stat.S_ISDIR(mode):
            do = "Name a directory with --folder, or set EDGEKIT_KEYS"
            raise KeysError("not a directory", where=str(self.path), do=do)
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise KeysError(
                "other users can read this directory, and private keys would be in it",
                where=str(self.path),
                do=f"Run: chmod 700 {self.path}; or name another with --folder",
            )
        if unsafe := first_unsafe(self.path):
            raise KeysError(unsafe.what, where=str(unsafe.where), do=f"{unsafe.do}; or name another with --folder")


def open_to_others(mode: int) -> bool:
    """Whether other users have any permission on a file of this mode."""
    return os.name == "posix" and bool(mode & 0o077)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Create a file durably with `mode`; never overwrite one."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
        with os.fdopen(handle, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # what the umask took away
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        what, do = f"the key cannot be written: {error.strerror or error}", "Make room there, or name another --folder"
        raise KeysError(what, where=str(path), do=do) from error
