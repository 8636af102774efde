"""root.json on the workstation: each version a file of its own, and the newest that is signed by enough as root.json.

written = write_root(Path("trust/root.json"), signed, signers)       # trust/root-4.json; trust/root.json once it is signed
written = add_signatures(Path("trust/root-4.json"), [bob])           # at another desk

Rules: root.json is replaced only by a version that every machine which has it will accept; until then it stays, and the draft
beside it says who is missing. No version is ever written over by another: machines need each of them in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.keys.errors import KeysError
from edgekit.packaging.signing import Signer, merged, signed_by
from edgekit.packaging.whole import write_whole
from edgekit_runtime.errors import TrustError
from edgekit_runtime.strict_json import canonical_bytes
from edgekit_runtime.trust import ROOT_PAYLOAD_TYPE, TrustStore, follow, parse_root, read_trusted, signed_part
from edgekit_runtime.trust.signature import Signature, keyid_of, verify

__all__ = ["Written", "add_signatures", "is_root", "read_signed", "write_root"]


@dataclass(frozen=True)
class Written:
    """path: the file of this version. root: root.json where it is this version now, else None. missing: why not, as names of
    keys of which more must sign. store: what the version says, for showing it; nobody is asked to trust it."""

    path: Path
    version: int
    root: Path | None
    missing: tuple[str, ...]
    signers: tuple[str, ...]
    store: TrustStore


def is_root(path: Path) -> bool:
    """Whether a file looks like a root.json, and not like a bundle."""
    try:
        with path.open("rb") as file:
            return file.read(256).lstrip()[:1] == b"{"
    except OSError:
        return False


def read_signed(path: Path) -> dict[str, Any]:
    """What a complete root.json says. Raises TrustError."""
    data = read_trusted(path)
    parse_root(data, str(path))
    return signed_part(data, str(path))[0]


def write_root(root: Path, signed: dict[str, Any], signers: Sequence[Signer]) -> Written:
    """A new version beside `root`, and as `root` itself where enough have signed. Raises KeysError, OutputError."""
    path = root.with_name(f"root-{signed['version']}.json")
    if path.exists():
        raise KeysError(
            f"there is a version {signed['version']} already, which waits for signatures or was given away",
            where=str(path),
            do=f"Finish it: edgekit keys sign {path} --sign KEY; or delete it if nobody has it",
        )
    return _settle(path, root, signed, [], signers)


def add_signatures(path: Path, signers: Sequence[Signer]) -> Written:
    """Sign a version of a root.json. Raises TrustError, KeysError, OutputError."""
    signed, signatures = signed_part(read_trusted(path), str(path))
    return _settle(path, path.with_name("root.json"), signed, signatures, signers)


def _settle(
    path: Path, root: Path, signed: dict[str, Any], there: Iterable[Signature], signers: Sequence[Signer]
) -> Written:
    before = parse_root(read_trusted(root), str(root)) if root.exists() and root != path else None
    body = canonical_bytes(signed)
    _refuse_strangers(signed, before, signers)
    signatures = [*there, *(signed_by(signer, body, ROOT_PAYLOAD_TYPE) for signer in signers)]
    data = _pretty(signed, signatures)
    missing = _missing(signed, before, body, signatures)
    complete = not missing and _follows(before, data, path)
    write_whole(path, data, "the root")
    if complete and root != path:
        write_whole(root, data, "the root")
    signers_now = tuple(_name(signed, before, keyid) for keyid in sorted(dict(signatures)))
    return Written(path, signed["version"], root if complete else None, missing, signers_now, _unsigned_store(signed))


def _follows(before: TrustStore | None, data: bytes, path: Path) -> bool:
    """Whether machines that have `before` take it over. Raises TrustError where they never would."""
    if before is None:
        parse_root(data, str(path))
    else:
        follow(before, data, str(path))
    return True


def _refuse_strangers(signed: dict[str, Any], before: TrustStore | None, signers: Sequence[Signer]) -> None:
    allowed = set(signed["roles"]["root"]["keyids"]) | set(before.root.keyids if before and before.root else ())
    for signer in signers:
        if keyid_of(signer.public) not in allowed:
            raise KeysError(
                f"key {keyid_of(signer.public)[:8]} signs no root: it has the role 'root' neither in this version nor in "
                "the one before",
                do="Name a key with --sign that has it (edgekit keys list shows them)",
            )


def _missing(
    signed: dict[str, Any], before: TrustStore | None, body: bytes, signatures: Sequence[Signature]
) -> tuple[str, ...]:
    """The names of keys of which more must sign; empty where it is enough."""
    store = _unsigned_store(signed)
    found: dict[str, None] = {}
    for by in (store, before):
        if by is None or by.root is None:
            continue
        good = verify(body, signatures, {name: by.keys[name].public for name in by.root.keyids}, ROOT_PAYLOAD_TYPE)
        if len(good) < by.root.threshold:
            found |= {by.keys[name].name: None for name in by.root.keyids if name not in good}
    return tuple(found)


def _unsigned_store(signed: dict[str, Any]) -> TrustStore:
    from edgekit_runtime.trust.root import parse_unsigned

    try:
        return parse_unsigned(signed, "the new root")
    except TrustError as error:
        raise KeysError(error.what, do="Check the options") from error


def _name(signed: dict[str, Any], before: TrustStore | None, keyid: str) -> str:
    if keyid in signed["keys"]:
        return str(signed["keys"][keyid]["name"])
    return before.keys[keyid].name if before is not None and keyid in before.keys else keyid[:8]


def _pretty(signed: dict[str, Any], signatures: Iterable[Signature]) -> bytes:
    document = {"signed": signed, "signatures": merged(signatures)}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
