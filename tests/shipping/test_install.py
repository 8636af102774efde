"""The installer of a package for this very machine, run for real: real wheels, a real environment, a real self-test."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rooted
import tiny
from shipping.conftest import REAL_ENGINE
from shipping.test_package import files

from edgekit.packaging.assemble import assemble
from edgekit.packaging.bundle_options import BundleTerms
from edgekit.packaging.writer import SigningKey, write_bundle
from edgekit.shipping.package import PackageRequest, PackageResult, pack
from edgekit_profiles import Profile

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A folder on the board, and what somebody else keeps beside it."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "somebody.txt").write_text("else")
    return folder


@pytest.fixture(scope="module")
def installed(real_package, board):
    """Over what an installation has left that was interrupted, and one that took an empty environment for whole."""
    conf = dict(line.split("=", 1) for line in (real_package.path / "package.conf").read_text().splitlines())
    left = board / "opt" / "tiny" / f"env-{conf['ENV']}" / "lib"
    left.mkdir(parents=True)
    (left / "half.py").write_text("half of a mod")
    (left.parent / "complete").touch()
    (left.parents[1] / "made-folders").write_text(f"{left.parents[1]}\n{left.parents[2]}\n")
    done = run(real_package.path, board)
    assert not (left / "half.py").exists()
    assert done.returncode == 0, done.stderr
    return board / "opt" / "tiny"


def run(package: Path, board: Path, *arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
    """As on a board: hostile settings of pip's, the user's and the system's; no network, units in the test's folder."""
    system = board / "etc" / "xdg" / "pip"
    system.mkdir(parents=True, exist_ok=True)
    (system / "pip.conf").write_text("[global]\nuser = true\nno-binary = :all:\nconstraint = /nowhere/versions.txt\n")
    environment = os.environ | {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_USER": "1"}
    environment |= {"XDG_CONFIG_DIRS": str(system.parent), "PYTHONUSERBASE": str(board / "user")}
    environment |= {"EDGEKIT_UNITS": str(board / "units"), **changes}
    command = ["sh", str(package / "install.sh"), "--prefix", str(board / "opt" / "tiny"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_it_answers_from_there(installed):
    script = (
        "import numpy as np\nfrom edgekit_runtime import open_bundle\n"
        f"with open_bundle({str(installed / 'model')!r}) as model:\n"
        "    print(model.predict(np.full((8, 8, 3), (230, 20, 20), np.uint8)).top(1)[0].label)\n"
    )
    python = installed / "env" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "red", done.stderr


def test_what_is_installed_is_what_was_packed(installed, real_package):
    python = installed / "env" / "bin" / "python"
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    found = {
        name.lower().replace("_", "-").replace(".", "-"): version for name, version in json.loads(done.stdout).items()
    }
    assert found == {wheel.name: wheel.version for wheel in real_package.wheels if wheel.name != "pip"}


def test_the_unit_runs_what_was_asked_for(installed, board):
    text = (board / "units" / "edgekit-tiny.service").read_text()
    assert f"ExecStart={installed}/env/bin/python -m http.server --directory {installed}\n" in text
    assert "@" not in text.replace("SystemCallFilter=@system-service", "")


def test_again_changes_nothing(installed, real_package, board):
    before = _kept(installed)
    done = run(real_package.path, board)
    assert done.returncode == 0
    assert "the environment is there already" in done.stdout
    assert "is already active" in done.stdout
    assert _kept(installed) == before


def test_a_bundle_that_does_not_answer_as_it_did_is_not_installed(installed, real_package, this_board, board, tmp_path):
    """The answers of its two golden examples are exchanged."""
    done = run(_package(_forged(tmp_path), this_board, tmp_path, real_package).path, board)
    assert done.returncode == 1
    assert "the bundle was not installed; what was active before stays active" in done.stderr
    assert status(installed)["current"]["number"] == 1


def test_an_unsigned_bundle_is_refused_as_edgekit_install_refuses_it(real_package, this_board, board, tmp_path):
    unsigned = _package(tiny.bundle(tmp_path, version="2"), this_board, tmp_path, real_package, allow_unsigned=False)
    fresh = tmp_path / "fresh"
    done = run(unsigned.path, fresh)
    assert (done.returncode, (fresh / "opt/tiny/model/current").exists()) == (1, False)
    assert "no trusted key" in done.stderr or "whom to trust" in done.stderr
    assert run(unsigned.path, fresh, "--allow-unsigned", "--no-service").returncode == 0


@pytest.mark.parametrize("brings", ["a public key", "a root.json"])
def test_a_package_brings_its_key_and_an_older_number_is_refused(real_package, this_board, tmp_path, brings):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    public = tmp_path / ("bea.pub.pem" if brings == "a public key" else "mine.json")
    public.write_bytes(
        rooted.public_pem("bea") if brings == "a public key" else rooted.document(rooted.signed_part(), "ann")
    )
    key = SigningKey(rooted.private("bea"))
    given = {"wheel_of": real_package, "allow_unsigned": False, "trust": (public,)}
    new = tiny.bundle(tmp_path / "new", key=key, version="2", terms=BundleTerms(rollout_seq=2))
    old = tiny.bundle(tmp_path / "old", key=key, version="1", terms=BundleTerms(rollout_seq=1))
    fresh, home = tmp_path / "fresh", tmp_path / "fresh/opt/tiny"
    done = run(_package(new, this_board, tmp_path / "new", **given).path, fresh, "--no-service")
    assert done.returncode == 0, done.stderr
    refused = run(_package(old, this_board, tmp_path / "old", **given).path, fresh, "--no-service")
    assert refused.returncode == 1
    assert "2" in refused.stderr
    assert status(home)["current"]["version"] == "2"


def test_status_and_rollback_hold_after_a_package(installed, real_package, this_board, board, tmp_path):
    newer = _package(tiny.bundle(tmp_path, version="2"), this_board, tmp_path, real_package)
    done = run(newer.path, board)
    assert done.returncode == 0, done.stderr
    assert status(installed)["current"]["version"] == "2"
    back = [installed / "env/bin/edgekit", "rollback", "--root", installed / "model"]
    assert subprocess.run(back, capture_output=True, timeout=60).returncode == 0
    assert status(installed)["current"]["version"] == "1"


def test_removing_it_leaves_what_others_put_there_and_nothing_else(installed, board):
    (installed / "notes.txt").write_text("mine")
    done = subprocess.run(["sh", installed / "uninstall.sh"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"{installed}/notes.txt" in done.stdout
    assert not (board / "units").exists()
    assert set(files(board)) == {"somebody.txt", "etc/xdg/pip/pip.conf", "opt/tiny/notes.txt"}


def status(home: Path) -> dict[str, Any]:
    command = [home / "env/bin/edgekit", "status", "--root", home / "model", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


def _kept(home: Path) -> dict[str, str]:
    passing = ("state/", "model/events.jsonl", "model/journal.json")
    return {name: digest for name, digest in files(home).items() if not name.startswith(passing)}


def _package(
    bundle: Path, board: Profile, folder: Path, wheel_of: PackageResult, *, allow_unsigned: bool = True, **more: Any
) -> PackageResult:
    request = PackageRequest(bundle, board, folder / "usb", engine=REAL_ENGINE, wheel=ours(wheel_of), **more)
    return pack(replace(request, allow_unsigned=allow_unsigned))


def ours(package: PackageResult) -> Path:
    """edgekit's wheel of an earlier package: nothing is built again."""
    return next(package.path / "wheels" / wheel.file for wheel in package.wheels if wheel.name == "edgekit-deploy")


def _forged(folder: Path) -> Path:
    draft, manifest = assemble(tiny.content())
    first, second = manifest.golden
    swapped = (replace(first, answers=second.answers), replace(second, answers=first.answers))
    path = folder / "forged.ekb"
    write_bundle(path, draft, replace(manifest, golden=swapped), [])
    return path
