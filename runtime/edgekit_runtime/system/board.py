"""This board's identity, the folder of its verdicts, and the memory of this process.

    key = fingerprint()                       # another processor, kernel or core count: another key
    folder = state_dir() / "tuning"

Rules:
- the fingerprint goes into a verdict's key, so that one board's verdict is never used on another;
- what cannot be read is left out, never an error: a container without /proc still runs;
- a user without a home keeps verdicts in a private temporary folder, or nowhere if others could write to it.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from pathlib import Path

from edgekit_runtime.system.records import record

_X86_64 = ("x86_64", "amd64")
_VNNI = frozenset({"avx512_vnni", "avx_vnni"})


@record(frozen=True)
class Cpu:
    """machine: as `platform.machine` spells it.
    flags: features that the kernel lists; may be empty."""

    machine: str
    flags: frozenset[str] = frozenset()

    @property
    def lacks_vnni(self) -> bool:
        """Whether ONNX Runtime's fast products of uint8 and int8 saturate here, as on some x86."""
        return self.machine.lower() in _X86_64 and not self.flags & _VNNI


def cpu() -> Cpu:
    """This machine's processor, with the flags of its first core in /proc/cpuinfo."""
    flags = next((line.partition(":")[2] for line in _cpuinfo() if line.startswith("flags")), "")
    return Cpu(platform.machine(), frozenset(flags.split()))


def fingerprint() -> str:
    """Architecture, system, kernel, processor and usable cores, in one line."""
    return "|".join((platform.machine(), platform.system(), platform.release(), cpu_model(), str(cores())))


def cpu_model() -> str:
    """What /proc/cpuinfo calls the processor; on other systems what Python knows."""
    lines, keys = _cpuinfo(), ("model name", "Model", "CPU part", "Hardware")
    found = "|".join(sorted({line for line in lines if line.split("\t")[0].strip() in keys}))
    return found if lines else platform.processor()


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def vulkan_drivers() -> tuple[str, ...]:
    """The driver manifests that Vulkan's loader finds, with their dates."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    folders = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
    files = (
        named.split(os.pathsep) if named else [str(one) for folder in folders for one in Path(folder).glob("*.json")]
    )
    return tuple(f"{file} {Path(file).stat().st_mtime_ns}" for file in sorted(files) if Path(file).is_file())


def library_version(delegate: str) -> str:
    """Path, size and date of a delegate's library; the name alone if it is not found."""
    name = delegate.split(",")[0].strip()
    folders = [Path()] if "/" in name else [Path(top) for top in ("/usr/local/lib", "/usr/lib", "/lib")]
    found = [one for folder in folders for one in (folder / name, *sorted(folder.glob(f"*-linux-gnu*/{name}")))]
    for file in found if name else ():
        try:
            seen = file.stat()
        except OSError:
            continue
        return f"{file.resolve()} {seen.st_size} {seen.st_mtime_ns}"
    return name


def cores() -> int:
    """Cores that this process may use: its affinity, if the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def state_dir() -> Path:
    """The folder of verdicts: $EDGEKIT_STATE_DIR, or the user's cache folder.
    Else see `homeless`."""
    if configured := os.environ.get("EDGEKIT_STATE_DIR"):
        return Path(configured)
    if base := os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA"):
        return Path(base) / "edgekit"
    try:
        return Path.home() / ".cache" / "edgekit"
    except RuntimeError:  # no HOME, and not in the user database
        return _temporary_dir()


def homeless() -> str:
    """Advice for a user with neither a home nor a configured folder; empty for any other."""
    if any(os.environ.get(name) for name in ("EDGEKIT_STATE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA")):
        return ""
    try:
        Path.home()
    except RuntimeError:
        folder = _temporary_dir()
        where = f"in {folder}" if folder != _NOWHERE else "nowhere, so each opening measures"
        return f"this user has no home folder: measurements are stored {where}; set EDGEKIT_STATE_DIR"
    return ""


_NOWHERE = Path(os.devnull) / "edgekit"


def _temporary_dir() -> Path:
    """This user's own temporary folder, or an impossible path if another user may write to it."""
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"edgekit-{os.getuid() if hasattr(os, 'getuid') else 'state'}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return _NOWHERE
    own = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077)
    return folder if stat.S_ISDIR(found.st_mode) and own else _NOWHERE


def resident_mb(pid: int | None = None) -> float | None:
    """Resident memory of a process, by default this one, in MB (1e6 bytes); None if unknown."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return _resident_elsewhere() if pid is None else None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def private_mb() -> float | None:
    """Resident memory of this process in MB (1e6 bytes), without the files that it maps."""
    own = proc_kilobytes("RssAnon")
    return resident_mb() if own is None else own * 1024 / 1e6


def peak_mb() -> float | None:
    """Peak resident memory of this process in MB (1e6 bytes); None if unknown.
    Not `ru_maxrss` if there is /proc: that starts with the parent's."""
    peak = proc_kilobytes("VmHWM")
    return _resident_elsewhere() if peak is None else peak * 1024 / 1e6


def proc_kilobytes(name: str, file: Path = Path("/proc/self/status")) -> int | None:
    """The number after `name:` in a file of /proc; None if it is not there."""
    try:
        lines = file.read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _resident_elsewhere() -> float | None:
    """The high-water mark, on systems without /proc."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
