"""What `make mutate` changes in a module, and that a changed module is noticed."""

from __future__ import annotations

import ast
import importlib
import sys

import mutation
import pytest
from mutation import SUBJECTS, Planted, Subject, mutants

PLACES = {
    "a < b": {"a <= b"},
    "0 < a <= b": {"0 <= a <= b", "0 < a < b", "1 < a <= b"},
    "a and not b": {"a or not b", "a and b"},
    "a is None": {"a is not None"},
    "min(a, 1)": {"max(a, 1)", "min(a, 2)", "pass"},
    "def f():\n    a.b = True": {"def f():\n    pass", "def f():\n    a.b = False"},
    "a += 1": {"pass", "a += 2"},
    "def f():\n    return a": {"def f():\n    return None"},
    "if a:\n    b": {"if not a:\n    b"},
    "raise E('1', 2)": {"pass"},
    "NUMBER = 5": set(),
    "x: Literal[1] = 2": set(),
    "def f(a: int = 3):\n    'Words.'": set(),
    "f'{a + 1}'": set(),
    "if TYPE_CHECKING:\n    a < b": set(),
}


@pytest.mark.parametrize("source", PLACES)
def test_each_place_is_changed_once_and_words_never(source):
    assert {ast.unparse(mutant.tree) for mutant in mutants(source)} == PLACES[source]


def test_thirteen_modules_have_tests_and_a_floor():
    assert len(SUBJECTS) == 13
    for name, subject in SUBJECTS.items():
        assert (mutation.ROOT / name).is_file()
        assert all((mutation.ROOT / test).exists() for test in subject.tests)
        assert 50 <= subject.floor <= 100


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A module of one comparison, and a test that tells < from >=, and not from <=."""
    (tmp_path / "edgekit").mkdir()
    (tmp_path / "edgekit" / "planted.py").write_text("def small(n):\n    return n < 5\n")
    lines = ["from edgekit.planted import small", "def test_it(): assert small(4) and not small(6)"]
    (tmp_path / "test_planted.py").write_text("\n".join(lines))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("edgekit.__path__", [str(tmp_path / "edgekit")])


def test_a_mutant_that_no_test_notices_is_named(subject, capsys):
    found = mutation.judge("edgekit/planted.py", Subject(50, "test_planted.py"), None)
    assert (found["mutants"], found["killed"], found["survived"]) == (
        3, 1, ["2: n < 5 -> n <= 5", "2: 5 -> 6"],
    )  # fmt: skip


def test_no_file_is_changed(subject, monkeypatch):
    path = mutation.ROOT / "edgekit" / "planted.py"
    before = path.read_text()
    mutant = next(mutants(before))
    monkeypatch.setattr(sys, "meta_path", [Planted(path, mutant.tree), *sys.meta_path])
    planted = importlib.import_module("edgekit.planted")
    del sys.modules["edgekit.planted"]
    assert planted.small(4) is None
    assert path.read_text() == before
