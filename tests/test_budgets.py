"""Rooms have budgets, and modules no `__all__`: tests/support/budgets.py."""

from pathlib import Path

from budgets import SOURCES, listed, main, over, sizes


def tree(folder: Path) -> Path:
    room = folder / "edgekit" / "report"
    room.mkdir(parents=True)
    (folder / "edgekit" / "__init__.py").write_text('__all__ = ["build"]\n')
    (room / "__init__.py").write_text('"""Words."""\n')
    (room / "words.py").write_text('"""One."""\n\n__all__ = ["a"]\na = 1\n')
    return folder


def test_a_room_is_a_package_without_its_sub_packages(tmp_path):
    assert sizes(tree(tmp_path), ["edgekit"]) == {"edgekit": 1, "edgekit.report": 5}


def test_a_room_above_its_budget_is_named_with_both_figures():
    (wrong,) = over({"edgekit.report": 5}, {"edgekit.report": 4})
    assert "edgekit.report has 5 lines, and its budget is 4" in wrong
    assert over({"edgekit.report": 5}, {"edgekit.report": 5}) == []


def test_each_room_has_a_budget_and_each_budget_a_room():
    assert over({"edgekit.report": 5}, {}) == ["edgekit.report has no budget in pyproject.toml"]
    assert over({}, {"edgekit.report": 5}) == ["edgekit.report has a budget in pyproject.toml and no files"]


def test_a_module_that_lists_its_names_is_found_and_a_front_may(tmp_path):
    (wrong,) = listed(tree(tmp_path), ["edgekit"])
    assert wrong.startswith("edgekit/report/words.py:3 has __all__")


def test_the_tree_keeps_its_budgets(capsys):
    assert main([]) == 0, capsys.readouterr().out
    assert all(room.split(".")[0] in {Path(source).name for source in SOURCES} for room in sizes())
