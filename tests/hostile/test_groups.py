"""All 26 groups of bad input are on the page, each with tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from hostile.cases import CASES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((\.\./tests/[^)]+)\)")


@cache
def rows() -> dict[int, tuple[str, list[tuple[str, str]]]]:
    """Number -> what it is about, and its tests: (a part of their names, file)."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("\n## Bad input") :]
    both = section[section.index("*both* are") :].partition("\n\n")[0]
    found = ((number, what, tests.replace("both", both)) for number, what, tests in ROW.findall(section))
    return {int(number): (what, LINK.findall(tests)) for number, what, tests in found}


@cache
def names_in(file: Path) -> list[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")]


def test_none_of_the_26_groups_is_missing():
    assert list(rows()) == list(range(1, 27))


@pytest.mark.parametrize("group", range(1, 27))
def test_a_group_has_tests_that_exist(group):
    what, tests = rows()[group]
    assert what
    assert tests
    cases = [case.name for case in CASES if case.group == group]
    for name, link in tests:
        file = (PAGE.parent / link).resolve()
        assert file.is_file(), link
        if name == "corpus":
            assert cases, f"no case of group {group} is in the corpus"
        else:
            assert any(name in test for test in names_in(file)), f"{link} has no test with '{name}' in its name"


def test_every_case_of_the_corpus_and_every_numbered_test_is_on_the_page():
    for group in {case.group for case in CASES}:
        assert "corpus" in [name for name, _ in rows()[group][1]], f"group {group}"
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        for test in names_in(file):
            found = re.match(r"test_group_(\d\d)_", test)
            if found:
                files = [(PAGE.parent / link).resolve() for _, link in rows()[int(found[1])][1]]
                assert file in files, f"{test} is not in the row of its group"
