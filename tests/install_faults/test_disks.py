"""Real disks that are full, or mounted read-only: one typed error in one line, and what answers goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from install_faults.judging import refused_well
from install_faults.scenes import SCENES, Kit, tree


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A tmpfs of the size that is asked for; may be called again with other options, for the same folder."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"only root, outside a container, may mount a file system: {done.stderr.strip()}")
        return folder

    yield mount
    while os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


def lay(kit: Kit, disk: Path) -> Path:
    """Version 2 answers there, and 1 before."""
    root = kit.lay(SCENES["install"], disk / "slot")
    assert kit.forks.run([["ask", str(root)]]).note["version"] == "2"
    return root


def test_read_only(kit: Kit, mounted):
    disk = mounted("size=8m")
    root = lay(kit, disk)
    before = tree(root)
    mounted("remount,ro")
    commands = [
        kit.install("3", root),
        ["cli", "rollback", "--to", "1", "--root", str(root)],
        ["cli", "rollback", "--root", str(root)],
        ["cli", "status", "--root", str(root)],
    ]
    for note in kit.forks.run(commands[:3]).notes:
        assert not refused_well(note)
        assert "read-only" in note["err"]
    # it finds nothing to remove, or cannot; either way nothing else happens
    assert kit.forks.run([commands[3]]).note["code"] in (0, 1)
    looked = kit.forks.run([["cli", "status", "--root", str(root)], ["ask", str(root)]])
    assert (looked.notes[0]["code"], looked.note["version"]) == (0, "2")
    assert tree(root) == before
    mounted("remount,rw")
    assert kit.forks.run([kit.install("3", root), ["ask", str(root)]]).note["version"] == "3"


def test_full(kit: Kit, mounted):
    """From no room at all, a page more each time, until it is enough."""
    disk = mounted("size=2m")
    root = lay(kit, disk)
    ballast, page = disk / "ballast", os.sysconf("SC_PAGE_SIZE")
    refused, done = [], None
    for pages in (0, 1, 2, 3, 5, 8, 13, 200, 300):
        ballast.unlink(missing_ok=True)
        with ballast.open("wb") as file:
            file.write(bytes(max(0, shutil.disk_usage(disk).free - pages * page)))
        note, asked = kit.forks.run([kit.install("3", root), ["ask", str(root)]]).notes
        if note["code"] == 0:
            assert asked["version"] == "3"
            done = pages
            break
        assert not refused_well(note)
        assert "room" in note["err"]
        assert asked["version"] == "2"
        refused.append(pages)
    assert len(refused) >= 7
    assert done is not None
    ballast.unlink()
    assert kit.forks.run([["cli", "status", "--root", str(root)]]).note["code"] == 0
    assert not [name for name in tree(root) if name.endswith((".new", ".part"))]


def test_one_that_fills_up_while_it_works(kit: Kit, mounted):
    """What was free when it was looked is gone when it is written: as many inodes as there are, and one more."""
    disk = mounted("size=8m,nr_inodes=1000")
    root = lay(kit, disk)
    others = disk / "others"
    others.mkdir()
    for at in range(2000):
        try:
            (others / str(at)).touch()
        except OSError:
            break
    told = []
    for free in range(12):
        note, asked = kit.forks.run([kit.install("3", root), ["ask", str(root)]]).notes
        told.append(note["code"])
        if note["code"] == 0:
            break
        assert not refused_well(note)
        assert asked["version"] == "2"
        (others / str(free)).unlink()
    assert told[0] == 1
    assert told[-1] == 0
    assert asked["version"] == "3"
