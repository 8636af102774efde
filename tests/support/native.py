"""Shared libraries that tests compile themselves, with the system's C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from parts import missing


def compiled(source: Path, library: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        missing("a C compiler", "apt-get install gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library
