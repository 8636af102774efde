"""What JetPack 6 has: a board's commands run on Python 3.10, and those of a workstation say what they need.

`make test-all` runs the runtime's suites on 3.10, 3.12 and 3.13.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
from distribution.conftest import ROOT, run
from parts import missing

BOARD = ("runtime", "device_profiles", "edgekit")


@pytest.mark.parametrize("folder", BOARD)
def test_what_a_board_imports_is_spelt_in_the_syntax_of_python_3_10(folder: str):
    for path in sorted((ROOT / folder).rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))


@pytest.mark.network
def test_the_commands_of_a_board_work_on_python_3_10_and_those_of_a_workstation_say_what_they_need(wheel, uv, tmp_path):
    edgekit = environment("3.10", [f"{wheel}[litert]"], uv, tmp_path).with_name("edgekit")
    bundle, root = tiny.bundle(tmp_path), tmp_path / "root"
    assert "no problems found" in run([edgekit, "doctor"], cwd=tmp_path).stdout
    assert "tiny version 1" in run([edgekit, "inspect", bundle], cwd=tmp_path).stdout
    run([edgekit, "verify", bundle, "--replay", "--allow-unsigned"], cwd=tmp_path)
    run([edgekit, "install", bundle, "--root", root, "--allow-unsigned"], cwd=tmp_path)
    assert "tiny version 1" in run([edgekit, "status", "--root", root], cwd=tmp_path).stdout
    assert json.loads(run([edgekit, "bench", bundle, "-n", "20", "--json"], cwd=tmp_path).stdout)["n"] == 20
    assert "jetson-orin-nano" in run([edgekit, "profiles", "list"], cwd=tmp_path).stdout
    refused = subprocess.run([edgekit, "build", "net.onnx", "--json"], cwd=tmp_path, capture_output=True, text=True)
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["code"]) == (1, "python-version")
    assert error["what"] == "`edgekit build` needs Python 3.11, and this is Python 3.10"


def environment(version: str, packages: Sequence[str], uv: Path, folder: Path) -> Path:
    """The interpreter of a new environment of that Python."""
    found = other_python(version)
    if found is None:
        missing(f"Python {version}", f"pyenv install {version}")
    run([uv, "venv", "--python", found, folder / "venv"])
    interpreter = folder / "venv" / "bin" / "python"
    run([uv, "pip", "install", "--python", interpreter, *packages])
    return interpreter


def other_python(version: str) -> str | None:
    """An interpreter of that version: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return str(candidate)
    return None
