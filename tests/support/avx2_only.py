"""Run a command as on an x86 processor with AVX2 and nothing later: engines choose their kernels for such a one.

    .venv/bin/python tests/support/avx2_only.py COMMAND [ARGUMENT...]
    make test-avx2-only                      the fast tests

The processor does the work, so it costs no speed. Engines ask it what it can do by the instruction CPUID:
- in copies of their libraries an illegal instruction stands in its place, and its handler (avx2_only.c) answers as a
  Haswell;
- a mount namespace shows the copies where the libraries are, loads the handler into every process, and gives
  /proc/cpuinfo the same features.

TensorFlow and NumPy still see the real processor: neither runs what edgekit judges.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

MADE = Path(__file__).parents[2] / "build" / "avx2_only"
LIBRARIES = (
    "onnxruntime/capi/onnxruntime_pybind11_state*.so",
    "ai_edge_litert/lib*.so",
    "tflite_runtime/*.so",
    "openvino/libs/*.so*",
)
X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"
CPUID, ILLEGAL = b"\x0f\xa2", b"\x0f\x0a"
LATER = re.compile(r"avx512\w*|avx_\w+|avx10\w*|amx_\w+|gfni|vaes|vpclmulqdq|sha_ni")
"""Features of /proc/cpuinfo that a Haswell has not."""


@cache
def missing() -> str:
    """Why it cannot run here, with what to do; empty where it can."""
    if not X86_LINUX:
        return "an x86 with AVX2 alone is simulated on x86 Linux alone"
    for tool, package in (("gcc", "gcc"), ("objdump", "binutils"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt-get install {package}"
    tried = subprocess.run(
        [*_namespace(), "mount --bind /proc/version /proc/cpuinfo"], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"this user may not mount in a namespace of its own: {tried.stderr.strip()}"


def command(arguments: list[str]) -> list[str]:
    """The command line that runs arguments so. What it needs is made in build/avx2_only, once."""
    mounts = [f"mount --bind {shlex.quote(str(made))} {shlex.quote(str(at))}" for made, at in _patched().items()]
    shown = MADE / "cpuinfo"
    _put(shown, LATER.sub("", Path("/proc/cpuinfo").read_text()).encode())
    mounts.append(f"mount --bind {shlex.quote(str(shown))} /proc/cpuinfo")
    settings = MADE / "etc"
    settings.mkdir(exist_ok=True)
    _put(settings / "ld.so.preload", f"{_handler()}\n".encode())
    mounts.append(f"mount -t overlay -o lowerdir={shlex.quote(str(settings))}:/etc overlay /etc")
    return [*_namespace(), "; ".join((*mounts, 'exec "$@"')), "sh", *arguments]


def _namespace() -> list[str]:
    return ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-euc"]


def _handler() -> Path:
    source = Path(__file__).with_suffix(".c")
    library = MADE / f"{_digest(source)}.so"
    if not library.exists():
        MADE.mkdir(parents=True, exist_ok=True)
        half = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(half), str(source), "-ldl"], check=True)
        half.replace(library)
    return library


def _patched() -> dict[Path, Path]:
    """Each copy, and the library in whose place it is shown."""
    MADE.mkdir(parents=True, exist_ok=True)
    site = Path(sysconfig.get_path("purelib"))
    found = sorted({path.resolve() for pattern in LIBRARIES for path in site.glob(pattern)})
    copies = {MADE / f"{_digest(path)}-{path.name}": path for path in found}
    for copy, library in copies.items():
        if not copy.exists():
            _put(copy, without_cpuid(library), library.stat().st_mode)
    return copies


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """At once: another suite may run so at the same time."""
    if not path.exists() or path.read_bytes() != content:
        half = path.with_name(f"{path.name}.{os.getpid()}")
        half.write_bytes(content)
        half.chmod(mode)
        half.replace(path)


def without_cpuid(library: Path) -> bytes:
    """Its bytes, with an illegal instruction for each CPUID."""
    changed = bytearray(library.read_bytes())
    sections = subprocess.run(["objdump", "-hw", str(library)], capture_output=True, text=True, check=True).stdout
    text = re.search(r"\.text\s+\w+\s+(\w+)\s+\w+\s+(\w+)", sections)
    assert text is not None, f"{library} has no code"
    address, offset = (int(number, 16) for number in text.groups())
    code = subprocess.run(
        ["objdump", "-d", "-j", ".text", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for found in re.finditer(r"^\s*([0-9a-f]+):\s+cpuid\b", code, re.MULTILINE):
        at = int(found[1], 16) - address + offset
        assert changed[at : at + 2] == CPUID
        changed[at : at + 2] = ILLEGAL
    return bytes(changed)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    if missing():
        sys.exit(missing())
    line = command(sys.argv[1:])
    os.execvp(line[0], line)
