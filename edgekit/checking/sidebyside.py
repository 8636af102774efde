"""An engine of an exact version beside this environment: a virtual environment with it and NumPy, and nothing else.

    python = environment("tflite-runtime", "2.14.0")         # ~/.cache/edgekit/runtimes/tflite-runtime-2.14.0-cp311/bin/python

Rules: it is made once and kept in the state folder; a folder that is only half made is never taken for one, and two that
make the same one do not disturb each other; uv is used where it is there, pip where it is not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit_runtime.board import state_dir
from edgekit_runtime.engines import available
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.errors import EdgekitError

__all__ = ["NoEnvironmentError", "environment"]

_TIMEOUT_S = 300.0
_READY = "ready"
_MOST = 400
_FULL = re.compile(r"no space left|disk quota|os error (?:28|122)\b|errno (?:28|122)\b", re.IGNORECASE)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class NoEnvironmentError(EdgekitError):
    """No environment with that engine can be made here: no wheel for this Python and machine, or no network."""

    code = "replay-unavailable"


def environment(engine: str, version: str, folder: Path | None = None, run: Run = subprocess.run) -> Path:
    """The Python that has it: this one where it has that very version. Raises NoEnvironmentError."""
    if available().get(engine) == version:
        return Path(sys.executable)
    folder = (folder or state_dir()) / "runtimes"
    place = folder / f"{engine}-{version}-cp{sys.version_info[0]}{sys.version_info[1]}"
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (place / _READY).is_file() and python.exists():
        return python
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=folder))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        _made(draft, engine, version, run)
        (draft / _READY).touch()
        if place.exists():
            shutil.rmtree(place, ignore_errors=True)
        draft.replace(place)  # scripts in it name the draft, and nothing here runs them: `python` alone is used
    except OSError as error:
        if not (place / _READY).is_file():  # another made it meanwhile
            raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return python


def _unwritable(folder: Path, error: OSError) -> NoEnvironmentError:
    what = f"{folder} cannot be written: {error.strerror or error}"
    return NoEnvironmentError(what, do="Make room there, or name another folder with EDGEKIT_STATE_DIR")


def _made(place: Path, engine: str, version: str, run: Run) -> None:
    wanted = [f"{ENGINES[engine].distribution}=={version}", ENGINES[engine].numpy_for(version)]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is not None:
        commands = [
            [uv, "venv", "--quiet", "--python", sys.executable, "--allow-existing", str(place)],
            [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", str(_python(place)), *wanted],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(place)],
            [str(_python(place)), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *wanted],
        ]
    for command in commands:
        _carried_out(command, f"{ENGINES[engine].distribution} {version}", run)


def _carried_out(command: Sequence[str], what: str, run: Run) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = run(list(command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=clean)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoEnvironmentError(f"{what} could not be installed beside this environment: {error}") from error
    if done.returncode != 0:
        reason = _reason(done.stderr) or f"exit code {done.returncode}"
        do = (
            "Make room on that disk, or name another folder with EDGEKIT_STATE_DIR" if _FULL.search(done.stderr) else ""
        )
        raise NoEnvironmentError(f"{what} could not be installed beside this environment: {reason}", do=do)


def _reason(said: str) -> str:
    """Of what an installer says: not its warnings; and where it says much, how it begins and how it ends, which is the cause."""
    lines = [line.strip(" ×╰─▶│") for line in said.splitlines() if line.strip()]
    told = " ".join([line for line in lines if not line.upper().startswith("WARNING")] or lines)
    return told if len(told) <= _MOST else f"{told[: _MOST // 2]} ... {told[-_MOST // 2 :]}"


def _python(place: Path) -> Path:
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
