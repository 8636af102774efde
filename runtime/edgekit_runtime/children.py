"""Starting a Python of our own beside the application: for what may crash, hang or take memory with it.

    done = run(python_module("edgekit_runtime.tuning.trial"), env=environment(), ...)        # `jobs.ask` does it

Rules:
- a fresh interpreter, never a fork: the application may have threads;
- the child finds packages where this process does, and nothing in the folder the application happens to stand in;
- where no child can be started (a frozen application, user-mode emulation) the caller does without;
- a child that goes on telling something is not hung, however slow it is: what is bounded is its silence;
- a crash is the fault of what ran in the child, and so is the end of its processor time (`rlimits`); any other signal came from outside, and tells nothing about it;
- a child whose parent is gone has nobody to tell: it ends, wherever it is, and takes its own children with it (on Linux);
- a variable that holds a secret is no child's: what one must know comes over its standard input, and what was encrypted
  gets on no disk by way of a child's core.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "crashed",
    "die_with_parent",
    "environment",
    "interrupted",
    "leave_no_core",
    "may_start",
    "python_code",
    "python_module",
    "run",
    "withhold",
]

_OWN_FAULTS = ("SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSYS", "SIGTRAP", "SIGXCPU")
_LOOKS = 4
"""How often it is looked within a timeout whether the child said something."""
_PARENT = "EDGEKIT_PARENT"
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
"""What `python -P -m` does, for Python 3.10, which has no -P."""
_withheld: set[str] = {"EDGEKIT_PASSPHRASE"}


def may_start() -> bool:
    """False where EDGEKIT_SELFTEST=in-process says so, and where `sys.executable` is no Python."""
    if os.environ.get("EDGEKIT_SELFTEST") == "in-process":
        return False
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours, which imports nothing from the current folder."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name, *arguments]
    return python_code(_RUN_MODULE, name, *arguments)


def python_code(code: str, *arguments: str) -> list[str]:
    """The command that runs these lines with the arguments in `sys.argv[1:]`; they import nothing from the current folder."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-c", code, *arguments]
    return [sys.executable, "-c", f"import sys; del sys.path[0]\n{code}", *arguments]


def environment() -> dict[str, str]:
    """This process's own, with its import path: an application may have changed `sys.path` since it started.

    Without what `withhold` named, and with who starts it: see `die_with_parent`.
    """
    paths = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    own = {name: value for name, value in os.environ.items() if name not in _withheld}
    return {**own, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), _PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """In a child, before anything else: the kernel ends it when the thread that started it is gone, even inside an engine.

    Only for children that their parent waits for in the thread that started them. Where the system cannot do that, the limit
    of processor time (`rlimits`) is what ends a child that nobody waits for.
    """
    if sys.platform != "linux":
        return
    import contextlib
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.environ.get(_PARENT) not in (None, str(os.getppid())):  # it was gone before we asked
        os._exit(1)


def leave_no_core() -> None:
    """A crash must not write the key and the model to a disk, nor may others of this user look into this process."""
    if sys.platform == "win32":
        return
    import contextlib
    import ctypes
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: a pipe to a collector of cores gets nothing, too


def withhold(name: str) -> None:
    """This variable holds a secret: no child is started with it from now on."""
    _withheld.add(name)


def crashed(code: int) -> str:
    """The signal that what ran in the child brought upon itself; empty for any other end."""
    name = _signal(code)
    return name if name in _OWN_FAULTS else ""


def interrupted(code: int) -> str:
    """The signal that came from outside: from a terminal, a supervisor, the kernel short of memory. Empty for any other end."""
    return "" if crashed(code) else _signal(code)


def _signal(code: int) -> str:
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def run(command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `capture_output` and `text`, but timeout is the longest that stdout may be silent, seconds."""
    import subprocess

    given = options.pop("input", None)
    options.pop("capture_output", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as child:
        said = quiet = 0
        try:
            while True:
                try:
                    out, err = child.communicate(given, timeout=timeout / _LOOKS)
                    return subprocess.CompletedProcess(command, child.returncode, out, err)
                except subprocess.TimeoutExpired as error:
                    given, heard = None, len(error.stdout or b"")
                    quiet = quiet + 1 if heard == said else 0
                    said = heard
                    if quiet >= _LOOKS:
                        raise subprocess.TimeoutExpired(command, timeout, error.stdout) from None
        except BaseException:
            child.kill()
            raise
