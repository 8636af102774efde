"""The head of a bundle is judged from its first bytes on.

A download is refused as early as it can be, and never hangs.
"""

from __future__ import annotations

import contextlib
import struct

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.bundle.header import MAGIC, MAX_HEADER_BYTES, header_needs, read_header
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system.errors import BundleError, IntegrityError

pytestmark = pytest.mark.skipif("litert" not in available(), reason="needs LiteRT")


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


def test_a_prefix_says_how_much_more_it_needs_until_it_is_enough(packed):
    whole, have, rounds = packed.read_bytes(), 0, 0
    while (need := header_needs(whole[:have], "x")) > have:
        have, rounds = need, rounds + 1
    header = read_header(whole[:have], "x")
    assert rounds <= 4
    assert have == header.blobs_at < len(whole)
    assert header.digest == read_bundle(packed).digest
    assert read_header(whole, "x") == header


@settings(max_examples=examples(200))
@given(st.data())
def test_every_shorter_prefix_needs_more_and_is_no_header(packed, data):
    whole = packed.read_bytes()
    end = read_header(whole, "x").blobs_at
    cut = data.draw(st.integers(0, end - 1))
    assert cut < header_needs(whole[:cut], "x") <= end
    with pytest.raises(BundleError):
        read_header(whole[:cut], "x")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x88", "not an edgekit bundle"),
        (MAGIC[:4] + b"\n", "changed in transfer"),
        (MAGIC + struct.pack("<I", 2**32 - 1), "claims 4,294,967,295 bytes"),
        (MAGIC + struct.pack("<I", 2) + b"{}" + struct.pack("<I", (64 << 10) + 1), "signature block claims"),
    ],
)
def test_what_can_be_refused_early_is(data, why):
    with pytest.raises(BundleError, match=why):
        header_needs(data, "x")


@settings(max_examples=examples(300))
@given(st.binary(max_size=100))
def test_no_bytes_ask_for_more_than_a_head_may_have(tail):
    with contextlib.suppress(BundleError):
        assert header_needs(MAGIC + tail, "x") <= MAX_HEADER_BYTES


def test_padding_behind_the_digest_is_part_of_it(packed):
    whole = bytearray(packed.read_bytes())
    header = read_header(bytes(whole), "x")
    if header.end < header.blobs_at:
        whole[header.end] = 1
        with pytest.raises(IntegrityError, match="padding"):
            read_header(bytes(whole), "x")
