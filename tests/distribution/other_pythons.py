"""The runtime's suite on a further Python, out of the built wheel.

One test file for each Python: the files may then run in different processes at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from distribution.conftest import ROOT, run
from parts import missing

LIMIT_S = 1500
"""On a busy machine; a test in it that hangs has a limit of its own."""
SUITES = ("tests/contracts", "tests/runtime", "tests/packaging")
TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.100", "rfc8785>=0.1.4", "prometheus-client>=0.20")


def passes_on(version: str, wheel: Path, uv: Path, folder: Path, suites: Sequence[str] = SUITES) -> None:
    interpreter = environment(version, [f"{wheel}[litert,onnx,image,telemetry]", *TOOLS], uv, folder)
    env = {**os.environ, "EDGEKIT_TEST_EXAMPLES": "0.2"}  # all of them are tried on this Python
    done = run([interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites], LIMIT_S, cwd=ROOT, env=env)
    assert " passed" in done.stdout


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
