"""The one form of a value is read, and no other spelling of it; an independent writer of RFC 8785 says which form that
is.
"""

from __future__ import annotations

import json
import math

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.system.errors import BundleError
from edgekit_runtime.system.strict_json import MAX_DEPTH, canonical_bytes, number_text, parse_canonical

SEEN = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf")), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53) + 1, 2**53 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | SEEN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SEEN, inner, max_size=4),
    max_leaves=20,
)


def refused(data: bytes, why: str) -> None:
    with pytest.raises(BundleError, match=why):
        parse_canonical(data, "it", "x.ekb")


@settings(max_examples=examples(300))
@given(VALUES)
@example({"\U0001f600": 1, "\ufb33": 2})  # UTF-16 puts the first before the second, code points the other way round
@example([1e21, 1e20, 1e-6, 1e-7, 5e-324, 123456789012345680000.0])
def test_reads_what_another_writer_of_rfc_8785_writes(value):
    assert parse_canonical(rfc8785.dumps(value), "it", "x") == value
    assert canonical_bytes(value) == rfc8785.dumps(value)


@settings(max_examples=examples(300))
@given(VALUES)
def test_no_other_spelling_that_python_makes_is_read(value):
    """What Python's own writer makes is read where it happens to be the canonical form, and only there."""
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        if text.encode() != rfc8785.dumps(value):
            refused(text.encode(), "it is not canonical JSON")


@settings(max_examples=examples(500))
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(1e21)
@example(999999999999999900000.0)
@example(1e-7)
@example(0.000001)
def test_numbers_are_written_as_ecmascript_does(value):
    assert number_text(value) == rfc8785.dumps(value).decode()


CASES = {
    "a key twice": (b'{"a":1,"a":2}', "duplicate key 'a'"),
    "a key twice, by an escape": (b'{"a":1,"\\u0061":2}', "duplicate key"),
    "keys out of order": (
        b'{"b":1,"a":2}',
        r"""the keys are not in order: from character 2 on it is '"b":1,"a":2}', not '"a":2,"b":1}'.""",
    ),
    "white space": (b'{"a": 1}', "white space: from character 5 on it is ' 1}', not '1}'"),
    "a line end behind": (b"{}\n", r"character 2 is invisible, U\+000A"),
    "NaN": (b"[NaN]", "NaN is not JSON"),
    "an infinity": (b"[-Infinity]", "-Infinity is not JSON"),
    "overflow": (b"[1e999]", "a number is too large"),
    "1.0": (b"[1.0]", "from character 2 on it is '1.0]', not '1]'"),
    "1e0": (b"[1e0]", "from character 2 on it is '1e0]', not '1]'"),
    "minus zero": (b"[-0]", "from character 1 on it is '-0]', not '0]'"),
    "2^53 + 1": (b"[9007199254740993]", "from character 16 on it is '9007199254740993]', not '9007199254740992]'"),
    "a million digits": (b"[" + b"1" * 1_000_000 + b"]", "a number is too large"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "UTF-8 BOM"),
    "UTF-16": ("{}".encode("utf-16"), "not UTF-8"),
    "not UTF-8": (b'["\xff"]', "byte 2 is not UTF-8"),
    "a surrogate in UTF-8": (b'["\xed\xa0\x80"]', "not UTF-8"),
    "half a surrogate pair": (b'["\\ud800"]', "escaped"),
    "an escaped letter": (b'["\\u0041"]', "escaped"),
    "an escaped slash": (b'["\\/"]', "escaped"),
    "a control character": (b'["\\u0007"]', "escaped"),
    "a tab": (b'["\\t"]', "escaped"),
    "writing turned round": ('["\u202eabc"]'.encode(), r"U\+202E"),
    "an escape of a terminal": (b'["\\u001b[31m"]', "escaped"),
    "C1": ('["\x9b31m"]'.encode(), r"U\+009B"),
    "too deep": (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper"),
    "very deep": (b"[" * 1_000_000, "nested too deeply"),
    "very deep objects": (b'{"a":' * 100_000, "nested too deeply"),
    "unbalanced": (b"]" * 1_000_000, "is not JSON"),
    "empty": (b"", "is not JSON"),
    "cut off": (b'{"a":', "is not JSON"),
    "two values": (b"{}{}", "is not JSON"),
    "an open string": (b'["' + b"a\\" * 100_000, "is not JSON"),
}


@pytest.mark.parametrize(("data", "why"), CASES.values(), ids=CASES.keys())
def test_refuses_by_name(data, why):
    refused(data, why)


def test_reads_strings_with_quotes_and_backslashes_in_any_number():
    for text in ('"', "\\", '\\"', "\\\\", '\\\\"', 'a\\"b', "\\u0041", "é\U0001f600"):
        assert parse_canonical(rfc8785.dumps([text]), "it", "x") == [text]


def test_a_whole_number_beyond_2_to_the_53_is_a_float():
    assert isinstance(parse_canonical(b"[9007199254740992]", "it", "x")[0], float)
    assert isinstance(parse_canonical(b"[9007199254740991]", "it", "x")[0], int)
    assert math.isclose(parse_canonical(b"[1e+21]", "it", "x")[0], 1e21)
