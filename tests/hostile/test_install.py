"""Every bad bundle that is offered to a board: one typed error, one line, one event, and `current` is what it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hostile.cases import CASES, Case
from hostile.make_corpus import CORPUS
from hostile.test_corpus import told

from edgekit_runtime.engines import available
from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install import Asked, Board, Proving, install, status

pytestmark = pytest.mark.skipif(
    "litert" not in available(), reason="LiteRT is not installed: pip install ai-edge-litert"
)

HERE = Board(profiles=("x86-64",))


def asked(root: str = "root.json", **changes) -> Asked:
    return Asked(**{"trust": (CORPUS / root,), "board": HERE, "proving": Proving(answers=20), **changes})


@pytest.fixture(scope="session")
def furnished(tmp_path_factory) -> Path:
    """A root in which the good bundle answers."""
    root = tmp_path_factory.mktemp("furnished") / "root"
    assert install(CORPUS / "good" / "signed.ekb", root, asked()).state == "committed"
    return root


@pytest.fixture
def root(furnished, tmp_path) -> Path:
    """A copy of it, for one test."""
    shutil.copytree(furnished, tmp_path / "root", symlinks=True)
    return tmp_path / "root"


def what_answers(root: Path) -> tuple[str, bytes, str]:
    """`current`, every byte that it leads to, and what the journal says of it."""
    current = os.readlink(root / "current")
    return current, (root / "current" / "bundle.ekb").read_bytes(), (root / "current" / "generation.json").read_text()


def events(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]


def refuses(root: Path, source: object, how: Asked, code: str, says: str = ".") -> EdgekitError:
    """Whatever a refusal promises, of one install."""
    before, count = what_answers(root), len(events(root))
    with pytest.raises(EdgekitError, match=says) as caught:
        install(source, root, how)
    assert caught.value.code == code
    message = told(caught.value)
    new = events(root)[count:]
    assert [(event["event"], event["code"]) for event in new] == [("refused", code)]
    assert str(new[0]["what"]) == message[:500]
    assert what_answers(root) == before
    assert status(root).current.number == 1
    assert os.listdir(root / "generations") == ["1"]
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_bad_bundle_changes_nothing_on_a_board(case: Case, root):
    refuses(root, CORPUS / "bad" / case.file, asked(case.root), case.fetched or case.code, case.says or ".")
    assert len(list((root / "objects").iterdir())) == 1, "a refused bundle was left behind"
