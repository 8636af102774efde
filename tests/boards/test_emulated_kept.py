"""A kept folder is whole or not there, whoever makes it and however that ends."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from edgekit.boards.emulated_board import UserlandError
from edgekit.boards.userland import make_folder


def slowly(root: str, started, go) -> None:
    """In a process of its own: says that it began, and goes on when it is told."""

    def make(draft: Path) -> None:
        (draft / "half").touch()
        started.set()
        go.wait(30)
        (draft / f"made by {os.getpid()}").touch()

    make_folder(Path(root), "thing", make)


@pytest.fixture
def processes():
    made = []
    yield (
        lambda *arguments: (
            made.append(p := multiprocessing.get_context("spawn").Process(target=slowly, args=arguments)) or p
        )
    )
    for process in made:
        process.kill()
        process.join()


def test_it_is_made_once_and_then_found(tmp_path):
    calls = []
    for _ in range(2):
        folder = make_folder(tmp_path, "a/thing", lambda draft: calls.append((draft / "file").write_text("x")))
    assert len(calls) == 1
    assert (folder / "file").read_text() == "x"


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path, processes):
    context = multiprocessing.get_context("spawn")
    started, late, go = context.Event(), context.Event(), context.Event()
    first = processes(str(tmp_path), started, go)
    first.start()
    assert started.wait(30)
    second = processes(str(tmp_path), late, go)
    second.start()
    assert not (tmp_path / "thing").exists()
    go.set()
    first.join(30)
    second.join(30)
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert sorted(path.name for path in (tmp_path / "thing").iterdir()) == ["half", f"made by {first.pid}"]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, processes):
    context = multiprocessing.get_context("spawn")
    started, go = context.Event(), context.Event()
    process = processes(str(tmp_path), started, go)
    process.start()
    assert started.wait(30)
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert list(tmp_path.glob(".thing.*.draft"))
    folder = make_folder(tmp_path, "thing", lambda draft: (draft / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert not list(tmp_path.glob(".thing.*.draft"))


def test_one_that_fails_leaves_nothing_and_may_be_tried_again(tmp_path):
    with pytest.raises(KeyError):
        make_folder(tmp_path, "thing", lambda draft: {}["never"])
    assert [path.name for path in tmp_path.iterdir()] == [".thing.lock"]
    assert make_folder(tmp_path, "thing", lambda draft: None).is_dir()


def test_a_full_disk_is_a_sentence(tmp_path):
    def make(draft: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserlandError, match=r"No space left on device.*Make room there"):
        make_folder(tmp_path, "thing", make)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserlandError, match="Permission denied"):
        make_folder(tmp_path, "thing", lambda draft: None)


def test_a_file_where_the_folder_should_be_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserlandError, match="cannot be written"):
        make_folder(tmp_path / "file", "thing", lambda draft: None)


def test_threads_of_one_process_share_it_too(tmp_path):
    calls = []
    threads = [
        threading.Thread(target=make_folder, args=(tmp_path, "thing", lambda draft: calls.append(1))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert calls == [1]


def test_a_folder_that_other_users_could_change_is_not_used(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(UserlandError, match="could replace it"):
        make_folder(tmp_path, "thing", lambda draft: (draft / "whole").touch())
    assert list(tmp_path.iterdir()) == []
