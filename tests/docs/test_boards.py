"""docs/boards.md is what the profiles say, and claims no emulation that the tests do not run."""

from __future__ import annotations

import boards_table


def test_the_tables_are_those_of_the_profiles():
    wrong = "docs/boards.md is out of date: run python tests/boards_table.py"
    assert boards_table.PAGE.read_text(encoding="utf-8") == boards_table.page(), wrong


def test_the_page_says_that_no_board_was_used():
    assert "**No board was used to make edgekit.**" in boards_table.PAGE.read_text(encoding="utf-8")
