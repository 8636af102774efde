"""Limits of a process that opens an untrusted model: read, write in one folder, compute.

    missing = enter_sandbox(Sandbox(readable=[model], writable=[folder]))       # () if all of it holds

Rules:
- a process enters the sandbox before any import that starts threads, and can never leave it;
- files, by Landlock (Linux 5.13): only the system's and Python's own folders and named ones are readable, only named
  ones writable;
- all else, by seccomp, an allow list of system calls: no socket and no other process is made, signalled, traced or
  slowed down; no file's rights, owner, times or attributes change;
- no memory is shared in any way, so that one process's own memory is all there is to bound;
- root becomes another user, who keeps one privilege of root's, to read files;
- if the system lacks a part, the rest is built and the part is named.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

FILES, NETWORK = "files", "network"
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # Landlock's system calls, on every processor
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/sys", "/nix", "/gnu"),
    *("/dev/zero", "/dev/random", "/dev/urandom"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/os-release", "/etc/mime.types"),
)
_EACCES, _ENOSYS = 13, 38
_NOBODY = 65534
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Allowed system calls: name, number on x86_64, number on aarch64; - if the processor has none.
_ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
preadv2 327 286, pwritev2 328 287, open 2 -, openat 257 56, openat2 437 437, creat 85 -, close 3 57,
close_range 436 436, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43,
fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, lseek 8 62, readlink 89 -, readlinkat 267 78,
getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -,
unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37,
symlink 88 -, symlinkat 266 36, ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83,
sync_file_range 277 84, flock 73 32, dup 32 23, dup2 33 -, dup3 292 24, sendfile 40 71, copy_file_range 326 285,
fadvise64 221 223, readahead 187 213, umask 95 166, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
listxattr 194 11, llistxattr 195 12, flistxattr 196 13, munmap 11 215, mprotect 10 226, mremap 25 216,
madvise 28 233, brk 12 214, mincore 27 232, msync 26 227, membarrier 324 283, mbind 237 235, set_mempolicy 238 237,
get_mempolicy 239 236, mseal 462 462, map_shadow_stack 453 453, set_robust_list 273 99, get_robust_list 274 100,
rseq 334 293, set_tid_address 218 96, futex 202 98, futex_waitv 449 449, futex_wake 454 454, futex_wait 455 455,
futex_requeue 456 456, exit 60 93, exit_group 231 94, arch_prctl 158 -, gettid 186 178, getpid 39 172,
getppid 110 173, getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, capget 125 90, sched_yield 24 124,
sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
sched_get_priority_min 147 126, sched_getattr 315 275, getpriority 140 141, getrusage 98 165, getrlimit 97 163,
setrlimit 160 164, times 100 153, getcpu 309 168, prctl 157 167, wait4 61 260, waitid 247 95, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, pause 34 -, restart_syscall 219 128, clock_gettime 228 113, clock_getres 229 114,
clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169, time 201 -, getitimer 36 102, setitimer 38 103,
alarm 37 -, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109,
timer_delete 226 111, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, poll 7 -, ppoll 271 73,
select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, pipe 22 -, pipe2 293 59, uname 63 160,
sysinfo 99 179, getrandom 318 278
"""
_NEWEST = 462
"""Later calls do not exist in the sandbox: libraries then take an older one."""
_Step: TypeAlias = tuple[int, int, int, int]
_CLONE, _CLONE3, _MMAP, _IOCTL, _FCNTL = (56, 220), (435, 435), (9, 222), (16, 29), (72, 25)
_EXECVEAT = ("322", "281")
_THREAD = 0x10000  # CLONE_THREAD
_SHARED_MEMORY = 0x21  # MAP_SHARED and MAP_ANONYMOUS
_OF_FILES = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_SET_OWNER = (8, 15)  # F_SETOWN, F_SETOWN_EX: the kernel would signal another process
# Allowed where the first argument is this process's number, or one of these.
_OF_ITSELF = {"tgkill": (234, 131, ()), "prlimit64": (302, 261, (0,)), "sched_setaffinity": (203, 122, (0,))}
_READ_ANY = 1 << 2  # CAP_DAC_READ_SEARCH: root may convert another user's private file


@dataclass(frozen=True)
class Sandbox:
    """What a process in the sandbox may reach.
    readable, writable: files and folders besides the system's own; missing ones are left out.
    executes: whether it may become a program that it has opened, which stays in the sandbox."""

    readable: Sequence[Path] = ()
    writable: Sequence[Path] = ()
    executes: bool = False


def enter_sandbox(sandbox: Sandbox) -> tuple[str, ...]:
    """Confine this process, irreversibly.
    Returns the parts that this system lacks: `files`, `network`.
    Raises RuntimeError if this process has other threads, which would stay outside, and OSError if building fails."""
    if sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("other threads would stay outside of the sandbox")
    missing = missing_parts()
    if len(missing) < 2:
        _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: no set-uid program leads out
    if sys.platform == "linux":
        _drop_privileges(sandbox.writable)
    if FILES not in missing:
        _restrict_files(sandbox, landlock_version())
    if NETWORK not in missing:
        code = ctypes.create_string_buffer(filter_calls(platform.machine(), sandbox.executes))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
        _call("prctl", 22, 2, program, 0, 0)  # PR_SET_SECCOMP, by a filter
    return missing


def missing_parts() -> tuple[str, ...]:
    """Return the parts of a sandbox that this system lacks."""
    return (*(() if landlock_version() else (FILES,)), *(() if seccomp_fits() else (NETWORK,)))


def landlock_version() -> int:
    """Return the version of Landlock's interface, 0 if the kernel lacks it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def seccomp_fits() -> bool:
    """Whether Linux filters system calls here, on a processor whose calls are known."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return False
    return int(ctypes.CDLL(None).prctl(21, 0, 0, 0, 0)) >= 0  # PR_GET_SECCOMP


def _restrict_files(sandbox: Sandbox, version: int) -> None:
    every = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    # From version 4 on no TCP, from 6 on no abstract sockets and no signals to the processes outside.
    attributes = struct.pack("=QQQ", every, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _call("syscall", _CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        own = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
        for place in dict.fromkeys([*_SYSTEM, *(entry for entry in own if entry), *map(str, sandbox.readable)]):
            _allow(rules, place, every & _READ)
        for place in ("/dev/null", *map(str, sandbox.writable)):
            _allow(rules, place, every)
        _call("syscall", _RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, place: str, access: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(place).is_dir():
            access &= _OF_A_FILE
        _call("syscall", _ADD, rules, 1, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)


def _drop_privileges(folders: Sequence[Path]) -> None:
    """Drop every privilege but that of reading any file, which Landlock still limits.
    Root becomes the unprivileged user, who owns `folders`; a container may lack that user, and root stays."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    kept = int(status.partition("CapPrm:")[2].split()[0], 16) & _READ_ANY
    if os.getuid() == 0:
        with contextlib.suppress(OSError):
            # PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP: a change of user keeps capabilities, and access(2) sees them
            _call("prctl", 28, 1 << 2, 0, 0, 0)
            for folder in folders:
                os.chown(folder, _NOBODY, _NOBODY)
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _call("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", kept, kept, 0, 0, 0, 0))


def filter_calls(machine: str, executes: bool = False) -> bytes:
    """Build seccomp's program, 8 bytes per step: code, jump if true, jump if false, number."""
    architecture, column = _ARCHITECTURES[machine]
    load, equal, at_least, has, mask, give = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    refuse, none, kill = (give, 0, 0, 0x50000 | _EACCES), (give, 0, 0, 0x50000 | _ENOSYS), (give, 0, 0, 0x80000000)
    allow = (give, 0, 0, 0x7FFF0000)

    def argument(number: int) -> _Step:
        """Load the lower half, which is all that the kernel reads of an int."""
        return load, 0, 0, 16 + 8 * number

    def one_of(values: Sequence[int], then: _Step, otherwise: _Step) -> list[_Step]:
        return [*((equal, len(values) - i, 0, one) for i, one in enumerate(values)), otherwise, then]

    judged: dict[int, list[_Step]] = {
        _CLONE3[column]: [none],  # its flags lie where no filter looks: the C library then calls clone
        _CLONE[column]: [argument(0), (has, 0, 1, _THREAD), allow, refuse],
        _MMAP[column]: [argument(3), (mask, 0, 0, _SHARED_MEMORY), *one_of([_SHARED_MEMORY], refuse, allow)],
        _IOCTL[column]: [argument(1), *one_of(_OF_FILES, allow, refuse)],
        _FCNTL[column]: [argument(1), *one_of(_SET_OWNER, refuse, allow)],
    }
    for *columns, others in _OF_ITSELF.values():
        judged[columns[column]] = [argument(0), *one_of([os.getpid(), *others], allow, refuse)]
    numbers = (entry.split()[1 + column] for entry in _ALLOWED.replace("\n", " ").split(","))
    judged |= {
        int(number): [allow] for number in (*numbers, *(_EXECVEAT[column : column + 1] * executes)) if number != "-"
    }

    steps: list[_Step] = [(load, 0, 0, 4), (equal, 1, 0, architecture), kill, (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, 0x40000000), refuse]  # the second numbering of an x86's calls
    for number, then in judged.items():
        steps += [(equal, 0, len(then), number), *then]
    steps += [(at_least, 0, 1, _NEWEST + 1), none, refuse]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _call(name: str, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    result = int(getattr(library, name)(*arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments[:1]}: {os.strerror(error)}")
    return result
