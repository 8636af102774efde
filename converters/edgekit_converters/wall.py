"""What a process that opens a stranger's model may still do.
Read its tools and the model, write in one folder, and compute.

    missing = build_wall(Wall(readable=[model], writable=[folder]))       # () where all of it holds

Rules:
- the wall is built before anything is imported that starts threads, and can never be taken down; children inherit it;
- files: Landlock (Linux 5.13). Nothing is read but the system's and Python's own folders and what is named; nothing is
  written but in what is named;
- network: seccomp. No socket of any kind is made, no file's rights, owner, times or attributes are changed, no other
  process is traced or signalled, and no limits or priorities of another one are changed. A child that was forked cannot
  signal its own
  threads: its abort() ends it by a fault instead;
- where a part is not to be had the rest is built, and the part is named.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILES", "NETWORK", "Wall", "build_wall", "landlock_version", "missing_parts", "seccomp_fits"]

FILES, NETWORK = "files", "network"
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # Landlock's system calls, on every processor
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/sys", "/nix", "/gnu"),
    *(
        "/dev/zero",
        "/dev/random",
        "/dev/urandom",
        "/proc/self",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/stat",
        "/proc/sys",
    ),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/os-release", "/etc/mime.types"),
)
_EACCES = 13
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Names of system calls, and their numbers on x86_64 and aarch64; -1 where there is none.
_REFUSED = {
    "socket": (41, 198), "io_uring_setup": (425, 425), "truncate": (76, 45), "chmod": (90, -1), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1),
    "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "kill": (62, 129),
    "pidfd_send_signal": (424, 424), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "setns": (308, 268),
    "unshare": (272, 97), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_madvise": (440, 440),
}  # fmt: skip
# Allowed where the first argument is this process's number, or one of these.
_OF_ITSELF = {"tgkill": (234, 131, ()), "prlimit64": (302, 261, (0,)), "sched_setaffinity": (203, 122, (0,))}
_FCNTL, _SET_OWNER = (72, 25), (8, 15)  # F_SETOWN, F_SETOWN_EX: the kernel would signal another process


@dataclass(frozen=True)
class Wall:
    """What a walled process may reach.
    readable, writable: files and folders that may be read, or written too, beside the system's own. What is missing is
        left out."""

    readable: Sequence[Path] = ()
    writable: Sequence[Path] = ()


def build_wall(wall: Wall) -> tuple[str, ...]:
    """Around this process, for good.

    The parts that this system does not have: `files`, `network`.

    Raises RuntimeError where this process has other threads, which would stay outside, and OSError where building
    fails.
    """
    if sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("other threads would stay outside of the wall")
    missing = missing_parts()
    if len(missing) < 2:
        _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: no set-uid program leads out
    if FILES not in missing:
        _restrict_files(wall, landlock_version())
    if NETWORK not in missing:
        _refuse_calls(*_ARCHITECTURES[platform.machine()])
    return missing


def missing_parts() -> tuple[str, ...]:
    """The parts of a wall that this system does not have."""
    return (*(() if landlock_version() else (FILES,)), *(() if seccomp_fits() else (NETWORK,)))


def landlock_version() -> int:
    """Of Landlock's interface, 0 where the kernel has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def seccomp_fits() -> bool:
    """True on a Linux that filters system calls, on a processor whose calls are known here."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return False
    return int(ctypes.CDLL(None).prctl(21, 0, 0, 0, 0)) >= 0  # PR_GET_SECCOMP


def _restrict_files(wall: Wall, version: int) -> None:
    every = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    # From version 4 on no TCP, from 6 on no abstract sockets and no signals to the processes outside.
    attributes = struct.pack("=QQQ", every, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _call("syscall", _CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        own = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
        for place in dict.fromkeys([*_SYSTEM, *(entry for entry in own if entry), *map(str, wall.readable)]):
            _allow(rules, place, every & _READ)
        for place in ("/dev/null", *map(str, wall.writable)):
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


def _refuse_calls(architecture: int, column: int) -> None:
    numbers = sorted(entry[column] for entry in _REFUSED.values() if entry[column] >= 0)
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse, allow, kill = 0x00050000 | _EACCES, 0x7FFF0000, 0x80000000
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, 0x40000000), (give, 0, 0, refuse)]  # the second numbering of an x86's calls
    for number in numbers:
        steps += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    for *columns, others in _OF_ITSELF.values():  # the lower half of the first argument, which is an int
        allowed = [os.getpid(), *others]
        steps += [(equal, 0, 3 + len(allowed), columns[column]), (load, 0, 0, 16)]
        steps += [(equal, len(allowed) - i, 0, one) for i, one in enumerate(allowed)]
        steps += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    steps += [(equal, 0, 3 + len(_SET_OWNER), _FCNTL[column]), (load, 0, 0, 24)]
    steps += [(equal, len(_SET_OWNER) - i, 0, one) for i, one in enumerate(_SET_OWNER)]
    steps += [(give, 0, 0, allow), (give, 0, 0, refuse), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    _call("prctl", 22, 2, program, 0, 0)  # PR_SET_SECCOMP, by a filter


def _call(name: str, *arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    result = int(getattr(library, name)(*arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments[:1]}: {os.strerror(error)}")
    return result
