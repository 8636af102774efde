"""Blobs that are encrypted: the construction is what the format's page says, and nothing else opens them."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.bundle.cipher import bound_to, decrypt, encrypt, key_id, plain_size

KEY = bytes(range(100, 132))
MODEL = "5e" * 32
BOUND = bound_to(MODEL, "model")

keys = st.binary(min_size=32, max_size=32)


def hkdf(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, written from its text."""
    pseudorandom = hmac.new(salt or bytes(32), key, hashlib.sha256).digest()
    out, block, count = b"", b"", 1
    while len(out) < length:
        block = hmac.new(pseudorandom, block + info + bytes([count]), hashlib.sha256).digest()
        out, count = out + block, count + 1
    return out[:length]


@pytest.mark.parametrize(
    ("key", "salt", "info", "expected"),
    [
        ("0b" * 22, "000102030405060708090a0b0c", "f0f1f2f3f4f5f6f7f8f9",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"),
        ("0b" * 22, "", "", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
    ],
    ids=["RFC 5869 A.1", "RFC 5869 A.3"],
)  # fmt: skip
def test_the_derivation_is_the_one_of_the_standard(key: str, salt: str, info: str, expected: str):
    from edgekit_runtime.bundle.cipher import _derive

    given_ = bytes.fromhex(key), bytes.fromhex(salt), bytes.fromhex(info)
    assert _derive(given_[0], given_[1] or None, given_[2], 42).hex() == expected
    assert hkdf(*given_, 42).hex() == expected


def test_the_cipher_is_the_one_of_the_standard():
    """Test case 16 of the GCM submission to NIST (AES-256, with associated data)."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    bound = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    sealed = AESGCM(key).encrypt(bytes.fromhex("cafebabefacedbaddecaf888"), plain, bound)
    assert sealed[-16:].hex() == "76fc6ece0f4e1768cddf8853bb2d551b"


@given(keys, st.binary(max_size=300), st.sampled_from(["model", "golden"]))
@settings(max_examples=examples(60))
def test_an_independent_reader_opens_what_is_written(key: bytes, data: bytes, kind):
    """As the page describes it: HKDF for the blob's key and nonce, then GCM in one piece."""
    bound = bound_to(MODEL, kind)
    salt, sealed = encrypt(key, data, bound)
    both = hkdf(key, salt, b"edgekit blob v1", 44)
    assert (
        AESGCM(both[:32]).decrypt(
            both[32:], sealed, b"edgekit blob v1\n" + MODEL.encode() + b"\n" + kind.encode() + b"\n"
        )
        == data
    )
    assert decrypt(key, salt, sealed, bound) == data
    assert plain_size(len(sealed)) == len(data)
    assert key_id(key) == hkdf(key, b"", b"edgekit key id v1", 16).hex()


def test_the_bytes_are_those_of_the_first_release():
    """Pinned: another construction would need another name."""
    salt, sealed = encrypt(KEY, b"the model", BOUND)
    assert key_id(KEY) == PINNED["id"]
    assert (salt.hex(), sealed.hex()) == (PINNED["salt"], PINNED["sealed"])


PINNED = {
    "id": "bf5f98c3c7bd4c9b5e6d4e266387f45d",
    "salt": "642a419d4afbabe769adad02f33da4f39b99479e059b5974e7ca4067b2acd292",
    "sealed": "56682cc27aa4bb653e2241011d70987b9f4e60720e85ccff2d",
}


@given(keys, st.binary(max_size=100), st.binary(max_size=100))
@settings(max_examples=examples(60))
def test_equal_blobs_are_equal_and_others_share_neither_salt_nor_key(key: bytes, one: bytes, other: bytes):
    assert encrypt(key, one, BOUND) == encrypt(key, one, BOUND)
    if one != other:
        assert encrypt(key, one, BOUND)[0] != encrypt(key, other, BOUND)[0]
    assert encrypt(key, one, BOUND)[0] != encrypt(key, one, bound_to(MODEL, "golden"))[0]
    assert encrypt(key, one, BOUND)[0] != encrypt(key, one, bound_to("00" * 32, "model"))[0]


def test_a_salt_tells_nothing_of_short_contents_to_who_lacks_the_key():
    """All four one-byte answers under two keys: no salt, no digest and no byte is what anybody could compute without
    it.
    """
    for answer in range(4):
        data = bytes([answer])
        salts = {encrypt(key, data, BOUND)[0] for key in (KEY, KEY[::-1])}
        assert len(salts) == 2
        assert not salts & {hashlib.sha256(data).digest(), hashlib.sha256(BOUND + data).digest()}


@given(st.binary(min_size=1, max_size=80), st.data())
@settings(max_examples=examples(80))
def test_any_bit_that_differs_is_refused(data: bytes, draw: st.DataObject):
    salt, sealed = encrypt(KEY, data, BOUND)
    parts = {"key": KEY, "salt": salt, "sealed": sealed, "bound": BOUND}
    name = draw.draw(st.sampled_from(sorted(parts)))
    bit = draw.draw(st.integers(0, 8 * len(parts[name]) - 1))
    changed = bytearray(parts[name])
    changed[bit // 8] ^= 1 << bit % 8
    parts[name] = bytes(changed)
    with pytest.raises(InvalidTag):
        decrypt(parts["key"], parts["salt"], parts["sealed"], parts["bound"])


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 24])
def test_a_blob_that_was_cut_short_is_refused(size: int):
    salt, sealed = encrypt(KEY, b"nine byte", BOUND)
    with pytest.raises(InvalidTag):
        decrypt(KEY, salt, sealed[:size], BOUND)


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 5])
def test_the_pieces_it_is_done_in_do_not_show(size: int):
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    salt, sealed = encrypt(KEY, data, BOUND)
    both = hkdf(KEY, salt, b"edgekit blob v1", 44)
    assert AESGCM(both[:32]).encrypt(both[32:], data, BOUND) == sealed
    assert decrypt(KEY, salt, memoryview(sealed), BOUND) == data
