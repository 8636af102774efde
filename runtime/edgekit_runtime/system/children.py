"""Child processes for work that may crash, hang or take memory, and their limits.

    done = run(python_module("edgekit_runtime.loading.tuning_trial"), env=environment(), ...)  # `jobs.ask` does it
    limit_this_process(model_bytes=entry.bytes, threads=4)      # in the child, before it loads anything

Rules:
- a child is a fresh interpreter, never a fork. It finds packages as this process does, and none in the current folder;
- what is limited is silence: a child that keeps writing lines is not hung;
- a crash, or the end of its processor time, is the fault of what ran in the child; any other signal came from outside;
- on Linux a child ends when its parent is gone, and takes its own children with it;
- a child never gets a variable that holds a secret (`withhold`), and dumps no core that could hold one;
- RLIMIT_DATA limits memory to `MEMORY_BYTES` plus `PER_MODEL_BYTE` times the file, never more than the machine has. It
  cannot be raised again, a stricter limit stays, and a system without limits has none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit_runtime.system.board import proc_kilobytes
from edgekit_runtime.system.errors import ClosedError

if TYPE_CHECKING:
    import subprocess

_OWN_FAULTS = ("SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSYS", "SIGTRAP", "SIGXCPU")
_LOOKS = 4
"""Checks within a timeout whether the child wrote something."""
_PARENT = "EDGEKIT_PARENT"
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
"""What `python -P -m` does, for Python 3.10, which has no -P."""
_withheld: set[str] = {"EDGEKIT_PASSPHRASE"}
MEMORY_BYTES = 2 << 30
PER_MODEL_BYTE = 16
CPU_S = 1800
"""Of each thread. A slow board replays golden examples for minutes."""


def may_start() -> bool:
    """False if EDGEKIT_SELFTEST=in-process says so, or `sys.executable` is not a Python."""
    if os.environ.get("EDGEKIT_SELFTEST") == "in-process":
        return False
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules, which imports nothing from the current folder."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name, *arguments]
    return python_code(_RUN_MODULE, name, *arguments)


def python_code(code: str, *arguments: str) -> list[str]:
    """The command that runs this code with the arguments in `sys.argv[1:]`.
    It imports nothing from the current folder."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-c", code, *arguments]
    return [sys.executable, "-c", f"import sys; del sys.path[0]\n{code}", *arguments]


def environment() -> dict[str, str]:
    """This process's environment for a child, with the present `sys.path` and its own id.
    Without the variables that `withhold` named. The id is for `die_with_parent`."""
    paths = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    own = {name: value for name, value in os.environ.items() if name not in _withheld}
    return {**own, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), _PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """Let the kernel end this child when the thread that started it is gone. Call it first.
    Only for children whose parent waits in the thread that started them. On systems other than Linux the limit of
    processor time ends an abandoned child."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.environ.get(_PARENT) not in (None, str(os.getppid())):  # it was gone before we asked
        os._exit(1)


def leave_no_core() -> None:
    """Write no core dump and let no other process look into this one, which holds a key."""
    if sys.platform == "win32":
        return
    import ctypes
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: a pipe to a collector of cores gets nothing, too


def withhold(name: str) -> None:
    """Give this variable, which holds a secret, to no child from now on."""
    _withheld.add(name)


def crash_signal(code: int) -> str:
    """The signal that what ran in the child caused itself; empty for any other end."""
    name = _signal_name(code)
    return name if name in _OWN_FAULTS else ""


def interrupt_signal(code: int) -> str:
    """The signal from outside (terminal, supervisor, lack of memory); empty for any other end."""
    return "" if crash_signal(code) else _signal_name(code)


def _signal_name(code: int) -> str:
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def run(
    command: list[str], *, timeout: float, started: Callable[[subprocess.Popen[str]], None] | None = None, **given: Any
) -> subprocess.CompletedProcess[str]:
    """Run a child as `subprocess.run` does, with a limit on its silence.
    timeout: the longest that stdout may be silent, seconds. started: called with the child."""
    import subprocess

    text = given.pop("input", None)
    given.pop("capture_output", None)
    if text is not None:
        given["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given) as child:
        said = quiet = 0
        try:
            if started is not None:
                started(child)
            while True:
                try:
                    out, err = child.communicate(text, timeout=timeout / _LOOKS)
                    return subprocess.CompletedProcess(command, child.returncode, out, err)
                except subprocess.TimeoutExpired as error:
                    text, heard = None, len(error.stdout or b"")
                    quiet = quiet + 1 if heard == said else 0
                    said = heard
                    if quiet >= _LOOKS:
                        raise subprocess.TimeoutExpired(command, timeout, error.stdout) from None
        except BaseException:
            child.kill()
            raise


class StoppableRun:
    """`run` at the lowest priority; another thread may end it, and then it raises ClosedError."""

    def __init__(self) -> None:
        self._stopped, self._changing = False, threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.check()
        done = run(command, started=self._begun, **options)
        self.check()
        return done

    def check(self) -> None:
        """Raises ClosedError once it was stopped."""
        if self._stopped:
            raise ClosedError("the measurement was stopped")

    def stop(self) -> None:
        with self._changing:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def _begun(self, child: subprocess.Popen[str]) -> None:
        with contextlib.suppress(OSError, AttributeError):  # Windows has no such call
            os.setpriority(os.PRIO_PROCESS, child.pid, 19)
        with self._changing:
            self._child = child
            if self._stopped:
                child.kill()


def limit_this_process(model_bytes: int, threads: int = 1, *, gpu: bool = False) -> None:
    """Limit memory, processor time and core dumps. Never raises.

    model_bytes: size of the file that will be loaded.
    gpu: CUDA's libraries and what they build are limited by the machine's memory alone."""
    _limit("RLIMIT_CORE", 0)
    limit_processor_time(threads)
    machine = machine_bytes()
    limit_memory(machine if gpu and machine is not None else allowed_bytes(model_bytes, machine))


def limit_memory(more_bytes: int) -> None:
    """Limit what may be taken beyond what the process has. Never raises."""
    used = proc_kilobytes("VmData")  # what counts against RLIMIT_DATA, on Linux since 4.7
    if used is not None:
        _limit("RLIMIT_DATA", used * 1024 + more_bytes, hard=True)


def limit_files(most_bytes: int, most_open: int) -> None:
    """most_bytes: of one file. most_open: at once. Never raises."""
    _limit("RLIMIT_FSIZE", most_bytes, hard=True)
    _limit("RLIMIT_NOFILE", most_open, hard=True)


def limit_processor_time(threads: int) -> None:
    """`CPU_S` of each thread, from now on. Never raises."""
    _limit("RLIMIT_CPU", int(time.process_time()) + CPU_S * max(1, threads))


def _limit(name: str, most: int, *, hard: bool = False) -> None:
    """hard: it can never be raised again."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    with contextlib.suppress(OSError, ValueError):
        which = getattr(resource, name)
        _, bound = resource.getrlimit(which)
        most = most if bound == resource.RLIM_INFINITY else min(most, bound)
        resource.setrlimit(which, (most, most if hard else bound))


def allowed_bytes(model_bytes: int, machine: int | None, memory_bytes: int = MEMORY_BYTES) -> int:
    """Bytes that may be taken beyond what the process has. machine: its memory, None if unknown."""
    most = memory_bytes + PER_MODEL_BYTE * model_bytes
    return most if machine is None else min(most, machine)


def machine_bytes() -> int | None:
    """Memory of this machine; None if unknown."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
