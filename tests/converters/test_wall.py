"""What a process behind the wall cannot do. Each attempt is made for real, in a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit_converters.wall import FILES, NETWORK, Wall, build_wall, missing_parts

ATTEMPTS = """
import ctypes, fcntl, os, pathlib, platform, resource, socket, sys
from edgekit_converters.wall import Wall, build_wall
own, outside = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
missing = build_wall(Wall(writable=[own]))
(own / "inside").write_text("x")
libc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()
tkill, tgkill, queue, queue_thread = (
    {"x86_64": (200, 234, 129, 297), "aarch64": (130, 131, 138, 240)}[platform.machine()]
)

def call(*arguments):
    if libc.syscall(*arguments) < 0 and ctypes.get_errno() == 13:  # EACCES is the wall's; the kernel's own is EPERM
        raise OSError

def attempt(name, action):
    try:
        action()
    except OSError:
        return
    print(name)

attempt("write", lambda: (outside / "written").write_text("x"))
attempt("append", lambda: (outside / "there").open("a"))
attempt("shorten", lambda: os.truncate(outside / "there", 0))
attempt("read", lambda: (outside / "there").read_text())
attempt("list", lambda: os.listdir(outside))
attempt("remove", lambda: (outside / "there").unlink())
attempt("rename", lambda: (own / "inside").rename(outside / "inside"))
attempt("link", lambda: os.link(outside / "there", own / "linked"))
attempt("rights", lambda: os.chmod(outside / "there", 0o777))
attempt("times", lambda: os.utime(outside / "there"))
attempt("signal", lambda: os.kill(os.getppid(), 0))
attempt("signal a thread", lambda: call(tkill, parent, 0))
attempt("signal a thread of a process", lambda: call(tgkill, parent, parent, 0))
attempt("queue a signal", lambda: call(queue, parent, 0, bytes(128)))
attempt("queue a signal for a thread", lambda: call(queue_thread, parent, parent, 0, bytes(128)))
attempt("limits", lambda: resource.prlimit(parent, resource.RLIMIT_CORE))
attempt("owner of a pipe", lambda: fcntl.fcntl(0, 8, parent))
attempt("owner of a pipe, extended", lambda: fcntl.fcntl(0, 15, bytes(8)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, parent, 0))
attempt("scheduler", lambda: os.sched_setscheduler(parent, os.SCHED_OTHER, os.sched_param(0)))
attempt("processors", lambda: os.sched_setaffinity(parent, os.sched_getaffinity(0)))
attempt("environment", lambda: open(f"/proc/{os.getppid()}/environ").read())
attempt("tcp", lambda: socket.socket(socket.AF_INET))
attempt("udp", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("local", lambda: socket.socket(socket.AF_UNIX))
attempt("child", lambda: os.system(f"echo x > {outside}/by_child 2>/dev/null") and (_ for _ in ()).throw(OSError))
"""


@pytest.mark.skipif(bool(missing_parts()), reason=f"this system has no wall: {missing_parts()}")
def test_a_process_behind_the_wall_writes_in_its_folder_and_nowhere_else_and_has_no_network(tmp_path: Path) -> None:
    """S25: files, their attributes, other processes, sockets; a child of it as well."""
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    (outside / "there").write_text("secret")
    command = [sys.executable, "-c", ATTEMPTS, str(own), str(outside)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(own)})
    assert done.stdout.split() == []
    assert [path.name for path in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "secret"
    assert (own / "inside").exists()


ITSELF = """
import os, resource, signal, subprocess, sys, threading
from edgekit_converters.wall import Wall, build_wall
build_wall(Wall())
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append("raised"))
signal.raise_signal(signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.prlimit(os.getpid(), resource.RLIMIT_CORE)
os.sched_setaffinity(0, os.sched_getaffinity(0))
forked = os.fork()
if not forked:
    os.abort()
print(*heard, os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) < 0)
print(subprocess.run([sys.executable, "-c", "import os; os.abort()"]).returncode < 0, flush=True)
os.abort()
"""


@pytest.mark.skipif(NETWORK in missing_parts(), reason="this system filters no system calls")
def test_a_process_behind_the_wall_may_signal_and_end_itself_and_an_abort_ends_its_children() -> None:
    done = subprocess.run([sys.executable, "-c", ITSELF], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.returncode) == (["raised", "raised", "True", "True"], -signal.SIGABRT), (
        done.stderr
    )


def test_a_process_with_threads_is_told_that_they_would_stay_outside() -> None:
    import threading

    if sys.platform != "linux":
        pytest.skip("threads are counted on Linux")
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="threads"):
            build_wall(Wall())
    finally:
        done.set()
        thread.join()


def test_the_parts_that_may_be_missing_have_names() -> None:
    assert set(missing_parts()) <= {FILES, NETWORK}
