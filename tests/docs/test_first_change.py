"""docs/first-change.md is followed: its board is known, and its engine passes the contract suite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit_profiles.catalogue import open_catalogue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-change.md").read_text(encoding="utf-8")


def block(language: str, holding: str) -> str:
    texts = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (str(text) for text in texts if holding in text)
    return found


def test_its_board_installs_the_usual_engines(tmp_path: Path) -> None:
    path = tmp_path / "orange-pi-zero-2w.toml"
    path.write_text(block("toml", "[core]"))
    profile = open_catalogue().load(str(path))
    assert (profile.name, profile.core.type) == ("orange-pi-zero-2w", "cortex-a53")


@pytest.mark.slow
def test_its_engine_passes_the_contract_suite(tmp_path: Path) -> None:
    """In a copy of the runtime, with the page's file and row put where the page says."""
    pytest.importorskip("onnx")
    package = tmp_path / "runtime" / "edgekit_runtime"
    shutil.copytree(ROOT / "runtime" / "edgekit_runtime", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "engines" / "onnx_reference.py").write_text(block("python", "class ReferenceEngine"))
    registry = package / "engines" / "registry.py"
    before, end, after = registry.read_text().partition("\n}  # fmt: skip")
    assert end
    registry.write_text(f"{before}\n{block('text', 'EngineKind').rstrip()}{end}{after}")
    paths = [tmp_path / "runtime", *(ROOT / one for one in ("converters", "device_profiles", ".", "tests/support"))]
    path = os.pathsep.join(map(str, paths))
    suite = [str(ROOT / "tests" / "contracts" / "test_engines.py"), "-k", "onnx-reference", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", f"pythonpath={' '.join(map(str, paths))}", *suite],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 60
