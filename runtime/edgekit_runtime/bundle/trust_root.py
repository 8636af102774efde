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
from typing import Any, TypeVar

from edgekit_runtime.bundle.signature import Signature, canonical_base64, keyid_of, parse_entries, verify, weakness
from edgekit_runtime.bundle.trust_store import RevokedKey, Role, TrustedKey, TrustStore, parse_time
from edgekit_runtime.system.errors import TrustError
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.system.strict_json import canonical_bytes, is_format, strict_json

ROOT_PAYLOAD_TYPE = "application/vnd.edgekit.root.v1+json"
MAX_ROOT_BYTES = 256 << 10
MAX_KEYS = 256
MAX_WHY = 500
_AGAIN = "Get it again from who made it"
_KEYID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WORDS: dict[type, str] = {dict: "object", list: "list", str: "text"}
_Json = TypeVar("_Json")


class _MalformedError(ValueError):
    """Becomes a TrustError that names the file."""


def load_root(path: str | Path) -> TrustStore:
    """Load a root.json; its dates are checked when it is used.
    Raises TrustError if it cannot be read, is malformed, or lacks signatures of its own."""
    return parse_root(read_root(Path(path)), str(path))


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
        raise TrustError(f"more than {MAX_ROOT_BYTES:,} bytes, which no root.json has", where=where, do=_AGAIN)
    try:
        store, body, signatures = _parse(data, where)
    except ValueError as error:
        raise TrustError(f"no root.json that can be trusted: {error}", where=where, do=_AGAIN) from error
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
            what = f"another version {new.version} than the one in force here"
            do = "Ask who made it: there must be one of each version"
        elif new.version < old.version:
            what = f"version {new.version} is older than version {old.version}, which is in force here"
            do = "Bring a newer one"
        else:
            what = f"version {new.version} does not follow version {old.version}, which is in force here"
            between = "edgekit keys update takes several files"
            do = f"Bring those in between as well, {old.version + 1} first: {between}"
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
        raise TrustError(f"no root.json that can be trusted: {error}", where=where, do="Change it") from error


def signed_part(data: bytes, where: str) -> tuple[dict[str, Any], tuple[Signature, ...]]:
    """The part "signed" and the signatures of a root.json that may still lack some.
    Raises TrustError."""
    try:
        document = strict_json(data)
        _parse(data, where)
        return document["signed"], parse_entries(document["signatures"])
    except ValueError as error:
        raise TrustError(f"no root.json: {error}", where=where, do=_AGAIN) from error


def _require(by: TrustStore, store: TrustStore, body: bytes, signatures: tuple[Signature, ...], whose: str) -> None:
    """Raises TrustError unless the threshold of `by`'s role root signed `body`."""
    assert by.root is not None
    good = verify(body, signatures, {name: by.keys[name].public for name in by.root.keyids}, ROOT_PAYLOAD_TYPE)
    if len(good) < by.root.threshold:
        missing = ", ".join(by.name_of(name) for name in by.root.keyids if name not in good)
        signed = f"is signed by {len(good)} of the {by.root.threshold} root keys that must"
        do = f"Let others sign it ({missing}): edgekit keys sign ROOT.json --sign KEY"
        raise TrustError(f"version {store.version} {signed}, says {whose}", where=store.where, do=do)


def _parse(data: bytes, where: str) -> tuple[TrustStore, bytes, tuple[Signature, ...]]:
    """Everything except verifying signatures. Raises ValueError."""
    document = _typed(strict_json(data), dict, "the file")
    signed = _typed(document.get("signed"), dict, "signed")
    return _store(signed, where), canonical_bytes(signed), parse_entries(document.get("signatures"))


def _store(signed: dict[str, Any], where: str) -> TrustStore:
    if signed.get("type") != "edgekit-root":
        raise _MalformedError("its type is not edgekit-root")
    if not is_format(signed.get("format"), 1):
        raise _MalformedError(f"its format is {signed.get('format')!r:.20}, and this runtime knows 1")
    revoked: dict[str, RevokedKey] = {}
    for key in map(_revoked, _typed(signed.get("revoked"), list, "revoked")):
        if key.keyid in revoked:
            raise _MalformedError(f"revoked names key {key.keyid[:8]} twice")
        revoked[key.keyid] = key
    keys = {name: _key(name, value) for name, value in _typed(signed.get("keys"), dict, "keys").items()}
    if len(keys) > MAX_KEYS:
        raise _MalformedError(f"{len(keys)} keys are more than {MAX_KEYS}")
    if again := keys.keys() & revoked.keys():
        raise _MalformedError(f"key {min(again)[:8]} is revoked and listed at once")
    roles = _typed(signed.get("roles"), dict, "roles")
    issued, expires = (_time(signed.get(name), name) for name in ("issued", "expires"))
    version = signed.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 2**53:
        raise _MalformedError(f"version {version!r:.20} is no whole number from 1 on")
    return TrustStore(
        where, keys, _role(roles, "bundle", keys), _role(roles, "root", keys), version,
        issued, expires, revoked, hashlib.sha256(canonical_bytes(signed)).hexdigest(),
    )  # fmt: skip


def _key(keyid: str, value: object) -> TrustedKey:
    found = _typed(value, dict, f"key {keyid[:8]}")
    text = _typed(found.get("public"), str, f"the public half of key {keyid[:8]}")
    public = canonical_base64(text, f"the public half of key {keyid[:8]}")
    if weak := weakness(public):
        raise _MalformedError(f"key {keyid[:8]} must not be trusted: {weak}")
    if keyid_of(public) != keyid:
        raise _MalformedError(f"key {keyid[:8]} stands under a keyid that is not its own")
    expires = found.get("expires")
    return TrustedKey(keyid, _name(found), public, None if expires is None else _time(expires, f"key {keyid[:8]}"))


def _role(roles: dict[str, Any], which: str, keys: dict[str, TrustedKey]) -> Role:
    found = _typed(roles.get(which), dict, f"the role {which}")
    listed = _typed(found.get("keyids"), list, f"role {which}")
    keyids = tuple(_typed(item, str, f"a keyid of the role {which}") for item in listed)
    if len(set(keyids)) != len(keyids):
        raise _MalformedError(f"the role {which} names a key twice")
    if unknown := [name for name in keyids if name not in keys]:
        raise _MalformedError(f"the role {which} names key {unknown[0][:8]}, which is not listed")
    threshold = found.get("threshold")
    if not isinstance(threshold, int) or isinstance(threshold, bool) or not 1 <= threshold <= len(keyids):
        what = f"the threshold of the role {which}, {threshold!r:.20}"
        raise _MalformedError(f"{what}, is not between 1 and its {len(keyids)} keys")
    return Role(keyids, threshold)


def _revoked(value: object) -> RevokedKey:
    found = _typed(value, dict, "an entry of revoked")
    keyid, why = _typed(found.get("keyid"), str, "the keyid of a revoked key"), found.get("why", "")
    if not _KEYID.fullmatch(keyid):
        raise _MalformedError("the keyid of a revoked key is not 64 digits of lower-case hex")
    reason = _typed(why, str, "the reason of a revocation")
    if len(reason) > MAX_WHY or not reason.isprintable():  # it is shown on terminals
        raise _MalformedError(f"{reason!r:.20} is no reason of a revocation: {MAX_WHY} characters that can be printed")
    return RevokedKey(keyid, _name(found), reason)


def _name(found: dict[str, Any]) -> str:
    name = _typed(found.get("name"), str, "the name of a key")
    if not name or len(name) > 64 or not name.isprintable():
        raise _MalformedError(f"{name!r:.20} is no name for a key: 1 to 64 characters that can be printed")
    return name


def _time(value: object, of: str) -> float:
    return parse_time(_typed(value, str, f"the time of {of}"))


def _typed(value: object, kind: type[_Json], what: str) -> _Json:
    if not isinstance(value, kind):
        raise _MalformedError(f"{what} is missing or no {_WORDS[kind]}")
    return value
