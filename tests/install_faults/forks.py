"""The harness's side of `forking`: jobs for its children, some of them under strace, which kills them or lies to them.

with Forks(folder) as forks:
    ended = forks.run([["cli", "install", ...]], faults=["fsync:signal=KILL:when=3"])
    ended.code, ended.notes, ended.trace
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import missing

CHANGING = (
    "openat", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "rename", "renameat", "renameat2", "unlink",
    "unlinkat", "rmdir", "mkdir", "mkdirat", "symlink", "symlinkat", "link", "linkat", "chmod", "fchmod", "fchmodat",
)  # fmt: skip
"""The system calls by which an install changes a disk, and opening, which a disk may refuse."""
READING = (
    "read",
    "pread64",
    "stat",
    "lstat",
    "newfstatat",
    "fstat",
    "readlink",
    "readlinkat",
    "getdents64",
    "statfs",
    "flock",
)
"""And by which it only looks."""


def need_strace() -> str:
    """Its path, where it may trace a process of ours."""
    found = shutil.which("strace")
    if found is None or subprocess.run([found, "-o", os.devnull, "true"], capture_output=True).returncode:
        missing("strace (or leave to trace)", "sudo apt-get install strace")
    return found


@dataclass(frozen=True)
class Ended:
    """code: the exit status, negative for a signal. notes: what came of each step. trace: what strace wrote.

    chain: the journals that were written, a word each.
    """

    code: int
    notes: list[dict[str, Any]]
    trace: str
    chain: list[str]

    @property
    def note(self) -> dict[str, Any]:
        return self.notes[-1]


class Forks:
    """folder: for traces and notes, and the state that engines are remembered in."""

    def __init__(self, folder: Path, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        given = {"EDGEKIT_STATE_DIR": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache"), **env}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "EDGEKIT_SELFTEST": "in-process", "PYTHONDONTWRITEBYTECODE": "1", **given},
            text=True,
        )
        assert self._read() == "ready"

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(
        self,
        steps: list[list[Any]],
        faults: list[str] | None = None,
        calls: Sequence[str] = CHANGING,
        *,
        paths: Iterable[Path] = (),
        die: str | None = None,
        **env: str,
    ) -> Ended:
        """faults: what strace injects, as its `-e inject=`; None to run without it, empty only to trace. calls: it
        traces,
        of these paths alone where any are named. die: the state in which the child ends, at once."""
        notes, trace, chain = (self._folder / name for name in ("notes", "trace", "chain"))
        for file in (notes, trace, chain):
            file.unlink(missing_ok=True)
        job = {"steps": steps, "notes": str(notes), "env": env, "stop": faults is not None}
        self._write({**job, "witness": str(chain), "die": die})
        if faults is not None:
            self._traced(trace, faults, calls, paths)
        code = self._read()
        told = [json.loads(line) for line in _text(notes).splitlines()]
        return Ended(code, told, _text(trace), _text(chain).splitlines())

    def _traced(self, trace: Path, faults: list[str], names: Sequence[str], paths: Iterable[Path]) -> None:
        pid = self._read()
        calls = ",".join(f"?{name}" for name in names)
        where = [argument for path in paths for argument in ("-P", str(path))]
        injected = [argument for fault in faults for argument in ("-e", f"inject={fault}")]
        command = [
            "strace",
            "-y",
            "-xx",
            "-s",
            "1000000",
            "-o",
            str(trace),
            "-e",
            f"trace={calls}",
            *where,
            *injected,
            "-p",
            str(pid),
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            said = ""
            while "attached" not in said and (line := strace.stderr.readline()):  # it tells where links lead first
                said += line
            os.kill(pid, signal.SIGCONT)
            assert "attached" in said, said
            strace.communicate(timeout=60)

    def _write(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
