"""Files as they come: each told once, whole, in order, and again when it is written again."""

from __future__ import annotations

import os
import threading

import pytest

from edgekit.bench.inputs import SETTLED_S, Arrivals, InputsError, signs


class Folder:
    """A folder and a clock that a test writes by hand: name -> (size, time, inode)."""

    def __init__(self, **lies) -> None:
        self.lies, self.now = lies, 0.0

    def arrivals(self, path) -> Arrivals:
        return Arrivals(path, lambda _: dict(self.lies), lambda: self.now)

    def after(self, seconds, **changes) -> None:
        self.now += seconds
        self.lies |= changes
        self.lies = {name: sign for name, sign in self.lies.items() if sign is not None}


def names(found):
    return [file.name for file in found]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([{"a": (1, 1, 1)}, {}, {}], [[], ["a"], []]),
        ([{"a": (1, 1, 1)}, {"a": (2, 2, 1)}, {"a": (3, 3, 1)}, {}, {}], [[], [], [], ["a"], []]),
        ([{"a": (1, 1, 1)}, {}, {"a": (1, 2, 1)}, {}], [[], ["a"], [], ["a"]]),
        ([{"a": (1, 1, 1)}, {}, {"a": None}, {"a": (1, 1, 1)}, {}], [[], ["a"], [], [], ["a"]]),
        ([{"a": (1, 1, 1)}, {"a": None}, {}], [[], [], []]),
        ([{"a": (1, 1, 1)}, {}, {"a": (1, 1, 2)}, {}], [[], ["a"], [], ["a"]]),
        ([{"b": (1, 1, 1)}, {"a": (1, 1, 2)}, {}, {}], [[], ["b"], ["a"], []]),
        ([{"old": (1, 1, 9)}, {}, {}], [[], [], []]),
        ([{"old": (2, 2, 9)}, {}, {}], [[], ["old"], []]),
    ],
    ids=[
        "settles", "grows", "written again", "removed and back", "gone before it settled", "replaced by another",
        "in the order in which they settled", "lay there before", "lay there before and was written again",
    ],
)  # fmt: skip
def test_a_file_is_told_when_it_has_stopped_changing(tmp_path, steps, told):
    folder = Folder(old=(1, 1, 9))
    arrivals = folder.arrivals(tmp_path)
    heard = []
    for step in steps:
        folder.after(SETTLED_S, **step)
        heard.append(names(arrivals.next()))
    assert heard == told


def test_a_file_that_has_been_quiet_for_too_short_a_time_is_not_told_yet(tmp_path):
    folder = Folder()
    arrivals = folder.arrivals(tmp_path)
    folder.after(0.0, a=(1, 1, 1))
    arrivals.next()
    folder.after(SETTLED_S / 2)
    assert arrivals.next() == []
    folder.after(SETTLED_S / 2)
    assert names(arrivals.next()) == ["a"]


def test_only_what_can_be_asked_about_is_seen(tmp_path):
    for name in ("a.jpg", "B.PNG", "c.npy", ".hidden.jpg", "d.json", "e.jpg.part", "empty.jpg"):
        (tmp_path / name).write_bytes(b"" if name == "empty.jpg" else b"x")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.jpg").symlink_to("nowhere")
    assert sorted(signs(tmp_path)) == ["B.PNG", "a.jpg", "c.npy"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are POSIX")
def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    assert signs(tmp_path) == {}


def test_a_folder_that_is_not_there_or_goes_away_is_a_clear_error(tmp_path):
    with pytest.raises(InputsError, match="cannot be watched: No such file"):
        Arrivals(tmp_path / "nowhere")
    (tmp_path / "inbox").mkdir()
    arrivals = Arrivals(tmp_path / "inbox")
    (tmp_path / "inbox").rmdir()
    with pytest.raises(InputsError, match="inbox: cannot be watched"):
        arrivals.next()


def test_it_ends_when_it_is_told_to_in_the_middle_of_many(tmp_path):
    folder, ended, heard = Folder(), threading.Event(), []
    arrivals = folder.arrivals(tmp_path)
    folder.after(0.0, **{f"{i}": (1, 1, i) for i in range(10)})
    arrivals.next()
    folder.after(SETTLED_S)
    for file in arrivals.until(ended):
        heard.append(file)
        if len(heard) == 3:
            ended.set()
    assert len(heard) == 3
