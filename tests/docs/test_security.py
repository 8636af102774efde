"""Every promise of docs/security.md has a test that names its number, and every number in a test is a promise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(r"^\| (S\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
NUMBERS = re.compile(r"(?:S\d+(?: |$|(?=[.:])))+")


@cache
def promises() -> dict[str, set[Path]]:
    """Number -> the files that the page says hold it."""
    text = PAGE.read_text(encoding="utf-8")
    return {
        number: {(PAGE.parent / path).resolve() for path in re.findall(r"\]\(([^)]+)\)", files)}
        for number, _, files in ROW.findall(text)
    }


@cache
def held() -> dict[str, set[Path]]:
    """Number -> the files with a test whose docstring begins with it."""
    found: dict[str, set[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                said = NUMBERS.match(ast.get_docstring(function) or "")
                for number in said[0].split() if said else ():
                    found.setdefault(number.rstrip(".:"), set()).add(path.resolve())
    return found


def test_promises_are_numbered_without_a_gap():
    assert list(promises()) == [f"S{n}" for n in range(1, len(promises()) + 1)]
    assert len(promises()) >= 20


@pytest.mark.parametrize("number", promises())
def test_a_promise_is_held_by_the_tests_that_the_page_names_and_no_others(number: str):
    assert held().get(number, set()) == promises()[number]


def test_no_test_holds_a_promise_that_nobody_made():
    assert held().keys() <= promises().keys()


def test_every_promise_that_the_page_speaks_of_is_there():
    assert set(re.findall(r"\bS\d+\b", PAGE.read_text(encoding="utf-8"))) <= promises().keys()
