"""The import contract that `make lint` checks: a circle is found, and named from its first module to its first."""

from __future__ import annotations

import pytest
from import_circles import circle_in

CASES = {
    "none": ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
    "two": ({"a": {"b"}, "b": {"a"}}, ["a", "b", "a"]),
    "three, behind a way in": ({"z": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}, ["a", "b", "c", "a"]),
    "what is outside counts for nothing": ({"a": {"numpy"}}, []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_circle_is_found(case):
    imports, circle = CASES[case]
    assert circle_in(imports) == circle
