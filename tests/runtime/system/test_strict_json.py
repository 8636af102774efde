"""JSON that two readers cannot read differently."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.system.strict_json import canonical_bytes, strict_json

texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_written_is_read_again(value):
    assert strict_json(canonical_bytes(value)) == value
    assert strict_json(json.dumps(value, indent=2).encode()) == value


REFUSED = {
    b'{"a":1,"a":1}': "duplicate key 'a'",
    b'[{"b":{"a":1,"c":2,"a":3}}]': "duplicate key 'a'",
    b"[NaN]": "NaN is not JSON",
    b"[-Infinity]": "-Infinity is not JSON",
    b"\xef\xbb\xbf{}": "byte order mark",
    b'"\xff"': "not UTF-8",
    b'"\\ud800"': "half a surrogate pair",
    b'{"\\udc00":1}': "half a surrogate pair",
    b"[" * 100_000: "nested too deeply",
    b"": "^it is empty$",
    b" \n": "^it is empty$",
    b"1 2": "^it is not JSON, from line 1 on$",
    b'{"a": 1}\n}': "^it is not JSON, from line 2 on$",
}


@pytest.mark.parametrize(("data", "words"), REFUSED.items(), ids=lambda one: repr(one)[:24])
def test_what_could_be_read_in_two_ways_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        strict_json(data)


def test_a_name_that_comes_twice_among_many_is_found_at_once():
    many = b",".join(b'"%d":0' % number for number in range(200_000))
    with pytest.raises(ValueError, match="duplicate key '199999'"):
        strict_json(b"{" + many + b',"199999":1}')
