"""Ed25519 signatures over the DSSE encoding, verified before the signed bytes are parsed.

    good = verify(manifest, signatures, {keyid: raw_public})        # the keyids whose signature holds, each once

Rules:
- the signature block is a JSON list of {"keyid", "sig"}: SHA-256 of the raw public key in hex, canonical base64;
- PAE(type, body) = "DSSEv1" SP len(type) SP type SP len(body) SP body (DSSE 1.0), so a signature holds for one type;
- a public key is 32 bytes that encode a point canonically (RFC 8032, 5.1.3), and not one of the eight points of small
  order, for which one signature may hold for many messages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.system.errors import BundleError, SignatureError
from edgekit_runtime.system.files import read_regular
from edgekit_runtime.system.strict_json import strict_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.edgekit.manifest.v1+json"
MAX_SIGNATURES = 64
MAX_KEY_FILE_BYTES = 64 << 10
_SIGNATURE_BYTES = 64
_KEYID = re.compile(r"[0-9a-f]{64}", re.ASCII)

Signature = tuple[str, bytes]
"""keyid and the 64 raw bytes."""

_FIELD = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = {0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8}
"""The y coordinates of the eight points whose order divides 8."""


def pae(body: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """The bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type.encode()), payload_type.encode(), len(body), body)


def raw_key(key: Ed25519PublicKey) -> bytes:
    """The 32 bytes of a public key."""
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def keyid(key: Ed25519PublicKey) -> str:
    """SHA-256 of the raw 32 bytes of the public key, in hex."""
    return keyid_of(raw_key(key))


def keyid_of(raw: bytes) -> str:
    """`keyid` of the raw 32 bytes."""
    return hashlib.sha256(raw).hexdigest()


def weakness(raw: bytes) -> str:
    """Why these bytes are not a public key to trust (the module's rules), or an empty string."""
    if len(raw) != 32:
        return f"it has {len(raw)} bytes, not 32"
    y = int.from_bytes(raw, "little") & ((1 << 255) - 1)
    if y >= _FIELD:
        return "its encoding is not canonical"
    if y in _SMALL_ORDER:
        return "it is a point of small order, so anyone can forge its signatures"
    return ""


def parse_signatures(block: bytes, where: str) -> tuple[Signature, ...]:
    """The signature block. Raises BundleError when it is malformed."""
    try:
        return parse_entries(strict_json(block))
    except ValueError as error:
        what = f"the signature block is malformed: {error}"
        raise BundleError(what, where=where, do="Build the bundle again") from error


def parse_entries(entries: object) -> tuple[Signature, ...]:
    """A JSON list of {"keyid", "sig"}; a key may occur twice: it counts once.
    Raises ValueError with a text that says what is wrong."""
    if not isinstance(entries, list):
        raise ValueError("it is not a list")  # noqa: TRY004 - the text becomes a BundleError
    if len(entries) > MAX_SIGNATURES:
        raise ValueError(f"{len(entries)} signatures are more than {MAX_SIGNATURES}")
    found: list[Signature] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("keyid", "sig")):
            raise ValueError(f"entry {index} has no keyid and sig")
        if not _KEYID.fullmatch(entry["keyid"]):
            raise ValueError(f"the keyid of entry {index} is not 64 digits of lower-case hex")
        signature = canonical_base64(entry["sig"], f"the sig of entry {index}")
        if len(signature) != _SIGNATURE_BYTES:
            raise ValueError(f"the sig of entry {index} has {len(signature)} bytes, not {_SIGNATURE_BYTES}")
        found.append((entry["keyid"], signature))
    return tuple(found)


def canonical_base64(text: str, what: str) -> bytes:
    """The bytes of base64 in its one canonical spelling. Raises ValueError naming `what`."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError(f"{what} is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise ValueError(f"{what} is not canonical base64")
    return data


def load_public_key(path: Path) -> Ed25519PublicKey:
    """An Ed25519 public key from a PEM file. Raises SignatureError naming the file."""
    try:
        data = read_regular(path, MAX_KEY_FILE_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SignatureError(f"the key cannot be read: {why}", where=str(path)) from error
    return parse_public_key(data, str(path))


def parse_public_key(data: bytes, where: str) -> Ed25519PublicKey:
    """An Ed25519 public key from the bytes of a PEM file. Raises SignatureError naming the file."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    name = Path(where).name
    if b"PRIVATE KEY-----" in data[:MAX_KEY_FILE_BYTES]:
        what = "this is a private key: keep it secret; checking a signature needs only its public half"
        do = f"Pass its public half: openssl pkey -in {name} -pubout -out {Path(name).stem}.pub.pem"
        raise SignatureError(what, where=where, do=do)
    try:
        key = serialization.load_pem_public_key(data[:MAX_KEY_FILE_BYTES])
    except Exception as error:
        do = "Pass a public key or a root.json; to extract a public key: openssl pkey -in KEY.pem -pubout"
        raise SignatureError("this is not a PEM public key", where=where, do=do) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise SignatureError("this key is not Ed25519", where=where, do="Make one: openssl genpkey -algorithm ed25519")
    if weak := weakness(raw_key(key)):
        raise SignatureError(f"this key must not be trusted: {weak}", where=where, do="Make another: edgekit keys new")
    return key


def verify(
    body: bytes, signatures: Sequence[Signature], keys: Mapping[str, bytes], payload_type: str = PAYLOAD_TYPE
) -> tuple[str, ...]:
    """The keyids whose signature over `body` is valid, each once, in their order.
    keys: keyid -> raw public key."""
    known = [(name, signature) for name, signature in signatures if name in keys]
    if not known:
        return ()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    message, good = pae(body, payload_type), dict[str, None]()
    for name, signature in known:
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(keys[name]).verify(signature, message)
        except (InvalidSignature, ValueError):  # ValueError: 32 bytes that are not a point, in some versions
            continue
        good[name] = None
    return tuple(good)
