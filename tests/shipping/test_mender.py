"""The Mender Update Module: state by state as its protocol has them; by Debian's own client where that is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from parts import missing

from edgekit.packaging.bundle_options import BundleTerms
from edgekit_runtime.install import status

MODULE = Path(__file__).parents[2] / "edgekit" / "shipping" / "board" / "mender.sh"
MODULES = Path("/usr/share/mender/modules/v3")


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A board with the module, its settings and an install root, as `install` has them."""
    monkeypatch.setenv("EDGEKIT_SELFTEST", "in-process")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "edgekit"
    program.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'from edgekit.cli import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    (tmp_path / "edgekit.env").write_text(
        f'ROOT={tmp_path}/camera\nOPTIONS="--allow-unsigned"\nTHEN="touch {tmp_path}/then"\n'
    )
    module = tmp_path / "modules" / "edgekit"
    module.parent.mkdir()
    module.write_text(MODULE.read_text().replace('"/etc/edgekit/', f'"{tmp_path}/'))
    module.chmod(0o755)
    return tmp_path


def bundle(folder: Path, number: int) -> Path:
    (folder / str(number)).mkdir()
    return tiny.bundle(folder / str(number), terms=BundleTerms(rollout_seq=number), version=str(number))


def step(board: Path, state: str, tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([board / "modules/edgekit", state, tree], capture_output=True, text=True, timeout=300)


def tree_of(board: Path, *files: Path) -> Path:
    """What the client lays out for an update."""
    tree = board / f"tree-{len(list(board.glob('tree-*')))}"
    for name in ("files", "tmp", "header"):
        (tree / name).mkdir(parents=True)
    for file in files:
        shutil.copy(file, tree / "files")
    return tree


def version(board: Path) -> str | None:
    found = status(board / "camera").current if (board / "camera").exists() else None
    return found.version if found else None


def test_an_artifact_is_installed_and_given_up(board):
    one, two = bundle(board, 1), bundle(board, 2)
    tree = tree_of(board, one)
    assert [step(board, state, tree).stdout for state in ("SupportsRollback", "NeedsArtifactReboot")] == [
        "Yes\n",
        "No\n",
    ]
    for state in ("ArtifactInstall", "ArtifactCommit", "Cleanup"):
        done = step(board, state, tree)
        assert done.returncode == 0, done.stderr
    assert version(board) == "1"
    assert (board / "then").exists()
    tree = tree_of(board, two)
    assert step(board, "ArtifactInstall", tree).returncode == 0
    assert version(board) == "2"
    for _ in range(2):  # also once more, as after a power cut
        assert step(board, "ArtifactRollback", tree).returncode == 0
        assert version(board) == "1"


def test_what_is_refused_fails_and_leaves_the_active_bundle(board):
    one, two = bundle(board, 1), bundle(board, 2)
    assert step(board, "ArtifactInstall", tree_of(board, two)).returncode == 0
    for files in ((one,), (), (one, board / "edgekit.env")):
        tree = tree_of(board, *files)
        assert step(board, "ArtifactInstall", tree).returncode == 1
        assert step(board, "ArtifactRollback", tree).returncode == 0
        assert version(board) == "2"


def test_debians_client_installs_commits_and_rolls_back(board):
    """As root, in a mount namespace of its own, in which the client finds the module on a new board."""
    if not (shutil.which("mender") and shutil.which("mender-artifact")):
        missing("Mender", "sudo apt-get install mender-client mender-artifact")
    (board / "data").mkdir()
    (board / "data/device_type").write_text("device_type=board\n")
    (board / "mender.conf").write_text("{}")
    client = ["mender", "--config", board / "mender.conf", "--data", board / "data", "--no-syslog"]
    script = [
        f"mkdir -p {board}/over && mount -t tmpfs tmpfs {board}/over",
        *(f"mkdir -p {board}/over/{name}/up {board}/over/{name}/work && mount -t overlay overlay -o "
          f"lowerdir=/{name},upperdir={board}/over/{name}/up,workdir={board}/over/{name}/work /{name}"
          for name in ("etc", "usr/share")),
        f"mkdir -p /etc/mender /usr/share/mender/modules && cp -rT {board}/modules /usr/share/mender/modules/v3",
        "echo artifact_name=new >/etc/mender/artifact_info",
    ]  # fmt: skip

    def within(*words: str | Path) -> subprocess.CompletedProcess[str]:
        lines = " && ".join([*script, f"exec {shlex.join(map(str, words))}"])
        return subprocess.run(["unshare", "-m", "sh", "-c", lines], capture_output=True, text=True, timeout=300)

    if (done := within("true")).returncode:
        pytest.skip(f"no overlay in a mount namespace: {done.stderr}")
    for number in (1, 2, 3):
        artifact = board / f"{number}.mender"
        subprocess.run(
            ["mender-artifact", "write", "module-image", "-T", "edgekit", "-n", f"net-{number}", "-t", "board",
             "-f", bundle(board, number), "-o", artifact], check=True, capture_output=True,
        )  # fmt: skip
    for number, end, left in ((1, "commit", "1"), (2, "rollback", "1"), (3, "commit", "3")):
        done = within(*client, "install", board / f"{number}.mender")
        assert (done.returncode, version(board)) == (0, str(number)), done.stderr
        done = within(*client, end)
        assert (done.returncode, version(board)) == (0, left), done.stderr
