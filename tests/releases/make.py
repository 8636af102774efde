"""Bundles of every released version, kept as they were written: what a later reader must open, or refuse by name.

    python tests/releases/make.py   # writes what is missing, and never a file that is there: a release is not rewritten

`0.1.0-*` is what that version's writer makes. `future-*` is what a later version may write, made by hand of the former:
keys that 0.1.0 does not know, which it ignores, and what it must refuse. `expected.json` says of each what 0.1.0 makes
of it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

SEED = hashlib.sha256(b"the signer of edgekit's test bundles: not a secret").digest()
SECRET = hashlib.sha256(b"the key of edgekit's encrypted test bundle: not a secret").digest()
VERSION = "0.1.0"
PAYLOAD_TYPE = b"application/vnd.edgekit.manifest.v1+json"

Change = Callable[[dict[str, Any]], object]


def released() -> dict[str, bytes]:
    """What the present writer makes."""
    import tiny

    from edgekit.packaging.assemble import BundleArtifact, assemble
    from edgekit.packaging.bundle_options import BundleTerms
    from edgekit.packaging.writer import SigningKey
    from edgekit_runtime.bundle.manifest import Promise
    from edgekit_runtime.bundle.secrets import Secret

    terms = BundleTerms("Apache-2.0", 3, "2026-01-01T00:00:00Z", "2036-01-01T00:00:00Z", ("raspberry-pi-4",))
    plain = tiny.content("tflite-int8", golden=[{"image": tiny.RED}])
    plain = replace(
        plain, name="colours", tools={"edgekit-deploy": VERSION}, model_id=hashlib.sha256(b"tiny").hexdigest()
    )
    full = replace(
        plain, terms=terms, promise=Promise(1.0, 5.0, 30.0), alternates=[BundleArtifact(tiny.artifact("onnx-f32"))]
    )
    locked = replace(full, alternates=[], secret=Secret([SECRET]))
    key = SigningKey(_private())

    def encoded(content: Any, *keys: Any) -> bytes:
        draft, manifest = assemble(content)
        return draft.encode(manifest, keys)

    return {
        f"{VERSION}-unsigned": encoded(plain),
        f"{VERSION}-signed": encoded(full, key),
        f"{VERSION}-encrypted": encoded(locked, key),
    }


FUTURE: dict[str, tuple[str, Change]] = {
    "future-unknown-keys": (f"{VERSION}-signed", lambda m: _strange(m)),
    "future-requires": (f"{VERSION}-signed", lambda m: m.update(requires=["holograms"])),
    "future-min-runtime": (f"{VERSION}-signed", lambda m: m.update(min_runtime="9.0.0")),
    "future-format": (f"{VERSION}-signed", lambda m: m.update(format=2)),
}


def _strange(manifest: dict[str, Any]) -> None:
    """A key that nobody knows, wherever an object may have one."""
    contract = manifest["contract"]
    places = [manifest, manifest["target"], manifest["promise"], contract, *contract["inputs"], *contract["outputs"]]
    places += [contract["inputs"][0]["image"], *manifest["artifacts"], *manifest["golden"], *manifest["blobs"]]
    for artifact in manifest["artifacts"]:
        places += [*artifact["inputs"], *artifact["outputs"], artifact["settings"]]
    places += [answer for golden in manifest["golden"] for answer in golden["answers"]]
    places += [answer["tolerance"] for golden in manifest["golden"] for answer in golden["answers"]]
    for place in places:
        place["zz_of_the_future"] = {"depth": [1, 2.5, None, True, "ü"]}
    manifest["contract_digest"] = hashlib.sha256(_canonical(contract)).hexdigest()


def changed(data: bytes, change: Change) -> bytes:
    """A bundle with another manifest, signed anew: by hand, without the writer under test."""
    (length,) = struct.unpack_from("<I", data, 8)
    manifest = json.loads(data[12 : 12 + length])
    (second,) = struct.unpack_from("<I", data, 12 + length)
    blobs = data[-(-(16 + length + second + 32) // 64) * 64 :]
    change(manifest)
    body = _canonical(manifest)
    block = _canonical([_signature(body)])
    head = data[:8] + struct.pack("<I", len(body)) + body + struct.pack("<I", len(block)) + block
    head += hashlib.sha256(head).digest()
    return head + bytes(-len(head) % 64) + blobs


def _signature(body: bytes) -> dict[str, str]:
    import base64

    pae = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE, len(body), body)
    return {
        "keyid": hashlib.sha256(_public()).hexdigest(),
        "sig": base64.b64encode(_private().sign(pae)).decode(),
    }


def _canonical(value: Any) -> bytes:
    import rfc8785

    return rfc8785.dumps(value)


def _private() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(SEED)


def _public() -> bytes:
    from cryptography.hazmat.primitives import serialization

    raw: bytes = _private().public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw


def _pem() -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = (
        _private()
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pem


def write(folder: Path) -> list[str]:
    """Writes what is missing; returns its names."""
    made: list[str] = []

    def put(name: str, make: Callable[[], bytes]) -> bytes:
        path = folder / name
        if not path.exists():
            path.write_bytes(make())
            made.append(name)
        return path.read_bytes()

    put("signer.pub.pem", _pem)
    names = [f"{VERSION}-unsigned", f"{VERSION}-signed", f"{VERSION}-encrypted"]
    new = released() if any(not (folder / f"{name}.ekb").exists() for name in names) else {}
    for name in names:
        put(f"{name}.ekb", lambda name=name: new[name])
    for name, (of, change) in FUTURE.items():
        put(f"{name}.ekb", lambda of=of, change=change: changed((folder / f"{of}.ekb").read_bytes(), change))
    return made


if __name__ == "__main__":
    print(*write(HERE) or ["nothing is missing"], sep="\n")
