"""Child processes for work that may crash, hang or take memory, and their limits.

    done = run(python_module("edgekit_runtime.loading.tuning_trial"), env=environment(), ...)  # `jobs.ask` does it
    limit_this_process(model_bytes=entry.bytes, threads=4)      # in the child, before it loads anything

Rules:
- a fresh interpreter, never a fork: the application may have threads. It finds packages where this process does, and
  nothing in the folder the application happens to stand in; where none can be started (a frozen application, user-mode
  emulation) the caller does without;
- a child that keeps writing lines is not hung, however slow it is: what is bounded is its silence;
- a crash is the fault of what ran in the child, and so is the end of its processor time; any other signal came from
  outside, and proves nothing against it;
- a child whose parent is gone ends, wherever it is, and takes its own children with it (on
  Linux);
- a variable that holds a secret is no child's: what one must know comes over its standard input, and what was encrypted
  gets on no disk by way of a child's core;
- memory is limited as what the process has written to or may write to (RLIMIT_DATA): `MEMORY_BYTES`, and
  `PER_MODEL_BYTE` times the file, never more than the machine has. What runs in the child cannot raise it again, a
  stricter limit stays, and a system without limits goes without.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_OWN_FAULTS = ("SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSYS", "SIGTRAP", "SIGXCPU")
_LOOKS = 4
"""How often it is looked within a timeout whether the child said something."""
_PARENT = "EDGEKIT_PARENT"
_RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
"""What `python -P -m` does, for Python 3.10, which has no -P."""
_withheld: set[str] = {"EDGEKIT_PASSPHRASE"}
MEMORY_BYTES = 2 << 30
PER_MODEL_BYTE = 16
CPU_S = 1800
"""Of each thread. A slow board replays for minutes; nothing sensible takes half an hour."""


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
    """The command that runs these lines with the arguments in `sys.argv[1:]`.
    They import nothing from the current folder."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-c", code, *arguments]
    return [sys.executable, "-c", f"import sys; del sys.path[0]\n{code}", *arguments]


def environment() -> dict[str, str]:
    """This process's environment, with its import path.
    An application may have changed `sys.path` since it started.

    Without what `withhold` named, and with who starts it: see `die_with_parent`.
    """
    paths = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    own = {name: value for name, value in os.environ.items() if name not in _withheld}
    return {**own, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), _PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """Let the kernel end this child when the thread that started it is gone.
    Called before anything else; it works inside an engine too.

    Only for children that their parent waits for in the thread that started them. Where the system cannot do that, the
    limit of processor time is what ends an abandoned child.
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
    """Write no core dump, and let no other process look into this one.
    A crash must not write the key and the model to a disk."""
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


def crash_signal(code: int) -> str:
    """The signal that what ran in the child brought upon itself; empty for any other end."""
    name = _signal(code)
    return name if name in _OWN_FAULTS else ""


def interrupt_signal(code: int) -> str:
    """The signal that came from outside: a terminal, a supervisor, or a lack of memory.
    Empty for any other end."""
    return "" if crash_signal(code) else _signal(code)


def _signal(code: int) -> str:
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def run(command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a child as `subprocess.run` does, with a limit on its silence.
    timeout: the longest that stdout may be silent, seconds."""
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


def limit_this_process(model_bytes: int, threads: int = 1, *, gpu: bool = False) -> None:
    """model_bytes: size of the file that will be loaded.
    Never raises: a limit is a second line of defence.

    gpu: CUDA's libraries and what they build are bounded by the machine's memory alone.
    """
    _limit("RLIMIT_CORE", 0)
    limit_processor_time(threads)
    machine = machine_bytes()
    limit_memory(machine if gpu and machine is not None else allowed_bytes(model_bytes, machine))


def limit_memory(more_bytes: int) -> None:
    """What may be taken beyond what the process has. Never raises."""
    used = _data_bytes()
    if used is not None:
        _limit("RLIMIT_DATA", used + more_bytes, hard=True)


def limit_files(most_bytes: int, most_open: int) -> None:
    """most_bytes: of one file. most_open: at once. Never raises."""
    _limit("RLIMIT_FSIZE", most_bytes, hard=True)
    _limit("RLIMIT_NOFILE", most_open, hard=True)


def limit_processor_time(threads: int) -> None:
    """`CPU_S` of each thread, from now on. Never raises."""
    _limit("RLIMIT_CPU", int(time.process_time()) + CPU_S * max(1, threads))


def _limit(name: str, most: int, *, hard: bool = False) -> None:
    """hard: for good."""
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
    """What may be taken beyond what the process has.

    machine: bytes of memory, None where it does not say.
    """
    most = memory_bytes + PER_MODEL_BYTE * model_bytes
    return most if machine is None else min(most, machine)


def _data_bytes() -> int | None:
    """What counts against RLIMIT_DATA now; None where the system does not say.

    It is Linux that counts so, since 4.7.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) * 1024
    return None


def machine_bytes() -> int | None:
    """Memory of this machine; None where it does not say."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
