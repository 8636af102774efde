"""Run `edgekit` as a person does, and look at what comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """Exactly one JSON object on stdout, or the test fails."""
        lines = self.out.strip().splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


@pytest.fixture
def edgekit(tmp_path):
    def call(*arguments: str | Path, cwd: Path = tmp_path, env=None) -> Ran:
        command = [sys.executable, "-c", "from edgekit.cli import main; main()", *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return call
