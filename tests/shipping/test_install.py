"""The installer of a package for this very machine, run for real: real wheels, a real environment, a real self-test."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from shipping.conftest import REAL_ENGINE
from shipping.test_package import files

from edgekit.packaging import assemble, write_bundle
from edgekit.shipping import PackageRequest, Packed, pack

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A folder on the board, and what somebody else keeps beside it."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "somebody.txt").write_text("else")
    return folder


@pytest.fixture(scope="module")
def installed(real_package, board):
    """Over what an installation that was interrupted has left."""
    conf = dict(line.split("=", 1) for line in (real_package.path / "package.conf").read_text().splitlines())
    left = board / "opt" / "tiny" / f"env-{conf['ENV']}" / "lib"
    left.mkdir(parents=True)
    (left / "half.py").write_text("half of a mod")
    (left.parents[1] / "made-folders").write_text(f"{left.parents[1]}\n{left.parents[2]}\n")
    done = run(real_package.path, board)
    assert not (left / "half.py").exists()
    assert done.returncode == 0, done.stderr
    return board / "opt" / "tiny"


def run(package: Path, board: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """As on a board: hostile settings of pip's, no network, units in a folder of the test's."""
    environment = os.environ | {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_USER": "1"}
    environment |= {"EDGEKIT_UNITS": str(board / "units"), **changes}
    command = ["sh", str(package / "install.sh"), "--prefix", str(board / "opt" / "tiny")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_it_answers_from_there(installed):
    script = (
        "import numpy as np\nfrom edgekit_runtime import open_bundle\n"
        f"with open_bundle({str(installed / 'current' / 'bundle.ekb')!r}) as model:\n"
        "    print(model.predict(np.full((8, 8, 3), (230, 20, 20), np.uint8)).top(1)[0].label)\n"
    )
    python = installed / "current" / "env" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "red", done.stderr


def test_what_is_installed_is_what_was_packed(installed, real_package):
    python = installed / "current" / "env" / "bin" / "python"
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    found = {
        name.lower().replace("_", "-").replace(".", "-"): version for name, version in json.loads(done.stdout).items()
    }
    assert found == {wheel.name: wheel.version for wheel in real_package.wheels if wheel.name != "pip"}


def test_the_unit_runs_what_was_asked_for(installed, board):
    text = (board / "units" / "edgekit-tiny.service").read_text()
    assert f"ExecStart={installed}/current/env/bin/python -m http.server --directory {installed}\n" in text
    assert "@" not in text.replace("@@", "")


def test_again_changes_nothing(installed, real_package, board):
    before = {name: digest for name, digest in files(installed).items() if not name.startswith("state/")}
    done = run(real_package.path, board)
    assert done.returncode == 0
    assert "the environment is there already" in done.stdout
    assert {name: digest for name, digest in files(installed).items() if not name.startswith("state/")} == before


def test_a_bundle_that_does_not_answer_as_it_did_is_not_switched_to(
    installed, real_package, this_board, board, tmp_path
):
    """The answers of its two golden examples are exchanged."""
    used = str((installed / "current").readlink())
    packed = pack(
        PackageRequest(_forged(tmp_path), this_board, tmp_path / "usb", REAL_ENGINE, wheel=ours(real_package))
    )
    done = run(packed.path, board)
    assert done.returncode == 1
    assert "the self-test failed, so nothing was switched" in done.stderr
    assert str((installed / "current").readlink()) == used
    assert run(real_package.path, board).returncode == 0


def test_a_new_bundle_is_switched_to_and_the_one_before_is_kept(installed, real_package, this_board, board, tmp_path):
    used = str((installed / "current").readlink())
    newer = pack(
        PackageRequest(
            tiny.bundle(tmp_path, version="2"), this_board, tmp_path / "usb", REAL_ENGINE, wheel=ours(real_package)
        )
    )
    done = run(newer.path, board)
    assert done.returncode == 0, done.stderr
    assert str((installed / "current").readlink()) == f"releases/{newer.release}" != used
    assert str((installed / "previous").readlink()) == used
    assert (installed / "previous" / "bundle.ekb").is_file()
    third = pack(
        PackageRequest(
            tiny.bundle(tmp_path, version="3"), this_board, tmp_path / "usb", REAL_ENGINE, wheel=ours(real_package)
        )
    )
    assert run(third.path, board).returncode == 0
    assert len(list((installed / "bundles").iterdir())) == 2
    assert not (installed / used).exists()


def test_removing_it_leaves_what_others_put_there_and_nothing_else(installed, board):
    (installed / "notes.txt").write_text("mine")
    done = subprocess.run(["sh", installed / "uninstall.sh"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"{installed}/notes.txt" in done.stdout
    assert not (board / "units").exists()
    assert files(board) == {
        "somebody.txt": files(board)["somebody.txt"],
        "opt/tiny/notes.txt": files(board)["opt/tiny/notes.txt"],
    }


def ours(package: Packed) -> Path:
    """edgekit's wheel of an earlier package: nothing is built again."""
    return next(package.path / "wheels" / wheel.file for wheel in package.wheels if wheel.name == "edgekit-deploy")


def _forged(folder: Path) -> Path:
    draft, manifest = assemble(tiny.content())
    first, second = manifest.golden
    swapped = (replace(first, answers=second.answers), replace(second, answers=first.answers))
    path = folder / "forged.ekb"
    write_bundle(path, draft, replace(manifest, golden=swapped), [])
    return path
