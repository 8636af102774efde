"""docs/board-list.md is what the profiles say, and claims no emulation that the tests do not run."""

from __future__ import annotations

import re
from pathlib import Path

import boards_table
import pytest

from edgekit_profiles import load

ARM = Path(__file__).parents[1] / "arm"


def test_the_tables_are_those_of_the_profiles():
    wrong = "docs/board-list.md is out of date: run python tests/support/boards_table.py"
    assert boards_table.PAGE.read_text(encoding="utf-8") == boards_table.page(), wrong


@pytest.mark.parametrize(
    "page", [boards_table.PAGE, boards_table.PAGE.with_name("boards.md")], ids=lambda page: page.stem
)
def test_the_page_says_that_no_board_was_used(page: Path):
    assert "**No board was used to make edgekit.**" in page.read_text(encoding="utf-8")


def test_it_claims_the_emulation_that_the_tests_run_and_no_other():
    """What tests/arm has as boards and processors, read from its source: importing it would build their systems."""
    boards, proof = ((ARM / name).read_text(encoding="utf-8") for name in ("conftest.py", "test_proof.py"))
    listed = re.search(r"^BOARDS = \{(.*?)^\}", boards, re.MULTILINE | re.DOTALL)
    processors = re.search(r"^CPUS_64 = \((.*?)\)", proof, re.MULTILINE)
    assert listed
    assert processors
    run = [load(name) for name in re.findall(r': \("([a-z0-9-]+)",', listed[1])]
    assert {(profile.arch, profile.os.debian) for profile in run} == set(boards_table.EMULATED)
    assert boards_table.EMULATED["aarch64", "bookworm"] == tuple(re.findall(r'"([a-z0-9-]+)"', processors[1]))
