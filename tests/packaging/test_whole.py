"""Files that are there whole or not at all, and what is never replaced by one."""

from __future__ import annotations

import os

import pytest

from edgekit.packaging.output_errors import OutputError
from edgekit.packaging.writer import write_whole


def test_a_file_is_made_with_its_folders_and_replaced_whole(tmp_path):
    path = tmp_path / "new" / "report.json"
    for data in (b"one", b"two"):
        write_whole(path, data, "the report")
        assert path.read_bytes() == data
    assert [one.name for one in path.parent.iterdir()] == ["report.json"]


def a_device(path):
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except (PermissionError, AttributeError):
        pytest.skip("only root makes devices")


NO_FILES = {
    "a folder": (lambda path: path.mkdir(), "a folder has that name"),
    "a pipe": (lambda path: os.mkfifo(path), "a device or a pipe has that name"),
    "a device": (a_device, "a device or a pipe has that name"),
    "a link to a device": (lambda path: path.symlink_to(os.devnull), "a device or a pipe has that name"),
    "a link to a folder": (lambda path: path.symlink_to("/"), "a folder has that name"),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes, devices and links as POSIX has them")
@pytest.mark.parametrize(("make", "words"), NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_ordinary_file_stays(tmp_path, make, words):
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    with pytest.raises(OutputError, match=words):
        write_whole(path, b"data", "the bundle")
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"
