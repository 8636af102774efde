"""The wheel, built once, and environments made from it as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from once import once
from parts import missing

ROOT = Path(__file__).parents[2]


def run(command: Sequence[str | Path], timeout: float = 500, **options) -> subprocess.CompletedProcess[str]:
    """Run and return; a failure shows what the command printed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def wheel(request) -> Path:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", ROOT, "--outdir"]
    (path,) = once(request, "wheel", lambda folder: run([*build, folder])).glob("*.whl")
    return path


@pytest.fixture(scope="session")
def uv() -> Path:
    path = Path(sys.executable).with_name("uv")
    if not path.exists():
        missing("uv", "pip install uv")
    return path
