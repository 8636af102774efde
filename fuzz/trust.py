"""root.json, the file that says whom a machine trusts, and its successor.

Structure: the tree below "signed" is changed, and half of the time signed again by the key that may, as its owner
could.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from functools import cache
from random import Random

from hostile import forge

from edgekit_runtime.bundle.trust_root import follow, parse_root
from edgekit_runtime.bundle.trust_store import TrustStore
from edgekit_runtime.system.errors import SignatureError
from fuzz.octets import altered
from fuzz.target import Target
from fuzz.trees import changed, spelt

_BUNDLE = b'{"name":"tiny"}'


def _read(data: bytes) -> None:
    store = parse_root(data, "x")
    for role in (store.root, store.bundle):
        assert role is not None
        assert 1 <= role.threshold <= len(set(role.keyids)) == len(role.keyids)
        assert set(role.keyids) <= store.keys.keys() - store.revoked.keys()
    assert all(forge.sha256(key.public) == name for name, key in store.keys.items())
    _asked(store, data)


def _asked(store: TrustStore, data: bytes) -> None:
    """Nothing unsigned passes, whoever may sign; and no root follows what it does not follow."""
    with contextlib.suppress(SignatureError):
        counted = store.check(_BUNDLE, _signatures(), where="x")
        assert len(set(counted)) >= store.bundle.threshold
        assert set(counted) <= {forge.sha256(forge.public_raw(name)) for name in ("ours", "second")}
    with contextlib.suppress(SignatureError):
        assert follow(_old(), data, "x").version in (1, 2)


@cache
def _signatures() -> tuple[tuple[str, bytes], ...]:
    made = [forge.signature(name, _BUNDLE) for name in ("ours", "second")]
    return tuple((one["keyid"], base64.b64decode(one["sig"])) for one in made)


@cache
def _old() -> TrustStore:
    return parse_root(_seeds()[0], "old")


@cache
def _seeds() -> Sequence[bytes]:
    return [
        forge.root_json(["ours"]),
        forge.root_json(["ours", "second", "late"], 2, revoked=["stolen"], late=["late"]),
        _signed(json.loads(forge.root_json(["ours", "second"]))["signed"] | {"version": 2}),
    ]


def _signed(signed: dict[str, object]) -> bytes:
    try:
        body = forge.canonical(signed)
    except (RecursionError, ValueError, TypeError):
        body = b"{}"
    return forge.canonical({"signed": signed, "signatures": [forge.signature("root", body, forge.ROOT_TYPE)]})


def _mutate(data: bytes, random: Random) -> bytes:
    try:
        value = json.loads(data)
        if random.random() < 0.5:
            signed = changed(value["signed"], random)
            return _signed(signed)
        return spelt(changed(value, random), random)
    except (ValueError, TypeError, KeyError, UnicodeEncodeError):
        return altered(data, random)


def root() -> Target:
    return Target("root", _read, (SignatureError,), _seeds, _mutate, 1 << 14)
