"""The .deb: what it says of itself for any board, and dpkg installing one for this machine for real."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from parts import missing
from shipping.conftest import REAL_ENGINE
from shipping.test_install import ours
from shipping.test_package import PI_4, PI_32

from edgekit.packaging.output_errors import OutputError
from edgekit.shipping.deb import pack_deb
from edgekit.shipping.package import PackageRequest
from edgekit.shipping.plan import DebError

EMPTY = ["opt"]  # dpkg keeps it where it was there before, and may remove it where it is empty
CHROOTLESS = ("--force-script-chrootless", "--force-depends", "--force-not-root", "--log=/dev/null")


@pytest.fixture(scope="session", autouse=True)
def dpkg():
    if shutil.which("dpkg-deb") is None:
        missing("dpkg-deb", "sudo apt-get install dpkg")


@pytest.fixture
def request_(shelf, tiny_bundle, tmp_path):
    return PackageRequest(
        tiny_bundle, PI_4, tmp_path / "debs", wheel=shelf.edgekit(), service="app {bundle}", allow_unsigned=True
    )


def fields(deb: Path) -> dict[str, str]:
    told = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(line.split(": ", 1) for line in told.splitlines() if not line.startswith(" "))


def content(deb: Path) -> dict[str, str]:
    """Path -> mode and owner."""
    told = subprocess.run(
        ["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    rows = [line.split(None, 5) for line in told.splitlines()]
    return {row[5].removeprefix(".").partition(" -> ")[0]: f"{row[0]} {row[1]}" for row in rows}


def test_it_says_what_it_is_and_what_it_needs(request_):
    packed = pack_deb(request_)
    assert packed.path.name == "edgekit-tiny_1_arm64.deb"
    told = fields(packed.path)
    assert (told["Package"], told["Version"], told["Architecture"]) == ("edgekit-tiny", "1", "arm64")
    assert told["Depends"] == "python3.11, libc6 (>= 2.36), libstdc++6, libgcc-s1, passwd"


def test_what_has_no_wheel_is_a_depends(request_):
    packed = pack_deb(replace(request_, profile=PI_32))
    told = fields(packed.path)
    assert told["Architecture"] == "armhf"
    assert told["Depends"].endswith("python3-cryptography, python3-numpy, python3-pil, python3-xxhash")


def test_its_files_are_root_s_and_stand_where_they_belong(request_):
    found = content(pack_deb(request_).path)
    home = "/opt/edgekit/tiny"
    assert found["/usr/lib/systemd/system/edgekit-tiny.service"] == "-rw-r--r-- root/root"
    assert found[f"{home}/env/bin/edgekit"] == "-rwxr-xr-x root/root"
    assert found[f"{home}/package/tiny.ekb"] == "-rw-r--r-- root/root"
    assert found[f"{home}/model"] == "lrwxrwxrwx root/root"
    assert f"{home}/env/lib/python3.11/site-packages/numpy.py" in found
    assert "/usr/share/doc/edgekit-tiny/copyright" in found
    assert all(told.endswith("root/root") for told in found.values())
    assert not [name for name in found if "pip" in name]


def test_the_same_again_gives_the_same_bytes(request_, tmp_path):
    first, second = (pack_deb(replace(request_, output=tmp_path / name)).path.read_bytes() for name in ("a", "b"))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def test_a_folder_that_is_full_is_told_by_the_name_that_was_asked_for(request_, monkeypatch):
    def full(*_given, **_more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edgekit.shipping.package.write", full)
    with pytest.raises(OutputError, match="cannot be written: No space left on device") as refused:
        pack_deb(request_)
    assert refused.value.where == str(request_.output)


def test_without_dpkg_deb_it_says_what_to_install(request_, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DebError, match=r"dpkg-deb is not installed here. Run: sudo apt-get install dpkg"):
        pack_deb(request_)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """An empty system for dpkg, which runs its scripts with DPKG_ROOT."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "opt").mkdir()  # there on any system
    for name in ("info", "updates", "triggers"):
        (folder / "var/lib/dpkg" / name).mkdir(parents=True)
    for name in ("status", "available"):
        (folder / "var/lib/dpkg" / name).touch()
    return folder


def run_dpkg(root: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    command = ["dpkg", f"--root={root}", *CHROOTLESS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"PATH": path})


def everything(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if "dpkg" not in path.parts and "var" not in path.parts
    )


@pytest.mark.network
def test_dpkg_owns_the_environment_and_edgekit_install_puts_the_bundle_in(
    this_board, tiny_bundle, real_package, root, tmp_path
):
    python = Path(f"/usr/bin/python{this_board.os.python}")
    if not python.exists():
        missing(str(python), f"sudo apt-get install python{this_board.os.python}")
    asked = PackageRequest(tiny_bundle, this_board, tmp_path, engine=REAL_ENGINE, wheel=ours(real_package))
    refused = run_dpkg(root, "--install", pack_deb(asked).path)
    assert refused.returncode != 0
    assert "the bundle was not installed, so the package is not set up" in refused.stderr
    done = run_dpkg(root, "--install", pack_deb(replace(asked, allow_unsigned=True)).path)
    assert done.returncode == 0, done.stderr
    home, data = root / "opt/edgekit/tiny", root / "var/lib/edgekit/tiny"
    script = "import edgekit_runtime, sys; sys.path[:0] = []; from edgekit.cli import main; main()"
    command = [home / "env/bin/python", "-I", "-c", script, "status", "--root", home / "model", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
    assert (told["current"]["name"], told["current"]["version"]) == ("tiny", "1")
    assert run_dpkg(root, "--verify", "edgekit-tiny").stdout == ""
    removed = run_dpkg(root, "--remove", "edgekit-tiny")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert everything(root) in ([], EMPTY)
    assert (data / "model/current/bundle.ekb").is_file()
    assert run_dpkg(root, "--purge", "edgekit-tiny").returncode == 0
    assert not data.parent.exists()


def test_a_model_that_does_not_answer_is_not_set_up(request_, root, this_board, shelf):
    """Its wheels are of paper: nothing in them can answer."""
    shelf.put("ai-edge-litert", "2.3.0", "cp311-cp311-manylinux_2_28_x86_64")
    board = replace(this_board, os=replace(this_board.os, python="3.11", glibc="2.36"))
    done = run_dpkg(root, "--install", pack_deb(replace(request_, profile=board)).path)
    assert done.returncode != 0
    assert "the bundle was not installed, so the package is not set up" in done.stderr
    removed = run_dpkg(root, "--remove", "edgekit-tiny")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert everything(root) in ([], EMPTY)
