"""A power cut takes what was not flushed: whatever the disk is found to hold, something answers, and the same again
succeeds.

Here a sample, the same every time, and what was once found to break; `make kill` takes every state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from install_faults.cuts import CUT_SCENES, CountedWindow, cuts, cuts_after_a_kill, kill_points, try_cut
from install_faults.scenes import Kit
from install_faults.traces import Call
from install_faults.unflushed import Disk, File, digest, image_of, put

Wanted = Callable[[CountedWindow], bool]


def holds(cut: CountedWindow, start: str) -> list[str]:
    return [path for path in cut.image if path.startswith(f"root/{start}/")]


def journal(cut: CountedWindow) -> str:
    return cut.image["root/journal.json"][1].decode() if "root/journal.json" in cut.image else ""


def neither(cut: CountedWindow) -> bool:
    """The journal says that it was fetched, and it is in neither folder."""
    return '"fetched"' in journal(cut) and not holds(cut, "incoming") and len(holds(cut, "objects")) == 1


def both(cut: CountedWindow) -> bool:
    return '"fetched"' in journal(cut) and any(kind == "same" for kind, _, _ in cut.image.values())


def zeros(cut: CountedWindow) -> bool:
    """A download has the length of what came, and nothing of it."""
    parts = [cut.image[path][1] for path in holds(cut, "incoming") if path.endswith(".part")]
    return bool(parts) and len(parts[0]) > 0 and not any(parts[0])


def ended(cut: CountedWindow) -> bool:
    return cut.ended and cut.told.endswith("nothing")


FOUND: dict[str, tuple[str, Wanted]] = {
    "what was fetched is in neither folder": ("install on trial", neither),
    "what was fetched is in both": ("install on trial", both),
    "a download of zeros": ("download", zeros),
    "a first install into new folders had ended": ("first install in new folders", lambda cut: cut.ended),
    "an application on trial was closed": ("used on trial", lambda cut: cut.ended),
}
"""What broke a promise when every state was tried for the first time, and was mended."""


@pytest.fixture(scope="module")
def states(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[CountedWindow]]:
    """Of a scene, by its name; each run once."""
    known = dict[str, list[CountedWindow]]()

    def of(name: str) -> list[CountedWindow]:
        if name not in known:
            known[name] = cuts(kit, CUT_SCENES[name], tmp_path_factory.mktemp("traced") / "one")
        return known[name]

    return of


@pytest.mark.parametrize("name", CUT_SCENES)
def test_something_answers_whatever_was_not_flushed(name, states, kit: Kit, tmp_path: Path):
    """S17"""
    found = states(name)
    assert any(cut.ended for cut in found)
    for at, cut in enumerate((found[len(found) // 2], next(cut for cut in reversed(found) if cut.ended))):
        assert not try_cut(kit, cut, tmp_path / str(at)).wrong, cut.told


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found(what, states, kit: Kit, tmp_path: Path):
    """S17"""
    name, wanted = FOUND[what]
    cut = next(cut for cut in states(name) if wanted(cut))
    assert not try_cut(kit, cut, tmp_path / "cut").wrong, cut.told


def test_what_a_killed_install_left_unflushed_is_flushed_by_the_next(kit: Kit, tmp_path: Path):
    """S17: The object was moved, and the install killed before its folder was flushed; the next one found it, and
    ended.
    """
    found = kill_points(kit, CUT_SCENES["first install"], tmp_path / "points")
    told = [point.call.told for point in found]
    moved = next(at for at, one in enumerate(told) if one.startswith("rename root/incoming/"))
    states = cuts_after_a_kill(kit, found[moved + 1], tmp_path / "killed", seeds=())
    assert not try_cut(kit, next(cut for cut in states if ended(cut)), tmp_path / "cut").wrong


KILLED = {
    "first install in new folders": "mkdir var/lib/root",
    "used on trial": "fsync root/generations/2/trial.json.new",
}


@pytest.mark.parametrize("scene", KILLED)
def test_so_is_what_it_made_on_its_way_and_no_draft_stays(scene, kit: Kit, tmp_path: Path):
    """S17"""
    found = kill_points(kit, CUT_SCENES[scene], tmp_path / "points")
    point = next(point for point in found if point.call.told == KILLED[scene])
    states = cuts_after_a_kill(kit, point, tmp_path / "killed", seeds=())
    wanted = [cut for cut in states if cut.ended and cut.told.endswith(("nothing", "everything"))]
    assert wanted
    for at, cut in enumerate(wanted):
        assert not try_cut(kit, cut, tmp_path / str(at)).wrong, cut.told


def call(name: str, *paths: str, data: bytes = b"", flags: str = "", result: str = "") -> Call:
    return Call(name, 1, paths, data, result or str(len(data)), flags)


def test_the_disk_that_is_simulated(tmp_path: Path):
    """A file written under another name and renamed, nothing of it flushed: every way in which it may be found."""
    (tmp_path / "journal").write_text("old")
    disk = Disk(tmp_path)
    disk.take(call("openat", "new", flags="O_WRONLY|O_CREAT|O_EXCL"))
    disk.take(call("write", "new", data=b"four"))
    disk.take(call("rename", "new", "journal"))
    found = {told: {name: one[1] for name, one in image.items()} for told, image in disk.images(seeds=())}
    assert found == {
        "nothing": {"journal": b"old"},
        "everything": {"journal": b"four"},
        "names alone": {"journal": b""},
        "names and half of the bytes": {"journal": b"fo"},
        "names and zeros": {"journal": bytes(4)},
        "bytes alone": {"journal": b"old"},
        "names that come": {"journal": b"four"},
        "names that go": {"journal": b"old"},
    }
    disk.take(call("fsync", "journal"))
    assert {one["journal"][1] for _, one in disk.images(seeds=range(20))} == {b"old", b"four"}
    disk.take(call("fsync", "."))
    assert {digest(image) for _, image in disk.images(seeds=range(20))} == {digest(disk.everything)}
    file = disk.node("journal")
    assert isinstance(file, File)
    assert file.data == b"four"


def test_a_call_that_is_not_understood_is_no_call_that_is_left_out(tmp_path: Path):
    with pytest.raises(AssertionError, match="not known here"):
        Disk(tmp_path).take(call("sendfile", "journal"))


def test_what_is_put_back_is_what_was_there(kit: Kit, tmp_path: Path):
    root = kit.lay(CUT_SCENES["collect"], tmp_path / "one")
    put(image_of(root), tmp_path / "other")
    assert image_of(tmp_path / "other") == image_of(root)
    shutil.rmtree(tmp_path / "other")
