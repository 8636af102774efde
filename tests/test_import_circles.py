"""The import contract that `make lint` checks: a circle is found, and named from its first module to its first."""

from __future__ import annotations

import pytest
from import_circles import between_rooms, circle_in

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


def test_rooms_that_import_each_other_are_a_circle_where_their_modules_are_none():
    imports = {"e": set(), "e.a": set(), "e.a.one": {"e.b.one"}, "e.a.two": set(), "e.b": set(), "e.b.one": {"e.a.two"}}
    assert circle_in(imports) == []
    assert circle_in(between_rooms(imports)) == ["e.a", "e.b", "e.a"]


def test_a_program_that_imports_rooms_which_import_its_package_is_no_circle():
    assert circle_in(between_rooms({"e": set(), "e.__main__": {"e.cli.main"}, "e.cli.main": {"e"}})) == []
