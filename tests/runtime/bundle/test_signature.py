"""Keys for which anybody can sign, blocks that are malformed."""

from __future__ import annotations

import base64
import json

import pytest
import rooted
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edgekit_runtime.bundle.signature import parse_signatures, weakness
from edgekit_runtime.system.errors import BundleError

FIELD = 2**255 - 19
D = -121665 * pow(121666, FIELD - 2, FIELD) % FIELD
IDENTITY = (0, 1)


def added(p, q):
    """Of two points of edwards25519, in affine coordinates (RFC 8032, section 5.1.4)."""
    (x1, y1), (x2, y2) = p, q
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, FIELD - 2, FIELD)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, FIELD - 2, FIELD)
    return x % FIELD, y % FIELD


def with_y(y):
    """A point with this y, or None (RFC 8032, section 5.1.3)."""
    square = (y * y - 1) * pow(D * y * y + 1, FIELD - 2, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if (x * x - square) % FIELD:
        x = x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    return (x, y) if (x * x - square) % FIELD == 0 else None


def multiplied(n, point):
    total = IDENTITY
    while n:
        if n & 1:
            total = added(total, point)
        point, n = added(point, point), n >> 1
    return total


def small_order_points():
    """All eight, from one point whose order is made to divide 8."""
    order = 2**252 + 27742317777372353535851937790883648493
    for y in range(2, 100):
        point = with_y(y)
        if point is None:
            continue
        small = multiplied(order, point)
        points = {multiplied(k, small) for k in range(8)}
        if len(points) == 8:
            return points
    raise AssertionError("no point of order 8 was found")


def encodings(point):
    """Canonical, and with y + p where that fits: what a lenient decoder takes for the same point."""
    x, y = point
    return [(value | (x & 1) << 255).to_bytes(32, "little") for value in (y, y + FIELD) if value < 2**255]


def test_no_point_of_small_order_is_a_key():
    """S3"""
    points = small_order_points()
    assert len({point[1] for point in points}) == 5
    for point in points:
        assert all(weakness(raw) for raw in encodings(point)), point
        for raw in encodings(point):
            assert weakness(bytes([*raw[:31], raw[31] ^ 0x80])), "with the other sign"


def test_for_such_a_key_a_signature_exists_that_holds_for_every_message():
    """Why it is refused: S = 0 and R = A = the identity."""
    identity = (1).to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes(identity)
    held = 0
    for message in (b"one", b"two"):
        try:
            key.verify(identity + bytes(32), message)
            held += 1
        except InvalidSignature:  # a library that refuses it too
            pass
    assert held in (0, 2)
    assert weakness(identity)


@pytest.mark.parametrize("y", [FIELD, FIELD + 1, FIELD + 18, 2**255 - 1])
def test_a_second_encoding_of_a_point_is_no_key(y):
    """S3"""
    assert "not canonical" in weakness(y.to_bytes(32, "little"))


def test_keys_that_people_make_are_keys():
    assert [weakness(rooted.raw(f"key {n}")) for n in range(50)] == [""] * 50


ENTRY = {"keyid": "ab" * 32, "sig": base64.b64encode(bytes(64)).decode()}
BLOCKS = {
    "an object": b"{}",
    "no JSON": b"[",
    "an entry that is no object": b"[1]",
    "no keyid": json.dumps([{"sig": ENTRY["sig"]}]).encode(),
    "a keyid of 63 digits": json.dumps([{**ENTRY, "keyid": "a" * 63}]).encode(),
    "a keyid in capitals": json.dumps([{**ENTRY, "keyid": "AB" * 32}]).encode(),
    "no base64": json.dumps([{**ENTRY, "sig": "*" * 88}]).encode(),
    "letters that are no ASCII": json.dumps([{**ENTRY, "sig": "ä" * 88}]).encode(),
    "an empty signature": json.dumps([{**ENTRY, "sig": ""}]).encode(),
    "a signature of 65 bytes": json.dumps([{**ENTRY, "sig": base64.b64encode(bytes(65)).decode()}]).encode(),
    "a signature that is a number": json.dumps([{**ENTRY, "sig": 5}]).encode(),
    "a keyid twice in one entry": b'[{"keyid":"' + b"a" * 64 + b'","keyid":"' + b"b" * 64 + b'","sig":""}]',
    "65 entries": json.dumps([ENTRY] * 65).encode(),
    "nesting": b"[" * 60_000,
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_block_that_is_malformed_is_refused(block):
    """S3"""
    with pytest.raises(BundleError, match="the signature block is malformed"):
        parse_signatures(block, "net.ekb")


def test_an_empty_block_is_an_unsigned_bundle():
    assert parse_signatures(b"[]", "net.ekb") == ()


def spellings(data):
    """Every text that a lenient decoder reads as `data`.

    The last digit before the padding has bits that say nothing.
    """
    text = base64.b64encode(data).decode()
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    bare, padding = text.rstrip("="), "=" * text.count("=")
    others = (bare[:-1] + digit + padding for digit in digits)
    return [other for other in others if base64.b64decode(other) == data]


def test_one_signature_has_one_spelling():
    """S3"""
    name, signature = rooted.signature("ann", b"{}")
    held = []
    for text in spellings(signature):
        try:
            held += parse_signatures(json.dumps([{"keyid": name, "sig": text}]).encode(), "net.ekb")
        except BundleError as error:
            assert "not canonical" in str(error)  # noqa: PT017 - one of them holds
    assert len(spellings(signature)) == 16
    assert held == [(name, signature)]
