"""Keys and root.json files made here by hand, right and wrong, by nothing but the pages on their formats."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any

import rfc8785
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ISSUED, EXPIRES = "2026-11-22T00:00:00Z", "2027-11-22T00:00:00Z"
IN_TIME = 1_800_000_000.0  # 2027-01-15
ROOT_TYPE = b"application/vnd.edgekit.root.v1+json"
MANIFEST_TYPE = b"application/vnd.edgekit.manifest.v1+json"


@cache
def private(name: str) -> Ed25519PrivateKey:
    """The same key for the same name, in every run."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def raw(name: str) -> bytes:
    return private(name).public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def keyid(name: str) -> str:
    return hashlib.sha256(raw(name)).hexdigest()


def public_pem(name: str) -> bytes:
    return (
        private(name)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def private_pem(name: str) -> bytes:
    return private(name).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def encoded(body: bytes, payload_type: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type, len(body), body)


def signature(name: str, body: bytes, payload_type: bytes = MANIFEST_TYPE) -> tuple[str, bytes]:
    return keyid(name), private(name).sign(encoded(body, payload_type))


def key(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "public": base64.b64encode(raw(name)).decode(), **more}


def signed_part(
    root: tuple[str, ...] = ("ann",),
    bundle: tuple[str, ...] = ("bea",),
    *,
    thresholds: tuple[int, int] = (1, 1),
    version: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """root, bundle: names of the keys in each role. thresholds: of the roles root and bundle."""
    return {
        "type": "edgekit-root",
        "format": 1,
        "version": version,
        "issued": ISSUED,
        "expires": EXPIRES,
        "keys": {keyid(name): key(name) for name in dict.fromkeys((*root, *bundle))},
        "roles": {
            "root": {"keyids": [keyid(name) for name in root], "threshold": thresholds[0]},
            "bundle": {"keyids": [keyid(name) for name in bundle], "threshold": thresholds[1]},
        },
        "revoked": [],
        **changes,
    }


def document(signed: dict[str, Any], *signers: str, payload_type: bytes = ROOT_TYPE) -> bytes:
    body = rfc8785.dumps(signed)
    entries = [
        {"keyid": name, "sig": base64.b64encode(value).decode()}
        for name, value in (signature(signer, body, payload_type) for signer in signers)
    ]
    return json.dumps({"signed": signed, "signatures": entries}, indent=1).encode()
