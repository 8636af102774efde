"""The trusted keys of a root, and its objects read through the descriptor that holds them.

    found = trust_files(("/media/stick/ci.pub.pem",))
    found.names                              # ("trust/14873a41c0ffee00-ci.pub.pem",), which slot.json keeps
    keep(root.path, found)                   # ROOT/trust/14873a41c0ffee00-ci.pub.pem
    bundle = read_locked(lease, TrustPolicy(store_of(root)))

Rules:
- one open file is verified, loaded and held against removal: another file under its name changes nothing;
- every open checks the signatures; only the install checks dates (see `trust.store`);
- a public key never changes, so it is copied. A root.json does change (`edgekit keys update`), so its path is kept;
- a copy is durable before slot.json names it, and read without following a link. One that other users can replace is
  refused, as by sshd's StrictModes;
- an older root, which remembers the path of a key, is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.reader import Bundle, Opening, read_open
from edgekit_runtime.bundle.signature import keyid_of, parse_public_key, raw_key
from edgekit_runtime.bundle.trust_finding import (
    TrustPolicy,
    find_trust,
    load_trust,
    read_trusted,
    refuse_unsafe,
    store_in,
)
from edgekit_runtime.bundle.trust_root import is_document
from edgekit_runtime.bundle.trust_store import TrustStore
from edgekit_runtime.install.durable import make_folder, read_text, storage_errors, write_file
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import Lease
from edgekit_runtime.system.errors import TrustError

if TYPE_CHECKING:
    from edgekit_runtime.bundle.secrets import SecretArgument

_COPY = re.compile(r"trust/[0-9a-f]{16}-[^/\0]{1,100}")


@dataclass(frozen=True)
class TrustFiles:
    """names: for slot.json. copies: name and text of those that the root keeps."""

    names: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()


def trust_files(trust: Sequence[str | Path]) -> TrustFiles:
    """What the root must remember. Raises TrustError, SignatureError."""
    names, copies = [], []
    for one in trust:
        data = read_trusted(Path(one))
        if is_document(data):
            names.append(str(Path(one).absolute()))
            continue
        keyid = keyid_of(raw_key(parse_public_key(data, str(one))))
        names.append(f"trust/{keyid[:16]}-{Path(one).name[-100:]}")
        copies.append((names[-1], data.decode("utf-8", "replace")))
    return TrustFiles(tuple(names), tuple(copies))


def keep(root: Path, trusted: TrustFiles) -> None:
    """Raises StorageError, InstallError (planted)."""
    if trusted.copies:
        make_folder(root / "trust")
    for name, text in trusted.copies:
        write_file(root / name, text)


def in_words(name: str) -> str:
    """A name of slot.json, for people."""
    if _COPY.fullmatch(name) is None:
        return f"{name}, which is read where it lies"
    return f"{name[23:]} ({name[6:14]}), of which this root keeps a copy"


def _content(root: Path, name: str) -> tuple[str, bytes]:
    command = f"edgekit install BUNDLE --root {root} --trust FILE"
    again = f"Name it again: {command}"
    if Path(name).is_absolute():
        try:
            return name, read_trusted(Path(name))
        except TrustError as error:
            if error.code == "unsafe-path":
                raise
            error.do = f"This root remembers where it lay (slot.json): put it back there. Or name another: {command}"
            raise
    path = root / name
    if _COPY.fullmatch(name) is None:
        raise TrustError("slot.json names what is no copy of a key", where=str(path), do=again)
    home = root.resolve()
    refuse_unsafe(home / name, home.stat().st_uid, home.parent)
    text = read_text(path)
    if text is None:
        raise TrustError("the root's copy of a key that it trusts is missing", where=str(path), do=again)
    return str(path), text.encode()


def store_of(root: Root | None, trust: Sequence[str | Path] = ()) -> TrustStore | None:
    """The trusted keys: those named, else the root's own, else this machine's, else None.

    Raises TrustError, SignatureError, InstallError (planted).
    """
    if trust:
        return load_trust([str(one) for one in trust])
    store = store_in([_content(root.path, name) for name in root.slot().trust]) if root is not None else None
    return replace(store, by_the_root=True) if store is not None else find_trust()


def read_locked(lease: Lease, policy: TrustPolicy, secret: SecretArgument = None) -> Bundle:
    """Raises BundleError, IntegrityError, SignatureError, SecretError, StorageError."""

    def all_of() -> bytes:
        with storage_errors(lease.path), lease.file() as file:
            return read_open(file, str(lease.path))

    return Opening(lease.path, policy, secret).read(all_of)
