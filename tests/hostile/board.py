"""A board on which a good bundle answers, and what every refusal on it must keep to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hostile.make_corpus import CORPUS

from edgekit_runtime.install import BoardIdentity, InstallOptions, TrialOptions, install, status
from edgekit_runtime.system.errors import EdgekitError

HERE = BoardIdentity(profiles=("x86-64",))


def told(error: EdgekitError) -> str:
    """The message, once it keeps the promise: what is wrong, where and what to do, in one line."""
    assert error.what
    assert error.where
    assert error.do
    message = str(error)
    assert message.isprintable()
    assert len(message) < 1000
    return message


def asked(root: str = "root.json", **changes) -> InstallOptions:
    return InstallOptions(**{"trust": (CORPUS / root,), "board": HERE, "proving": TrialOptions(answers=20), **changes})


def what_answers(root: Path) -> tuple[str, bytes, str]:
    """`current`, every byte that it leads to, and what the journal says of it."""
    current = str((root / "current").readlink())
    return current, (root / "current" / "bundle.ekb").read_bytes(), (root / "current" / "generation.json").read_text()


def _generations(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "generations").iterdir())


def events(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]


def refuses(root: Path, source: object, how: InstallOptions, code: str, says: str = ".") -> EdgekitError:
    """Whatever a refusal promises, of one install. code: a regular expression for the whole of it."""
    before, count, there = what_answers(root), len(events(root)), _generations(root)
    with pytest.raises(EdgekitError, match=says) as caught:
        install(source, root, how)
    assert re.fullmatch(code, caught.value.code), caught.value
    message = told(caught.value)
    new = events(root)[count:]
    assert [(event["event"], event["code"]) for event in new] == [("refused", caught.value.code)]
    assert str(new[0]["what"]) == message[:500]
    assert what_answers(root) == before
    assert f"generations/{status(root).current.number}" == before[0]
    assert _generations(root) == there
    return caught.value
