"""Where verdicts are kept, also of a user who has no home."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tiny
from parts import leave_out, missing

from edgekit_runtime import open_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.system import board
from edgekit_runtime.system.children import environment
from edgekit_runtime.system.files import write_cache


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    for name in ("EDGEKIT_STATE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(board.Path, "home", none)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_without_a_home_it_is_a_folder_of_the_users_own_among_the_temporary_ones(no_home):
    folder = board.state_dir()
    assert folder == no_home / f"edgekit-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert board.state_dir() == folder
    assert str(folder) in board.homeless()


@pytest.mark.parametrize("planted", ["open", "link", "file"])
def test_what_others_could_write_to_is_not_believed(no_home, planted):
    folder = no_home / f"edgekit-{os.getuid()}"
    if planted == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif planted == "link":
        (no_home / "elsewhere").mkdir()
        folder.symlink_to(no_home / "elsewhere")
    else:
        folder.write_text("")
    with pytest.raises(OSError):
        write_cache(board.state_dir() / "tuning" / "verdict.json", [b"{}"])
    assert "nowhere" in board.homeless()


def test_a_home_or_a_folder_that_was_named_is_nothing_to_tell(monkeypatch, tmp_path):
    assert board.homeless() == ""
    monkeypatch.setenv("EDGEKIT_STATE_DIR", str(tmp_path))
    assert (board.homeless(), board.state_dir()) == ("", tmp_path)


def test_a_bundle_opens_and_says_so(no_home, monkeypatch):
    monkeypatch.setenv("EDGEKIT_TUNE", "off")
    with open_bundle(tiny.bundle_for(min(available()), no_home)) as model:
        assert any("this user has no home" in note for note in model.describe()["notes"])


def test_a_process_of_a_user_that_the_system_does_not_know(tmp_path):
    """In a user namespace, where the system lets us make one."""
    wanted = ("EDGEKIT_STATE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME")
    kept = {name: value for name, value in environment().items() if name not in wanted}
    command = [sys.executable, "-c", "from edgekit_runtime.system.board import state_dir; print(state_dir())"]
    try:
        done = subprocess.run(
            ["unshare", "-U", "--map-user=12345", "--map-group=12345", *command],
            env={**kept, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        missing("unshare", "sudo apt-get install util-linux")
    if "unshare" in done.stderr:
        leave_out(f"the system makes no user namespace: {done.stderr.strip()}")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "edgekit-12345")), done.stderr
