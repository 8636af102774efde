"""Starting a Python of our own beside the application: for what may crash, hang or take memory with it.

    done = subprocess.run(python_module("edgekit_runtime.tuning.trial"), env=environment(), ...)

Rules:
- a fresh interpreter, never a fork: the application may have threads;
- the child finds packages where this process does, and nothing in the folder the application happens to stand in;
- where no child can be started (a frozen application, user-mode emulation) the caller does without.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

__all__ = ["environment", "may_start", "python_module", "run"]


def may_start() -> bool:
    """False where EDGEKIT_SELFTEST=in-process says so, and where `sys.executable` is no Python."""
    if os.environ.get("EDGEKIT_SELFTEST") == "in-process":
        return False
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours. -P: nothing is imported from the current folder."""
    return [sys.executable, "-P", "-m", name, *arguments]


def environment() -> dict[str, str]:
    """This process's own, with its import path: an application may have changed `sys.path` since it started."""
    paths = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run`, imported when a child is needed: most openings need none."""
    import subprocess

    return subprocess.run(command, check=False, **options)
