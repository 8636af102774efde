"""What a process in the sandbox cannot do. Each attempt is made for real, in a child."""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit_converters.sources.sandbox import (
    _ALLOWED,
    FILES,
    NETWORK,
    Sandbox,
    enter_sandbox,
    filter_calls,
    missing_parts,
)

ATTEMPTS = """
import ctypes, fcntl, mmap, os, pathlib, platform, resource, socket, sys, time
from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox
from edgekit_runtime.system.children import limit_files, limit_memory
own, outside = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
missing = enter_sandbox(Sandbox(writable=[own]))
(own / "inside").write_text((own / "private").read_text())
if not os.access(own / "inside", os.R_OK):  # TensorFlow asks so, also where a folder above is root's alone
    print("access")
libc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()
tkill, tgkill, queue, queue_thread, reboot, syslog, shmget, keyctl = {
    "x86_64": (200, 234, 129, 297, 169, 103, 29, 250), "aarch64": (130, 131, 138, 240, 142, 116, 194, 219)
}[platform.machine()]

def call(*arguments):
    if libc.syscall(*arguments) < 0 and ctypes.get_errno() == 13:  # EACCES is the sandbox's; the kernel's own is EPERM
        raise OSError

def attempt(name, action):
    try:
        action()
    except (OSError, ValueError, MemoryError):
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
attempt("pair", socket.socketpair)
attempt("host name", lambda: socket.sethostname(socket.gethostname()))
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
attempt("reboot", lambda: call(reboot, 0, 0, 0, 0))
attempt("kernel log", lambda: call(syslog, 10, 0, 0))
attempt("another root", lambda: os.chroot(own))
attempt("mounts", lambda: call(442, -1, b"", 0, 0, 0))
attempt("keys", lambda: call(keyctl, 0, 0, 0))
attempt("shared memory of System V", lambda: call(shmget, 0, 4096, 0o1600))
attempt("a file in memory", lambda: os.memfd_create("x"))
attempt("anonymous shared memory", lambda: mmap.mmap(-1, 4096))
attempt("a terminal's input", lambda: fcntl.ioctl(0, 0x5412, b"x"))
attempt("session", os.setsid)
attempt("fork", lambda: os.fork() or os._exit(0))
attempt("program", lambda: os.execv(sys.executable, [sys.executable, "-c", "print('program')"]))
attempt("priority of its own", lambda: os.nice(0))
attempt("user", lambda: os.setuid(os.getuid()))
limit_memory(1 << 28)
limit_files(1 << 20, 64)
unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
attempt("more memory", lambda: bytearray(1 << 29))
for limit in ("RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
    attempt(f"raised {limit}", lambda: resource.setrlimit(getattr(resource, limit), unlimited))
attempt("a larger file", lambda: (own / "large").write_bytes(bytes(1 << 21)))
if 0 in {*os.getresuid(), *os.getresgid(), *os.getgroups()}:
    print("root")
held = int(next(line for line in open("/proc/self/status") if line.startswith("CapEff")).split()[1], 16)
if held & ~4:
    print("capabilities", hex(held))
attempt("child", lambda: os.system(f"echo x > {outside}/by_child 2>/dev/null") and (_ for _ in ()).throw(OSError))
"""


@pytest.mark.skipif(bool(missing_parts()), reason=f"this system has no sandbox: {missing_parts()}")
def test_a_process_in_the_sandbox_writes_in_its_folder_and_nowhere_else_and_has_no_network(tmp_path: Path) -> None:
    """S25: files, their attributes, other processes, sockets, shared memory, and what root alone may do."""
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    (outside / "there").write_text("secret")
    (own / "private").write_text("x")
    (own / "private").chmod(0o600)  # root's, whose files another user still reads
    command = [sys.executable, "-c", ATTEMPTS, str(own), str(outside)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(own)})
    assert done.stdout.split() == []
    assert [path.name for path in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "secret"
    assert (own / "inside").exists()


ITSELF = """
import os, pathlib, resource, signal, sys, threading
from edgekit_converters.sources.sandbox import Sandbox, enter_sandbox
enter_sandbox(Sandbox(writable=[pathlib.Path(os.environ["TMPDIR"])]))
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append("raised"))
signal.raise_signal(signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.prlimit(os.getpid(), resource.RLIMIT_CORE)
os.sched_setaffinity(0, os.sched_getaffinity(0))
thread = threading.Thread(target=lambda: heard.append("thread"))
thread.start()
thread.join()
import mmap, platform, select, tempfile
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    mmap.mmap(file.fileno(), 4096)[:1] = b"x"  # a file's own pages may be shared
mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
os.pipe(), os.eventfd(0), select.epoll(), platform.uname(), platform.processor()
try:
    ctypes = __import__("ctypes").CDLL(None, use_errno=True)
    ctypes.syscall(500)
    print(*heard, __import__("ctypes").get_errno(), flush=True)
finally:
    os.abort()
"""


@pytest.mark.skipif(NETWORK in missing_parts(), reason="this system filters no system calls")
def test_a_process_in_the_sandbox_has_threads_files_and_pipes_and_may_signal_and_end_itself(tmp_path: Path) -> None:
    """A call that is newer than the sandbox's list does not exist there, so that libraries take an older one."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", ITSELF]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    said = ["raised", "raised", "thread", str(errno.ENOSYS)]
    assert (done.stdout.split(), done.returncode) == (said, -signal.SIGABRT), done.stderr


@pytest.mark.skipif(NETWORK in missing_parts(), reason="this system filters no system calls")
def test_the_sandbox_s_numbers_are_those_of_the_system_s_headers() -> None:
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    if platform.machine() != "x86_64" or not header.is_file():
        pytest.skip("needs sudo apt-get install linux-libc-dev")
    there = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", header.read_text()))
    listed = [entry.split() for entry in _ALLOWED.replace("\n", " ").split(",")]
    assert {name: here for name, here, _ in listed if name in there and here != there[name]} == {}
    assert len(listed) == len({name for name, _, _ in listed})


EACCES, ENOSYS, ALLOW, KILL = 0x50000 | errno.EACCES, 0x50000 | errno.ENOSYS, 0x7FFF0000, 0x80000000
ARM, X86 = 0xC00000B7, 0xC000003E
CALLS = {
    "read": ((63, 0), ALLOW),
    "another processor's": ((63, 0), KILL),
    "socket": ((198, 41), EACCES),
    "reboot": ((142, 169), EACCES),
    "setns": ((268, 308), EACCES),
    "a thread": ((220, 56, 0x3D0F00), ALLOW),
    "a process": ((220, 56, 0x11), EACCES),
    "clone3": ((435, 435), ENOSYS),
    "newer than the list": ((463, 463), ENOSYS),
    "x32": ((0x40000000, 0x40000000), EACCES),
    "private memory": ((222, 9, 0, 0, 3, 0x22), ALLOW),
    "a shared file": ((222, 9, 0, 0, 3, 0x01), ALLOW),
    "shared memory": ((222, 9, 0, 0, 3, 0x21), EACCES),
    "validated shared memory": ((222, 9, 0, 0, 3, 0x23), EACCES),
    "TCGETS": ((29, 16, 0, 0x5401), ALLOW),
    "TIOCSTI": ((29, 16, 0, 0x5412), EACCES),
    "F_GETFL": ((25, 72, 0, 3), ALLOW),
    "F_SETOWN": ((25, 72, 0, 8), EACCES),
    "its own limits": ((261, 302, 0), ALLOW),
    "another's limits": ((261, 302, 1), EACCES),
}


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
@pytest.mark.parametrize("case", CALLS)
def test_the_filter_says_the_same_on_every_processor(machine: str, case: str) -> None:
    (arm, x86, *arguments), verdict = CALLS[case]
    here, there, number = (ARM, X86, arm) if machine == "aarch64" else (X86, ARM, x86)
    data = {0: number, 4: there if case.startswith("another processor") else here}
    data |= {16 + 8 * place: value for place, value in enumerate([*arguments, *[0] * (6 - len(arguments))])}
    steps, at, held = list(struct.iter_unpack("=HBBI", filter_calls(machine))), 0, 0
    while (step := steps[at])[0] != 0x06:
        code, yes, no, value = step
        if code in (0x20, 0x54):
            held, jump = (data[value] if code == 0x20 else held & value), 0
        else:
            jump = yes if {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code] else no
        at += 1 + jump
    assert step[3] == verdict
    assert len(steps) < 4096


def test_a_process_with_threads_is_told_that_they_would_stay_outside() -> None:
    import threading

    if sys.platform != "linux":
        pytest.skip("threads are counted on Linux")
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="threads"):
            enter_sandbox(Sandbox())
    finally:
        done.set()
        thread.join()


def test_the_parts_that_may_be_missing_have_names() -> None:
    assert set(missing_parts()) <= {FILES, NETWORK}
