"""A signature beside a bundle in OpenSSF's format of Model Signing, for tools that ask.

    signer = open_elliptic("release.pem", SigningOptions(), KeyFolder(default_folder()))      # P-256, P-384 or P-521
    text = model_signature("net.ekb", data, signer)                                    # to net.ekb.sig

Rules:
- the format is of specification 1.0 (github.com/ossf/model-signing-spec): a Sigstore bundle v0.3 with a public key's
  SHA-256 and a DSSE envelope of an in-toto statement, whose predicate lists the signed files;
- the one listed file is the bundle under its own name, so that the reference verifier takes the folder that holds it;
- the curve's size decides between SHA-256, SHA-384 and SHA-512 (FIPS 186-5, 6.1.1); other keys are refused;
- a public key needs a command that signs, whose output is verified;
- edgekit never verifies these signatures.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.packaging.key_folder import KeyFolder
from edgekit.packaging.output_errors import KeysError
from edgekit.packaging.signers import SignatureForm, SigningOptions, is_public, not_by, signature_from, warn_where_open
from edgekit.packaging.writer import load_private_key
from edgekit_runtime.bundle.signature import MAX_KEY_FILE_BYTES, pae

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey

_CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}


@dataclass(frozen=True)
class EllipticSigner:
    """public_pem: SubjectPublicKeyInfo. sign: message -> ECDSA in DER; raises KeysError."""

    public_pem: bytes
    sign: Callable[[bytes], bytes]


def open_elliptic(key: str, signing: SigningOptions, folder: KeyFolder) -> EllipticSigner:
    """key: a name in `folder` or a PEM file. Raises KeysError or PackagingError naming it."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        path = folder.private(key)
    except KeysError as error:
        raise KeysError(error.what, where=error.where, do=_make(Path(key))) from None
    if is_public(path):
        return _external(path, signing.signer)
    warn_where_open(path, signing)
    private = load_private_key(path, signing.passphrase, _make(path))
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise _unfit(path)
    public = private.public_key()
    return EllipticSigner(_pem(public, path), functools.partial(private.sign, signature_algorithm=_algorithm(public)))


def _external(path: Path, command: str | None) -> EllipticSigner:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        public = serialization.load_pem_public_key(path.read_bytes()[:MAX_KEY_FILE_BYTES])
    except Exception as error:
        raise KeysError("this is no PEM public key", where=str(path), do=_make(path)) from error
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise _unfit(path)
    pem = _pem(public, path)
    if command is None:
        raise KeysError(
            "this is a public key, which cannot sign by itself",
            where=str(path),
            do="Name the private one, or pass --signer with the command that signs for it",
        )
    return EllipticSigner(pem, functools.partial(_sign_by_command, command, public, path.name))


def _sign_by_command(command: str, public: EllipticCurvePublicKey, name: str, message: bytes) -> bytes:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    def is_der(signature: bytes) -> bool:
        try:
            decode_dss_signature(signature)
        except ValueError:
            return False
        return True

    signature = signature_from(command, message, SignatureForm("an ECDSA signature in DER", is_der))
    try:
        public.verify(signature, message, _algorithm(public))
    except InvalidSignature:
        raise not_by(command, name) from None
    return signature


def _algorithm(public: EllipticCurvePublicKey) -> ECDSA:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(getattr(hashes, _CURVES[public.curve.name])())


def _pem(public: EllipticCurvePublicKey, path: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    if public.curve.name not in _CURVES:
        raise _unfit(path)
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _unfit(path: Path) -> KeysError:
    return KeysError("the key should be one of P-256, P-384 or P-521", where=str(path), do=_make(path))


def _make(path: Path) -> str:
    name = f"{path.name.removesuffix('.pem').removesuffix('.pub')}-p256.pem"
    return f"Make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}"


_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def model_signature(name: str, data: bytes, signer: EllipticSigner) -> str:
    """The signature file's text. name: the bundle's file name without a folder. data: its bytes."""
    digest = hashlib.sha256(data)
    fields = {
        "_type": _STATEMENT_TYPE,
        # The SHA-256 of all digests that are listed, one after another
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(digest.digest()).hexdigest()}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
            "resources": [{"name": name, "algorithm": "sha256", "digest": digest.hexdigest()}],
        },
    }
    statement = json.dumps(fields).encode()
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
