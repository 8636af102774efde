"""A signature beside a bundle in the format of OpenSSF Model Signing, for those whose tools ask for that.

text = model_signature("net.ekb", data, signer)                # to net.ekb.sig

The format, by its specification 1.0 (github.com/ossf/model-signing-spec): a Sigstore bundle of media type v0.3 that carries a
public key's SHA-256 and a DSSE envelope; in it an in-toto statement, whose predicate lists the files that were signed.

Rules: the one file that is listed is the bundle, under its own name. That is the specification's form of a single file and of a
folder that holds it alike. (The reference verifier lists a lone file as "."; it verifies this one by the folder.)
"""

from __future__ import annotations

import base64
import hashlib
import json

from edgekit.keys.elliptic import EllipticSigner
from edgekit_runtime.trust.signature import pae

__all__ = ["model_signature"]

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def model_signature(name: str, data: bytes, signer: EllipticSigner) -> str:
    """The signature file's text. name: the bundle's file name, without a folder. data: its bytes."""
    statement = json.dumps(_statement(name, hashlib.sha256(data))).encode()
    signature = signer.sign(pae(statement, _PAYLOAD_TYPE))
    return json.dumps(
        {
            "mediaType": _MEDIA_TYPE,
            "verificationMaterial": {
                "publicKey": {"hint": hashlib.sha256(signer.public_pem).hexdigest()},
                "tlogEntries": [],
            },
            "dsseEnvelope": {
                "payload": base64.b64encode(statement).decode(),
                "payloadType": _PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        }
    )


def _statement(name: str, digest: hashlib._Hash) -> dict[str, object]:
    """Its subject is the SHA-256 of all digests that are listed, one after another."""
    return {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(digest.digest()).hexdigest()}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
            "resources": [{"name": name, "algorithm": "sha256", "digest": digest.hexdigest()}],
        },
    }
