"""root.json: its next version, its signatures, its file; and a machine that takes it over.

    signed = first_root([Member("alice", raw)], [Member("builds", raw_2)], Dates(issued_s, expires_s))
    signed = revoke(signed, keyid, "laptop stolen", Dates(...))         # a pure function of the version before
    written = write_root(Path("trust/root.json"), signed, signers)      # trust/root-4.json; root.json once it is signed
    taken = take_over([Path("root-4.json"), Path("root-5.json")], Path("/etc/edgekit/trust/root.json"))

Rules:
- every change is a new version, and versions are never overwritten: machines need each in turn;
- a rotated bundle key is accepted until a date, a rotated root key is out at once; a revoked key is never added again;
  no change leaves a role with fewer keys than must sign;
- root.json is replaced only by a version that every machine with it accepts; until then a draft lists missing keys;
- a machine accepts any first root, whose fingerprint may be pinned, and later ones only by the root in force, in turn;
- the file in force is replaced whole or not at all, never when it is damaged, never by an expired version.
"""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.writer import Signer, merge_signatures, signed_by, write_whole
from edgekit_runtime.bundle.signature import Signature, keyid_of, verify
from edgekit_runtime.bundle.trust_finding import load_in_force, read_trusted
from edgekit_runtime.bundle.trust_root import (
    ROOT_PAYLOAD_TYPE,
    follow,
    parse_root,
    parse_unsigned,
    read_root,
    signed_part,
)
from edgekit_runtime.bundle.trust_store import TrustStore, TrustTime, judge, tell_time
from edgekit_runtime.system.errors import TrustError
from edgekit_runtime.system.strict_json import canonical_bytes


@dataclass(frozen=True)
class WrittenRoot:
    """path: the file of this version
    root: root.json if it is this version now, else None
    missing: names of keys of which more must sign
    store: the version's content, to show and not to trust
    """

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
    """The signed part of a complete root.json. Raises TrustError."""
    data = read_trusted(path)
    parse_root(data, str(path))
    return signed_part(data, str(path))[0]


def write_root(root: Path, signed: dict[str, Any], signers: Sequence[Signer]) -> WrittenRoot:
    """Write a version, replace `root` if enough keys signed. Raises KeysError, OutputError."""
    path = root.with_name(f"root-{signed['version']}.json")
    if path.exists():
        raise KeysError(
            f"version {signed['version']} already exists: it waits for signatures, or was handed out",
            where=str(path),
            do=f"Finish it: edgekit keys sign {path} --sign KEY; or delete it if it was never handed out",
        )
    return _sign_and_write(path, root, signed, [], signers)


def add_signatures(path: Path, signers: Sequence[Signer]) -> WrittenRoot:
    """Sign a version of a root.json. Raises TrustError, KeysError, OutputError."""
    signed, signatures = signed_part(read_trusted(path), str(path))
    return _sign_and_write(path, path.with_name("root.json"), signed, signatures, signers)


def _sign_and_write(
    path: Path, root: Path, signed: dict[str, Any], there: Iterable[Signature], signers: Sequence[Signer]
) -> WrittenRoot:
    before = parse_root(read_trusted(root), str(root)) if root.exists() and root != path else None
    body = canonical_bytes(signed)
    allowed = set(signed["roles"]["root"]["keyids"]) | set(before.root.keyids if before and before.root else ())
    for signer in signers:
        if keyid_of(signer.public) not in allowed:
            raise KeysError(
                f"key {keyid_of(signer.public)[:8]} signs no root: it has the role 'root' neither in this version nor "
                "in the one before",
                do="Name a key with --sign that has it (edgekit keys list shows them)",
            )
    signatures = [*there, *(signed_by(signer, body, ROOT_PAYLOAD_TYPE) for signer in signers)]
    document = {"signed": signed, "signatures": merge_signatures(signatures)}
    data = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    store = _unsigned_store(signed)
    found: dict[str, None] = {}
    for by in (store, before):
        if by is None or by.root is None:
            continue
        good = verify(body, signatures, {name: by.keys[name].public for name in by.root.keyids}, ROOT_PAYLOAD_TYPE)
        if len(good) < by.root.threshold:
            found |= {by.keys[name].name: None for name in by.root.keyids if name not in good}
    missing = tuple(found)
    complete = not missing
    if complete and before is None:
        parse_root(data, str(path))
    elif complete and before is not None:
        follow(before, data, str(path))  # raises TrustError where machines that have `before` would never take it over
    write_whole(path, data, "the root")
    if complete and root != path:
        write_whole(root, data, "the root")
    names = {keyid: key.name for keyid, key in before.keys.items()} if before is not None else {}
    names |= {keyid: str(key["name"]) for keyid, key in signed["keys"].items()}
    signers_now = tuple(names.get(keyid, keyid[:8]) for keyid in sorted(dict(signatures)))
    return WrittenRoot(
        path, signed["version"], root if complete else None, missing, signers_now, _unsigned_store(signed)
    )


def _unsigned_store(signed: dict[str, Any]) -> TrustStore:
    try:
        return parse_unsigned(signed, "the new root")
    except TrustError as error:
        raise KeysError(error.what, do="Check the options") from error


RoleName = Literal["bundle", "root"]
Signed = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """public: the raw 32 bytes. expires_s: since 1970, None for as long as the root."""

    name: str
    public: bytes
    expires_s: float | None = None

    @property
    def keyid(self) -> str:
        return keyid_of(self.public)


@dataclass(frozen=True)
class Dates:
    """Of a version of the root, in seconds since 1970."""

    issued_s: float
    expires_s: float


def first_root(
    root: Sequence[Member], bundle: Sequence[Member], dates: Dates, *, root_threshold: int = 1, threshold: int = 1
) -> Signed:
    """Return version 1.

    root: keys that sign later versions
    bundle: keys that sign bundles, of which `threshold` must
    """
    signed: Signed = {
        "type": "edgekit-root",
        "format": 1,
        "version": 0,
        "keys": {},
        "roles": {"bundle": {"keyids": [], "threshold": 1}, "root": {"keyids": [], "threshold": 1}},
        "revoked": [],
    }
    signed = _add_members(_add_members(signed, root, "root"), bundle, "bundle")
    signed["roles"]["root"]["threshold"], signed["roles"]["bundle"]["threshold"] = root_threshold, threshold
    return _next_version(signed, dates)


def with_keys(
    signed: Signed, members: Sequence[Member], role: RoleName, dates: Dates, threshold: int | None = None
) -> Signed:
    """Add keys to a role. threshold: how many of it must sign, None for as many as before."""
    new = _add_members(signed, members, role)
    if threshold is not None:
        new["roles"][role]["threshold"] = threshold
    return _next_version(new, dates)


def renew(signed: Signed, dates: Dates) -> Signed:
    """Return the next version, with the same keys and another date."""
    return _next_version(copy.deepcopy(signed), dates)


def rotate(signed: Signed, keyid: str, member: Member, dates: Dates, until_s: float) -> Signed:
    """Replace `keyid` by `member`; accept its signatures until `until_s`, since 1970."""
    old = _find_key(signed, keyid)
    new = copy.deepcopy(signed)
    roles: tuple[RoleName, ...] = ("root", "bundle")
    for role in [role for role in roles if keyid in signed["roles"][role]["keyids"]]:
        new = _add_members(new, [member], role)
    if keyid in new["roles"]["root"]["keyids"]:
        new["roles"]["root"]["keyids"].remove(keyid)
    if keyid in new["roles"]["bundle"]["keyids"]:
        new["keys"][keyid] = {**old, "expires": tell_time(until_s)}
    else:
        del new["keys"][keyid]
    return _next_version(new, dates)


def revoke(signed: Signed, keyid: str, why: str, dates: Dates, threshold: int | None = None) -> Signed:
    """Revoke `keyid` for good. threshold: of the role bundle, None for as many as before."""
    old = _find_key(signed, keyid)
    new = copy.deepcopy(signed)
    del new["keys"][keyid]
    for role in new["roles"].values():
        role["keyids"] = [name for name in role["keyids"] if name != keyid]
    new["revoked"].append({"keyid": keyid, "name": old["name"], **({"why": why} if why else {})})
    if threshold is not None:
        new["roles"]["bundle"]["threshold"] = threshold
    return _next_version(new, dates)


def _add_members(signed: Signed, members: Sequence[Member], role: RoleName) -> Signed:
    new = copy.deepcopy(signed)
    gone = {entry["keyid"]: entry for entry in new["revoked"]}
    for member in members:
        if member.keyid in gone:
            raise KeysError(
                f"key '{member.name}' ({member.keyid[:8]}) was revoked, and a revoked key cannot return",
                do="Make another: edgekit keys new NAME",
            )
        if any(key["name"] == member.name and name != member.keyid for name, key in new["keys"].items()):
            raise KeysError(f"this root already has another key named '{member.name}'", do="Give it another --name")
        entry = {"name": member.name, "public": base64.b64encode(member.public).decode()}
        if member.expires_s is not None:
            entry["expires"] = tell_time(member.expires_s)
        new["keys"][member.keyid] = {**new["keys"].get(member.keyid, {}), **entry}
        if member.keyid not in new["roles"][role]["keyids"]:
            new["roles"][role]["keyids"].append(member.keyid)
    return new


def _next_version(signed: Signed, dates: Dates) -> Signed:
    """Set the next version and its dates. Raises KeysError for a role that could never sign."""
    if dates.expires_s <= dates.issued_s:
        raise KeysError(
            f"this root would have expired before it is made, on {tell_time(dates.expires_s)}", do="Give a later date"
        )
    for name, role in signed["roles"].items():
        there, needed = len(role["keyids"]), role["threshold"]
        if not 1 <= needed <= there:
            raise KeysError(
                f"too few keys would be left to sign as '{name}': {there}, and {needed} must"
                if there
                else f"no key would be left to sign as '{name}'",
                do="Add a key first (edgekit keys trust), or lower the number with --threshold",
            )
    return {
        **signed,
        "version": signed["version"] + 1,
        "issued": tell_time(dates.issued_s),
        "expires": tell_time(dates.expires_s),
    }


def _find_key(signed: Signed, keyid: str) -> dict[str, Any]:
    if keyid not in signed["keys"]:
        raise KeysError(f"this root has no key {keyid[:8]}", do="See: edgekit keys list")
    found: dict[str, Any] = signed["keys"][keyid]
    return found


@dataclass(frozen=True)
class RootUpdate:
    """store: in force now. before: the earlier version, or None."""

    store: TrustStore
    before: int | None
    path: Path


def take_over(
    files: Sequence[Path], to: Path, *, expect: str | None = None, now: TrustTime | None = None
) -> RootUpdate:
    """Take over roots in the order of their versions. expect: the first root's fingerprint.

    Raises TrustError (also root-rollback, root-expired), KeysError, OutputError and leaves the root in force.
    """
    candidates = sorted(
        ((parse_root(data, str(path)), data) for path, data in [(path, read_root(path)) for path in files]),
        key=lambda one: one[0].version or 0,
    )
    there = os.path.exists(to)  # noqa: PTH110 - False, too, where it may not be looked at
    current = load_in_force(to, lambda path: parse_root(read_trusted(path), str(path))) if there else None
    before = current.version if current is not None else None
    store, data = current, b""
    for candidate, content in candidates:
        if store is None:
            if expect is not None and candidate.fingerprint != expect.lower():
                raise KeysError(
                    f"its fingerprint is {candidate.fingerprint}, not {expect} as expected",
                    where=candidate.where,
                    do="Take it from who made it, or ask them for the fingerprint that `edgekit keys list` shows",
                )
            store, data = candidate, content
        elif (candidate.version or 0) >= (store.version or 0) or len(candidates) == 1:
            followed = follow(store, content, candidate.where)
            store, data = followed, content if followed is not store else data
    if store is None:
        raise ValueError("no file was named")
    store.check_date(now or judge(issued_s=store.issued_s))
    if data:
        write_whole(to, data, "the root")
    return RootUpdate(replace(store, where=str(to)), before, to)
