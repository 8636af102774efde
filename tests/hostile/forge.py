"""Bundles made by hand, byte by byte: what a careful writer never writes, and one good one to begin with.

    pack(manifest(), blobs())                                   # the good bundle
    value = manifest(); value["format"] = 2; pack(value, blobs())
    pack(manifest(), blobs(), sign=[key("ours")])

Rules: nothing of the clock, the machine or an engine gets in, so that the same code gives the same bytes everywhere.
The golden answers are those of LiteRT 2.3.0 to tests/models/tiny_int8.tflite, written down. Keys come from fixed seeds:
they are known to everybody and trusted by nobody but these tests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAGIC = b"\x89EKB\r\n\x1a\n"
MODELS = Path(__file__).parents[1] / "models"
PAYLOAD_TYPE = b"application/vnd.edgekit.manifest.v1+json"
RED, BLUE = bytes((230, 20, 20)) * 64, bytes((20, 20, 230)) * 64
ANSWERS = {RED: bytes((122, 129, 129, 132)), BLUE: bytes((129, 129, 122, 132))}
"""uint8 [8, 8, 3] pictures of one colour, and the int8 [4] answers to them."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """As the writer spells it. NaN and the like, which RFC 8785 has no form for, are spelt as Python does."""
    try:
        import rfc8785

        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except Exception:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )


def model() -> bytes:
    return (MODELS / "tiny_int8.tflite").read_bytes()


def blobs(data: bytes | None = None) -> list[bytes]:
    """The model file, then two golden pictures with their answers."""
    return [model() if data is None else data, RED, ANSWERS[RED], BLUE, ANSWERS[BLUE]]


def contract() -> dict[str, Any]:
    image = {
        "height": 8, "width": 8, "mean": [0.0, 0.0, 0.0], "std": [255.0, 255.0, 255.0], "color": "rgb",
        "resize": "stretch",
        "crop": 1.0, "interpolation": "bilinear",
    }  # fmt: skip
    return {
        "task": "classification",
        "inputs": [{"name": "image", "shape": [8, 8, 3], "dtype": "float32", "image": image}],
        "outputs": [{"name": "probs", "shape": [4], "dtype": "float32"}],
        "labels": ["red", "green", "blue", "dark"],
        "scores": "probabilities",
        "state": "none",
    }


def manifest(data: bytes | None = None, **changes: Any) -> dict[str, Any]:
    """Of `blobs(data)`. Each call gives a tree of its own."""
    data = model() if data is None else data
    value: dict[str, Any] = {
        "format": 1,
        "name": "tiny",
        "version": "1",
        "model_id": "0" * 64,
        "contract": contract(),
        "contract_digest": sha256(canonical(contract())),
        "target": {"profile": "x86-64", "arch": "x86_64", "threads": 1},
        "artifacts": [_artifact(data)],
        "golden": [_golden(picture) for picture in (RED, BLUE)],
        "blobs": entries(blobs(data)),
        "tools": {},
        "min_runtime": "0.1.0",
        "rollout_seq": 5,
    }
    return {**value, **changes}


def _artifact(data: bytes) -> dict[str, Any]:
    pixels = {"scale": 0.003921568859368563, "zero_point": -128}
    return {
        "role": "primary",
        "recipe": "tflite-int8",
        "format": "tflite",
        "precision": "int8",
        "blob": sha256(data),
        "bytes": len(data),
        "inputs": [
            {
                "name": "image",
                "tensor": "image",
                "dtype": "int8",
                "shape": [1, 8, 8, 3],
                "layout": "NHWC",
                "quantization": pixels,
            }
        ],
        "outputs": [
            {
                "name": "probs",
                "tensor": "Identity",
                "dtype": "int8",
                "shape": [1, 4],
                "quantization": {"scale": 2**-8, "zero_point": -128},
            }
        ],
        "tools": {},
    }


def _golden(picture: bytes) -> dict[str, Any]:
    answer = {
        "recipe": "tflite-int8",
        "engine": "litert",
        "engine_version": "2.3.0",
        "outputs": {"probs": sha256(ANSWERS[picture])},
        "tolerance": {"steps": 2, "cosine": 0.95},
    }
    return {"inputs": {"image": sha256(picture)}, "dtypes": {"image": "uint8"}, "answers": [answer]}


def entries(content: Sequence[bytes]) -> list[dict[str, Any]]:
    found, at = [], 0
    for blob in content:
        found.append({"sha256": sha256(blob), "offset": at, "size": len(blob)})
        at += _aligned(len(blob))
    return found


def key(name: str) -> Any:
    """The Ed25519 private key that is called so."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"a test's key: {name}".encode()).digest())


def public_raw(name: str) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key(name).public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def public_pem(name: str) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return (
        key(name).public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def signature(name: str, body: bytes, payload_type: bytes = PAYLOAD_TYPE) -> dict[str, str]:
    signed = key(name).sign(b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type, len(body), body))
    return {"keyid": sha256(public_raw(name)), "sig": base64.b64encode(signed).decode()}


def pack(
    value: dict[str, Any] | bytes, content: Sequence[bytes], *, sign: Sequence[str] = (), block: bytes | None = None
) -> bytes:
    """value: a manifest, or the very bytes of one. sign: names of keys. block: the signature block itself, whatever it
    is.
    """
    body = value if isinstance(value, bytes) else canonical(value)
    if block is None:
        block = canonical([signature(name, body) for name in sign])
    return seal(MAGIC + struct.pack("<I", len(body)) + body + struct.pack("<I", len(block)) + block, content)


def seal(head: bytes, content: Sequence[bytes] = ()) -> bytes:
    """The digest, as whoever changed the head would make it, and the blobs."""
    return b"".join(map(_padded, (head + hashlib.sha256(head).digest(), *content)))


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _padded(data: bytes) -> bytes:
    return data + bytes(_aligned(len(data)) - len(data))


ROOT_TYPE = b"application/vnd.edgekit.root.v1+json"


def root_json(
    bundle: Sequence[str],
    threshold: int = 1,
    *,
    revoked: Sequence[str] = (),
    expires: str = "2060-01-01T00:00:00Z",
    late: Sequence[str] = (),
) -> bytes:
    """A root.json that the key "root" signed. late: keys among `bundle` that are trusted until 2026-11-02 alone."""
    keys = {}
    for name in ("root", *bundle):
        keys[sha256(public_raw(name))] = {"name": name, "public": base64.b64encode(public_raw(name)).decode()} | (
            {"expires": "2026-11-02T00:00:00Z"} if name in late else {}
        )
    ids = [sha256(public_raw(name)) for name in bundle]
    signed = {
        "type": "edgekit-root", "format": 1, "version": 1, "issued": "2026-11-01T00:00:00Z", "expires": expires,
        "keys": keys,
        "roles": {
            "root": {"keyids": [sha256(public_raw("root"))], "threshold": 1},
            "bundle": {"keyids": ids, "threshold": threshold},
        },
        "revoked": [{"keyid": sha256(public_raw(name)), "name": name, "why": "stolen"} for name in revoked],
    }  # fmt: skip
    return canonical({"signed": signed, "signatures": [signature("root", canonical(signed), ROOT_TYPE)]})


def digested(value: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the digest that its contract has now."""
    value["contract_digest"] = sha256(canonical(value["contract"]))
    return value
