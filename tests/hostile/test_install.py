"""Every bad bundle that is offered to a board: one typed error, one line, one event, and `current` is what it was."""

from __future__ import annotations

import pytest
from hostile.board import asked, refuses
from hostile.cases import CASES, Case
from hostile.make_corpus import CORPUS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_bad_bundle_changes_nothing_on_a_board(case: Case, root):
    """S14"""
    refuses(root, CORPUS / "bad" / case.file, asked(case.root), case.fetched or case.code, case.says or ".")
    assert len(list((root / "objects").iterdir())) == 1, "a refused bundle was left behind"
