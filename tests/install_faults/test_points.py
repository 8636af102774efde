"""A kill, a broken disk, a full one, one that cannot be read: at every call something answers, and the same again
succeeds.

Here a sample, the same every time; `make kill` takes every point.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from install_faults.points import Point, errors, kills, points, try_point, unread
from install_faults.scenes import SCENES, Kit

KINDS = {
    "killed": (kills, False, 22),
    "told that the disk failed": (errors, False, 60),
    "told so from there on": (errors, True, 80),
    "not given what it reads": (unread, False, 60),
}
"""What happens, whether it stays so, and of how many points one is taken."""


def some(found: list[Point], every: int) -> list[Point]:
    """Every n-th, and the first of each system call where there are many."""
    seen = {point.call.name: point for point in reversed(found)} if every < 40 and len(found) > 100 else {}
    chosen = range(min(every, len(found)) // 2, len(found), every)
    return [point for at, point in enumerate(found) if at in chosen or point in seen.values()]


@pytest.mark.parametrize("scene", SCENES.values(), ids=lambda scene: scene.name)
@pytest.mark.parametrize("kind", KINDS)
def test_something_answers_whenever_it_is(kind, scene, kit: Kit, tmp_path: Path):
    """S17"""
    what, for_good, every = KINDS[kind]
    found = points(kit, scene, tmp_path / "p00000", what, for_good=for_good)
    assert len(found) > 5
    tried = [try_point(kit, point, tmp_path / f"p{at:05}") for at, point in enumerate(some(found, every), 1)]
    assert tried
    wrong = [f"{one.point.told}: {'; '.join(one.wrong)}" for one in tried if one.wrong]
    assert not wrong, "\n".join(wrong)


def test_before_the_switch_the_old_one_answers_and_after_it_the_new_one(kit: Kit, tmp_path: Path):
    """S17: The two calls of an install between which the answer changes: the journal's rename, and nothing else."""
    scene = SCENES["install"]
    found = points(kit, scene, tmp_path / "p00000", kills)
    names = [point.call.told for point in found]
    switch = max(at for at, name in enumerate(names) if name == "rename current.new -> current")
    decided = max(at for at in range(switch) if names[at] == "rename journal.json.new -> journal.json")
    told = {at: try_point(kit, found[at], tmp_path / f"p{at:05}") for at in (decided, decided + 1, switch, switch + 1)}
    assert [one.version for one in told.values()] == ["2", "3", "3", "3"]
    assert not list(itertools.chain.from_iterable(one.wrong for one in told.values()))


def test_with_the_self_test_in_a_child_of_its_own(kit: Kit, tmp_path: Path):
    """As on a board: the installer is killed while the child's verdict is being written down, and installs again."""
    root = kit.lay(SCENES["install"], tmp_path / "p00001")
    killed = kit.forks.run([kit.install("3", root)], die="trial", EDGEKIT_SELFTEST="")
    assert (killed.code, killed.chain[-1]) == (-9, "trial")
    assert kit.forks.run([["ask", str(root)]]).note["version"] == "2"
    again = kit.forks.run([kit.install("3", root), ["ask", str(root)]], EDGEKIT_SELFTEST="")
    assert (again.notes[0]["code"], again.note["version"]) == (0, "3")
    assert again.chain == ["trial 2", "committed"]
