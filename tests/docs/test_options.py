"""The tables of options are made of the requests' fields."""

from __future__ import annotations

import options_table
import pytest


@pytest.mark.parametrize("page", [options_table.REFERENCE, options_table.COMPRESS], ids=lambda page: page.stem)
def test_the_tables_are_those_of_the_requests(page):
    wrong = f"{page.name} is out of date: run python tests/support/options_table.py"
    assert page.read_text(encoding="utf-8") == options_table.renewed(page), wrong
