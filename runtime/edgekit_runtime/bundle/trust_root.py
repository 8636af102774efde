"""root.json: which keys a machine trusts, how many of them must sign, and until when.

    {"signed": {"type": "edgekit-root", "format": 1, "version": 3, "issued": "2026-11-22T00:00:00Z",
                "expires": "2027-11-22T00:00:00Z",
                "keys": {KEYID: {"name": "alice", "public": BASE64, "expires"?: TIME}},
                "roles": {"root": {"keyids": [KEYID], "threshold": 1}, "bundle": {"keyids": [KEYID], "threshold": 1}},
                "revoked": [{"keyid": KEYID, "name": "bob", "why"?: "laptop stolen"}]},
     "signatures": [{"keyid": KEYID, "sig": BASE64}]}

Rules, which `parse_root` and `follow` enforce:
- signatures are over the DSSE encoding of the canonical bytes (RFC 8785) of "signed", with a payload type of its own;
- a root.json is signed by the threshold of its own role `root`;
- the next one has the next version, and is also signed by the threshold of the one before. No version may be skipped:
  it could be the one that revoked a key;
- a keyid is the SHA-256 of its key; no list names a key twice; a revoked key is in no role;
- a revocation is final: the next root.json lists it again.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Literal

from edgekit_runtime.bundle.signature import Signature, canonical_base64, keyid_of, parse_entries, verify, weakness
from edgekit_runtime.bundle.trust_store import RevokedKey, Role, TrustedKey, TrustStore, parse_time
from edgekit_runtime.system.errors import BundleError, TrustError
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.system.records import record
from edgekit_runtime.system.strict_json import canonical_bytes, from_json, strict_json

ROOT_PAYLOAD_TYPE = "application/vnd.edgekit.root.v1+json"
MAX_ROOT_BYTES = 256 << 10
MAX_KEYS = 256
MAX_WHY = 500
_AGAIN = "Get it again from its author"
_KEYID = re.compile(r"[0-9a-f]{64}", re.ASCII)


def read_root(path: Path) -> bytes:
    """The file's bytes.
    Raises TrustError unless it is a readable regular file of at most MAX_ROOT_BYTES."""
    try:
        return read_regular(path, MAX_ROOT_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or error
        raise TrustError(f"cannot be read: {why}", where=str(path), do="Check the path") from error


def is_document(data: bytes) -> bool:
    """Whether it is a root.json rather than a PEM file."""
    return data.lstrip()[:1] == b"{"


def parse_root(data: bytes, where: str) -> TrustStore:
    """A root.json that is signed by its own role `root`. Raises TrustError."""
    if len(data) > MAX_ROOT_BYTES:
        raise TrustError(f"larger than {MAX_ROOT_BYTES:,} bytes, the limit of a root.json", where=where, do=_AGAIN)
    try:
        store, body, signatures = _parse(data, where)
    except ValueError as error:
        raise TrustError(f"not a valid root.json: {error}", where=where, do=_AGAIN) from error
    assert store.root is not None
    _require(store, store, body, signatures, "the file itself")
    return store


def follow(old: TrustStore, data: bytes, where: str) -> TrustStore:
    """The root.json `data` as the successor of `old`, or `old` for the same version and content.
    Raises TrustError: root-rollback if it is older, skips a version, or has the version in force with other content;
    trust if the old keys did not sign it, if it drops a revocation, or is malformed."""
    new = parse_root(data, where)
    if old.root is None or old.version is None or new.version is None:
        raise ValueError("a list of keys has no successor")
    if new.version == old.version and new.fingerprint == old.fingerprint:
        return old
    if new.version != old.version + 1:
        if new.version == old.version:
            what = f"a different version {new.version} is in force here"
            do = "Ask its author: each version may exist once"
        elif new.version < old.version:
            what = f"version {new.version} is older than version {old.version}, which is in force here"
            do = "Get a newer one"
        else:
            what = f"version {new.version} does not follow version {old.version}, which is in force here"
            between = "edgekit keys update takes several files"
            do = f"Also get the versions in between, {old.version + 1} first: {between}"
        raise TrustError(what, where=where, do=do, code="root-rollback")
    _, body, signatures = _parse(data, where)
    _require(old, new, body, signatures, f"version {old.version}, which is in force")
    if dropped := [name for name in old.revoked if name not in new.revoked]:
        gone = old.name_of(dropped[0])
        what = f"version {new.version} does not list {gone} as revoked, and version {old.version} does"
        do = "Ask its author for a version that keeps every revocation: a revoked key never comes back"
        raise TrustError(what, where=where, do=do)
    return new


def parse_unsigned(signed: dict[str, Any], where: str) -> TrustStore:
    """The store that "signed" describes, whatever the signatures; for its author.
    Raises TrustError."""
    try:
        return _store(signed, where)
    except ValueError as error:
        raise TrustError(f"not a valid root.json: {error}", where=where, do="Change it") from error


def signed_part(data: bytes, where: str) -> tuple[dict[str, Any], tuple[Signature, ...]]:
    """The part "signed" and the signatures of a root.json that may still lack some.
    Raises TrustError."""
    try:
        document = strict_json(data)
        _parse(data, where)
        return document["signed"], parse_entries(document["signatures"])
    except ValueError as error:
        raise TrustError(f"not a root.json: {error}", where=where, do=_AGAIN) from error


def _require(by: TrustStore, store: TrustStore, body: bytes, signatures: tuple[Signature, ...], whose: str) -> None:
    """Raises TrustError unless the threshold of `by`'s role root signed `body`."""
    assert by.root is not None
    good = verify(body, signatures, {name: by.keys[name].public for name in by.root.keyids}, ROOT_PAYLOAD_TYPE)
    if len(good) < by.root.threshold:
        missing = ", ".join(by.name_of(name) for name in by.root.keyids if name not in good)
        signed = f"is signed by {len(good)} of the {by.root.threshold} root keys that must"
        do = f"Have these sign it ({missing}): edgekit keys sign ROOT.json --sign KEY"
        raise TrustError(f"version {store.version} {signed}, says {whose}", where=store.where, do=do)


def _parse(data: bytes, where: str) -> tuple[TrustStore, bytes, tuple[Signature, ...]]:
    """Everything except verifying signatures. Raises ValueError."""
    document = strict_json(data)
    signed = document.get("signed") if isinstance(document, dict) else None
    store = _store(signed, where)
    return store, canonical_bytes(signed), parse_entries(document.get("signatures"))


@record(frozen=True)
class _Key:
    name: str
    public: str
    expires: str | None = None


@record(frozen=True)
class _Roles:
    bundle: Role
    root: Role


@record(frozen=True)
class _RootFields:
    type: Literal["edgekit-root"]
    format: Literal[1]
    version: int
    issued: str
    expires: str
    keys: dict[str, _Key]
    roles: _Roles
    revoked: tuple[RevokedKey, ...]


def _store(value: object, where: str) -> TrustStore:
    """Raises ValueError."""
    try:
        signed = from_json(_RootFields, value, "signed", nulls=True)
    except BundleError as error:
        raise ValueError(f"{error.where}: {error.what}") from error
    if not 1 <= signed.version < 2**53:
        raise ValueError(f"version {signed.version} is not a whole number from 1 on")
    revoked = {key.keyid: key for key in signed.revoked}
    if len(revoked) != len(signed.revoked):
        raise ValueError("revoked lists a key twice")
    if len(signed.keys) > MAX_KEYS:
        raise ValueError(f"{len(signed.keys)} keys are more than {MAX_KEYS}")
    if again := signed.keys.keys() & revoked.keys():
        raise ValueError(f"key {min(again)[:8]} is revoked and listed at once")
    for key in signed.revoked:
        if not _KEYID.fullmatch(key.keyid):
            raise ValueError("the keyid of a revoked key is not 64 lower-case hex digits")
        _check_name(key.name)
        if len(key.why) > MAX_WHY or not key.why.isprintable():  # it is shown on terminals
            raise ValueError(f"{key.why!r:.20} is not a reason: up to {MAX_WHY} printable characters")
    keys = {keyid: _trusted(keyid, key) for keyid, key in signed.keys.items()}
    for name, role in vars(signed.roles).items():
        if len(set(role.keyids)) != len(role.keyids):
            raise ValueError(f"the role {name} lists a key twice")
        if unknown := [keyid for keyid in role.keyids if keyid not in keys]:
            raise ValueError(f"the role {name} names key {unknown[0][:8]}, which is not listed")
        if not 1 <= role.threshold <= len(role.keyids):
            what = f"the threshold of the role {name}, {role.threshold}"
            raise ValueError(f"{what}, is not between 1 and its {len(role.keyids)} keys")
    bundle, root = signed.roles.bundle, signed.roles.root
    fingerprint = hashlib.sha256(canonical_bytes(value)).hexdigest()
    issued, expires = parse_time(signed.issued), parse_time(signed.expires)
    return TrustStore(where, keys, bundle, root, signed.version, issued, expires, revoked, fingerprint)


def _trusted(keyid: str, key: _Key) -> TrustedKey:
    _check_name(key.name)
    public = canonical_base64(key.public, f"the public half of key {keyid[:8]}")
    if weak := weakness(public):
        raise ValueError(f"key {keyid[:8]} must not be trusted: {weak}")
    if keyid_of(public) != keyid:
        raise ValueError(f"key {keyid[:8]} has the keyid of another key")
    return TrustedKey(keyid, key.name, public, None if key.expires is None else parse_time(key.expires))


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise ValueError(f"{name!r:.20} is not a name of a key: 1 to 64 printable characters")
