"""docs/errors.md is the tree of errors in the code."""

from __future__ import annotations

import errors_page

import edgekit_runtime


def test_the_page_is_up_to_date():
    wrong = "docs/errors.md is out of date: run python tests/errors_page.py"
    assert errors_page.FILE.read_text(encoding="utf-8") == errors_page.text(), wrong


def test_every_error_that_may_reach_an_application_can_be_imported_from_the_package_and_no_other():
    code = {kind.__name__ for _, kind in errors_page.errors()}
    assert code >= errors_page.WITHIN
    assert code - errors_page.WITHIN == {name for name in edgekit_runtime.__all__ if name in code}, (
        "an error is neither exported nor listed as internal"
    )
