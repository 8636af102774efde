"""A file decides about trust only where no other user could replace it."""

from __future__ import annotations

import os

import pytest

from edgekit_runtime.system.files import first_unsafe

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
OTHER = 12_345


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one" / "two" / "root.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    for one in (path, path.parent, path.parent.parent):
        one.chmod(0o755)
    return path


def test_ones_own_file_in_folders_of_ones_own_is_safe_also_below_a_sticky_folder(file):
    """S11"""
    assert first_unsafe(file) is None
    file.parent.parent.chmod(0o1777)
    assert first_unsafe(file) is None


OPEN = {"group": 0o020, "others": 0o002}


@pytest.mark.parametrize("bit", OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["the file", "its folder", "the folder above"])
def test_what_others_may_write_is_unsafe_wherever_it_lies_above(file, place, bit, monkeypatch):
    """S11"""
    monkeypatch.setattr("edgekit_runtime.system.files._is_private_group", lambda gid, uid: False)
    one = (file, file.parent, file.parent.parent)[place]
    one.chmod(0o755 | bit)
    found = first_unsafe(file)
    assert found.where == one
    assert found.do == f"Run: chmod go-w {one}"
    assert f"{0o755 | bit:04o}" in found.what


def test_a_group_of_one_user_alone_is_that_user(file):
    import grp
    import pwd

    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    file.chmod(0o664)
    alone = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    assert (first_unsafe(file) is None) == alone


def test_what_another_user_owns_is_unsafe(file):
    """S11: this process's user is another one to whoever relies on the file."""
    if os.geteuid() != 0:
        found = first_unsafe(file, uid=OTHER)
        assert found.where == file
        assert "belongs to another user" in found.what
        return
    for one in (file, file.parent, file.parent.parent):
        os.chown(one, OTHER, 0)
        found = first_unsafe(file)
        assert found.where == one
        assert found.do.startswith(f"Run: chown root {one}")
        assert first_unsafe(file, uid=OTHER) is None
        os.chown(one, 0, 0)


def test_a_link_is_judged_where_it_lies_and_where_it_leads(file, tmp_path):
    """S11"""
    link = tmp_path / "links" / "root.json"
    link.parent.mkdir(mode=0o755)
    link.symlink_to(file)
    assert first_unsafe(link) is None
    link.parent.chmod(0o777)
    assert first_unsafe(link).where == link.parent
    link.parent.chmod(0o755)
    file.parent.chmod(0o777)
    assert first_unsafe(link).where == file.parent


def test_what_is_not_there_is_left_to_its_reader(tmp_path):
    assert first_unsafe(tmp_path / "absent" / "root.json") is None
