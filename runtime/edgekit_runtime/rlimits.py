"""What a child that tries a model may take: memory, processor time, no core dump.

    limit_this_process(model_bytes=entry.bytes, threads=4)      # in the child, before it loads anything

Rules:
- memory is what the process has written to or may write to (RLIMIT_DATA), not address space: libraries, stacks that are
  only reserved and mapped files are not what a model asks for. LiteRT and ONNX Runtime with MobileNetV2 take 40 and 120 MB
  more than the process before it; a file that asks for gigabytes gets an error from the allocator, and the board goes on;
- what is allowed: `MEMORY_BYTES`, and `PER_MODEL_BYTE` times the file, which engines unpack, copy and pack; never more than
  the machine has;
- processor time ends what nobody waits for any more; how long a child may be silent is the parent's to watch;
- a limit that is stricter already stays, and a system without limits goes without.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = [
    "CPU_S",
    "MEMORY_BYTES",
    "PER_MODEL_BYTE",
    "allowed_bytes",
    "limit_memory",
    "limit_processor_time",
    "limit_this_process",
    "machine_bytes",
]

MEMORY_BYTES = 2 << 30
PER_MODEL_BYTE = 16
CPU_S = 1800
"""Of each thread. A slow board replays for minutes; nothing sensible takes half an hour."""


def limit_this_process(model_bytes: int, threads: int = 1) -> None:
    """model_bytes: size of the file that will be loaded. Never raises: a limit is a second line of defence."""
    _limit("RLIMIT_CORE", 0)
    limit_processor_time(threads)
    limit_memory(allowed_bytes(model_bytes, machine_bytes()))


def limit_memory(more_bytes: int) -> None:
    """What may be taken beyond what the process has. Never raises."""
    used = _data_bytes()
    if used is not None:
        _limit("RLIMIT_DATA", used + more_bytes)


def limit_processor_time(threads: int) -> None:
    """`CPU_S` of each thread, from now on. Never raises."""
    _limit("RLIMIT_CPU", int(time.process_time()) + CPU_S * max(1, threads))


def _limit(name: str, most: int) -> None:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    with contextlib.suppress(OSError, ValueError):
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def allowed_bytes(model_bytes: int, machine: int | None, memory_bytes: int = MEMORY_BYTES) -> int:
    """What may be taken beyond what the process has. machine: bytes of memory, None where it does not tell."""
    most = memory_bytes + PER_MODEL_BYTE * model_bytes
    return most if machine is None else min(most, machine)


def _data_bytes() -> int | None:
    """What counts against RLIMIT_DATA now; None where the system does not tell (it is Linux that counts so, since 4.7)."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) * 1024
    return None


def machine_bytes() -> int | None:
    """Memory of this machine; None where it does not tell."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
