"""The trusted keys of a root, and its objects read through the descriptor that holds them.

    found = trust_files(("/media/stick/ci.pub.pem",))
    list(found)                              # ["trust/14873a41c0ffee00-ci.pub.pem"], which slot.json keeps
    store_trust_files(root.path, found)      # ROOT/trust/14873a41c0ffee00-ci.pub.pem
    bundle = read_locked(lease, TrustPolicy(store_of(root)))

Rules:
- one open file is verified, loaded and held against removal: another file under its name changes nothing;
- every open checks the signatures; only the install checks dates (see `bundle.trust_store`);
- a public key never changes, so it is copied. A root.json does change (`edgekit keys update`), so its path is kept;
- a copy is durable before slot.json names it, and read without following a link. One that other users can replace is
  refused, as by sshd's StrictModes;
- an older root, which remembers the path of a key, is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.bundle.header import Header, header_needs, read_header
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


def trust_files(trust: Sequence[str | Path]) -> dict[str, str | None]:
    """What the root must remember: name for slot.json -> text of its copy, None for a root.json.

    Raises TrustError, SignatureError.
    """
    files: dict[str, str | None] = {}
    for one in trust:
        data = read_trusted(Path(one))
        if is_document(data):
            files[str(Path(one).absolute())] = None
            continue
        keyid = keyid_of(raw_key(parse_public_key(data, str(one))))
        files[f"trust/{keyid[:16]}-{Path(one).name[-100:]}"] = data.decode("utf-8", "replace")
    return files


def store_trust_files(root: Path, trusted: Mapping[str, str | None]) -> None:
    """Copy the keys of `trust_files` into the root. Raises StorageError, InstallError (planted)."""
    for name, text in trusted.items():
        if text is not None:
            make_folder(root / "trust")
            write_file(root / name, text)


def in_words(name: str) -> str:
    """A name of slot.json, as users read it."""
    if _COPY.fullmatch(name) is None:
        return f"{name} (read in place)"
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
        raise TrustError("slot.json names a file that is not a stored key", where=str(path), do=again)
    home = root.resolve()
    refuse_unsafe(home / name, home.stat().st_uid, home.parent)
    text = read_text(path)
    if text is None:
        raise TrustError("the stored copy of a trusted key is missing", where=str(path), do=again)
    return str(path), text.encode()


def store_of(root: Root | None, trust: Sequence[str | Path] = ()) -> TrustStore | None:
    """The trusted keys: those named, else the root's own, else this machine's, else None.

    Raises TrustError, SignatureError, InstallError (planted).
    """
    if trust:
        return load_trust([str(one) for one in trust])
    store = store_in([_content(root.path, name) for name in root.slot().trust]) if root is not None else None
    return replace(store, by_the_root=True) if store is not None else find_trust()


def head_from(read: Callable[[], bytes], where: str) -> Header:
    """The head of the bundle whose next bytes `read` returns.
    Raises BundleError, IntegrityError."""
    data = b""
    while len(data) < header_needs(data, where):
        chunk = read()
        if not chunk:
            break
        data += chunk
    return read_header(data, where)


def read_locked(lease: Lease, policy: TrustPolicy, secret: SecretArgument = None) -> Bundle:
    """Raises BundleError, IntegrityError, SignatureError, SecretError, StorageError."""

    def all_of() -> bytes:
        with storage_errors(lease.path), lease.file() as file:
            return read_open(file, str(lease.path))

    return Opening(lease.path, policy, secret).read(all_of)
