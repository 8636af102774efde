"""Both ways to write a file whole, and the lock: what a reader sees, what an error leaves, who comes in."""

from __future__ import annotations

import errno
import os

import pytest

from edgekit_runtime.system.files import take, write_cache, write_durably

WAYS = {"durably": write_durably, "as a cache": lambda path, data: write_cache(path, [data[:2], data[2:]])}


@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)
def test_a_file_is_made_with_its_folders_and_replaced_whole(write, tmp_path):
    path = tmp_path / "new" / "verdict.json"
    for data in (b"first", b"second"):
        write(path, data)
        assert path.read_bytes() == data
    assert [one.name for one in path.parent.iterdir()] == ["verdict.json"]


@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)
def test_an_error_leaves_the_old_file_and_nothing_beside_it(write, tmp_path, monkeypatch):
    path = tmp_path / "kept"
    write(path, b"before")

    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="full"):
        write(path, b"after")
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


def test_what_is_durable_is_flushed_before_its_name_and_its_folder_after(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *names, **more: (calls.append("replace"), replace(*names, **more)))
    write_durably(tmp_path / "net.ekb", b"data")
    assert calls == ["fsync", "replace", "fsync"]


def test_one_has_the_lock_at_a_time_and_readers_share_it(tmp_path):
    one, other = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert take(one, shared=True) is True
        assert take(other, shared=True) is True
        assert take(other) is False
        os.close(one)
        assert take(other) is True
    finally:
        os.close(other)


def test_a_file_system_without_locks_is_told_apart(tmp_path, monkeypatch):
    def none(*arguments):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with (tmp_path / "lock").open("w") as file:
        assert take(file.fileno(), wait=True) is None
