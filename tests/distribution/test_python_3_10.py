"""What boards run is tested on Python 3.10, which JetPack 6 has: the runtime's suite, and the commands of a board."""

from __future__ import annotations

import ast
import json
import subprocess

import pytest
import tiny
from distribution.conftest import ROOT, run
from distribution.other_pythons import LIMIT_S, environment, passes_on

BOARD = ("runtime", "device_profiles", "edgekit")
SUITES = (
    "tests/contracts",
    *(f"tests/runtime/{room}" for room in ("bundle", "cache", "engines", "remote", "telemetry", "trust", "tuning")),
    *(f"tests/runtime/test_{what}.py" for what in ("children", "import_cost", "model", "readiness", "selftest")),
    "tests/runtime/install/test_installing.py",
    "tests/packaging",
)
"""What touches the interpreter and its library: files, children, dates, SQLite, sockets. 3.12 and 3.13 run all of it."""


@pytest.mark.parametrize("folder", BOARD)
def test_what_a_board_imports_is_spelt_in_the_syntax_of_python_3_10(folder: str):
    for path in sorted((ROOT / folder).rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))


@pytest.mark.network
@pytest.mark.timeout(LIMIT_S + 300)
def test_the_runtime_passes_on_python_3_10(wheel, uv, tmp_path):
    passes_on("3.10", wheel, uv, tmp_path, SUITES)


@pytest.mark.network
def test_the_commands_of_a_board_work_on_python_3_10_and_those_of_a_workstation_say_what_they_need(wheel, uv, tmp_path):
    edgekit = environment("3.10", [f"{wheel}[litert]"], uv, tmp_path).with_name("edgekit")
    bundle, root = tiny.bundle(tmp_path), tmp_path / "root"
    assert "nothing is wrong here" in run([edgekit, "doctor"], cwd=tmp_path).stdout
    assert "tiny version 1" in run([edgekit, "inspect", bundle], cwd=tmp_path).stdout
    run([edgekit, "selftest", bundle], cwd=tmp_path)
    run([edgekit, "install", bundle, "--root", root, "--allow-unsigned"], cwd=tmp_path)
    assert "tiny version 1" in run([edgekit, "status", "--root", root], cwd=tmp_path).stdout
    assert json.loads(run([edgekit, "bench", bundle, "-n", "20", "--json"], cwd=tmp_path).stdout)["n"] == 20
    assert "jetson-orin-nano" in run([edgekit, "profiles", "list"], cwd=tmp_path).stdout
    refused = subprocess.run([edgekit, "build", "net.onnx", "--json"], cwd=tmp_path, capture_output=True, text=True)
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["code"]) == (1, "python-version")
    assert error["what"] == "`edgekit build` needs Python 3.11, and this is Python 3.10"
