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
from pathlib import Path

__all__ = ["CPU_S", "MEMORY_BYTES", "PER_MODEL_BYTE", "allowed_bytes", "limit_this_process"]

MEMORY_BYTES = 2 << 30
PER_MODEL_BYTE = 16
CPU_S = 1800
"""Of each thread. A slow board replays for minutes; nothing sensible takes half an hour."""


def limit_this_process(model_bytes: int, threads: int = 1) -> None:
    """model_bytes: size of the file that will be loaded. Never raises: a limit is a second line of defence."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    used = _data_bytes()
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, CPU_S * max(1, threads))]
    if used is not None:
        wanted.append((resource.RLIMIT_DATA, used + allowed_bytes(model_bytes, _machine_bytes())))
    for which, most in wanted:
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(which)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (most, hard))


def allowed_bytes(model_bytes: int, machine_bytes: int | None) -> int:
    """What may be taken beyond what the process has. machine_bytes: memory of the machine, None where it does not tell."""
    most = MEMORY_BYTES + PER_MODEL_BYTE * model_bytes
    return most if machine_bytes is None else min(most, machine_bytes)


def _data_bytes() -> int | None:
    """What counts against RLIMIT_DATA now; None where the system does not tell (it is Linux that counts so, since 4.7)."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) * 1024
    return None


def _machine_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
