"""The next version of a root.json, as a pure function of the last one: what is signed, not yet who signed it.

signed = first_root([Member("alice", raw)], [Member("builds", raw_2)], Dates(issued_s, expires_s))
signed = with_keys(signed, [Member("bob", raw_3)], "bundle", Dates(...), threshold=2)
signed = rotated(signed, keyid, Member("alice-2027", raw_4), Dates(...), until_s)
signed = revoked(signed, keyid, "laptop stolen", Dates(...))

Rules: every change is a new version. Rotation lets a key that signs bundles be accepted until a date, so that what is under way
still arrives, and takes a key that signs roots out at once. Revocation takes a key out of everything, for good: it is not
added again. No change leaves a role with fewer keys than must sign.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgekit.keys.errors import KeysError
from edgekit_runtime.trust import tell_time
from edgekit_runtime.trust.signature import keyid_of

__all__ = ["Dates", "Member", "RoleName", "first_root", "renewed", "revoked", "rotated", "with_keys"]

RoleName = Literal["bundle", "root"]
Signed = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """name: what people call the key. public: its raw 32 bytes. expires_s: seconds since 1970, None for as long as the root."""

    name: str
    public: bytes
    expires_s: float | None = None

    @property
    def keyid(self) -> str:
        return keyid_of(self.public)


@dataclass(frozen=True)
class Dates:
    """Seconds since 1970 of a version of the root: when it was made, and after which nothing new is accepted by it."""

    issued_s: float
    expires_s: float


def first_root(
    root: Sequence[Member], bundle: Sequence[Member], dates: Dates, *, root_threshold: int = 1, threshold: int = 1
) -> Signed:
    """Version 1. root: who signs the versions after it. bundle: who signs bundles; threshold: how many of them must."""
    signed: Signed = {
        "type": "edgekit-root",
        "format": 1,
        "version": 0,
        "keys": {},
        "roles": {"bundle": {"keyids": [], "threshold": 1}, "root": {"keyids": [], "threshold": 1}},
        "revoked": [],
    }
    signed = _added(_added(signed, root, "root"), bundle, "bundle")
    signed["roles"]["root"]["threshold"], signed["roles"]["bundle"]["threshold"] = root_threshold, threshold
    return _next(signed, dates)


def with_keys(
    signed: Signed, members: Sequence[Member], role: RoleName, dates: Dates, threshold: int | None = None
) -> Signed:
    """With more keys in a role. threshold: how many of that role must sign from now on, None for as many as before."""
    new = _added(signed, members, role)
    if threshold is not None:
        new["roles"][role]["threshold"] = threshold
    return _next(new, dates)


def renewed(signed: Signed, dates: Dates) -> Signed:
    """The same keys, another date."""
    return _next(copy.deepcopy(signed), dates)


def rotated(signed: Signed, keyid: str, member: Member, dates: Dates, until_s: float) -> Signed:
    """`member` wherever `keyid` was; what the old key signs is accepted until `until_s`, seconds since 1970."""
    old = _known(signed, keyid)
    new = copy.deepcopy(signed)
    for role in _roles_of(signed, keyid):
        new = _added(new, [member], role)
    if keyid in new["roles"]["root"]["keyids"]:
        new["roles"]["root"]["keyids"].remove(keyid)
    if keyid in new["roles"]["bundle"]["keyids"]:
        new["keys"][keyid] = {**old, "expires": tell_time(until_s)}
    else:
        del new["keys"][keyid]
    return _next(new, dates)


def revoked(signed: Signed, keyid: str, why: str, dates: Dates, threshold: int | None = None) -> Signed:
    """Without `keyid`, for good. threshold: of the role bundle from now on, where too few keys are left for the old one."""
    old = _known(signed, keyid)
    new = copy.deepcopy(signed)
    del new["keys"][keyid]
    for role in new["roles"].values():
        role["keyids"] = [name for name in role["keyids"] if name != keyid]
    new["revoked"].append({"keyid": keyid, "name": old["name"], **({"why": why} if why else {})})
    if threshold is not None:
        new["roles"]["bundle"]["threshold"] = threshold
    return _next(new, dates)


def _added(signed: Signed, members: Sequence[Member], role: RoleName) -> Signed:
    new = copy.deepcopy(signed)
    gone = {entry["keyid"]: entry for entry in new["revoked"]}
    for member in members:
        if member.keyid in gone:
            raise KeysError(
                f"key '{member.name}' ({member.keyid[:8]}) was revoked, and a revoked key does not come back",
                do="Make another: edgekit keys new NAME",
            )
        if any(key["name"] == member.name and name != member.keyid for name, key in new["keys"].items()):
            raise KeysError(f"there is another key called '{member.name}' in this root", do="Give it another --name")
        entry = {"name": member.name, "public": base64.b64encode(member.public).decode()}
        if member.expires_s is not None:
            entry["expires"] = tell_time(member.expires_s)
        new["keys"][member.keyid] = {**new["keys"].get(member.keyid, {}), **entry}
        if member.keyid not in new["roles"][role]["keyids"]:
            new["roles"][role]["keyids"].append(member.keyid)
    return new


def _next(signed: Signed, dates: Dates) -> Signed:
    """With the next version and these dates. Raises KeysError where a role could never sign."""
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
                do="Add a key first (edgekit keys trust, edgekit keys rotate), or lower the number with --threshold",
            )
    return {
        **signed,
        "version": signed["version"] + 1,
        "issued": tell_time(dates.issued_s),
        "expires": tell_time(dates.expires_s),
    }


def _known(signed: Signed, keyid: str) -> dict[str, Any]:
    if keyid not in signed["keys"]:
        raise KeysError(f"this root does not know key {keyid[:8]}", do="See: edgekit keys list")
    found: dict[str, Any] = signed["keys"][keyid]
    return found


def _roles_of(signed: Signed, keyid: str) -> list[RoleName]:
    roles: tuple[RoleName, ...] = ("root", "bundle")
    return [role for role in roles if keyid in signed["roles"][role]["keyids"]]
