"""Read what a board says of itself, from the files in which Linux says it.

    facts = read_facts()                     # this machine
    facts = read_facts(Path("captured"))     # captured/proc/cpuinfo, captured/etc/os-release, ...

Rules: only files are read, so that a copy of them gives the same facts anywhere; a fact that is missing or implausible
is empty, never guessed; the user land decides what installs, not the kernel, whose machine name hides a 32-bit user
land under a 64-bit kernel.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from edgekit_profiles.profile import CoreType, features_of, identify
from edgekit_runtime.system.files import open_regular

_ELF = {(1, 40): "armv7l", (2, 183): "aarch64", (2, 62): "x86_64", (2, 243): "riscv64", (1, 3): "i686"}
_MOST, _MOST_CORES, _MOST_TEXT = 4 << 20, 4096, 1000
_NUMBER = r"[0-9]{1,12}"
_ARMV6 = {(0x41, 0xB76)}


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind.

    type: as in profiles, `0x41:0xd80` for an unknown one, "x86-64" if not Arm.
    clock_ghz: the highest it may run at now, None if the kernel does not say.
    """

    type: str
    count: int
    clock_ghz: float | None
    generic: str = ""


@dataclass(frozen=True)
class BoardFacts:
    """What a machine says of itself.
    model, compatible: of the device tree.
    machine: of the user land.
    clusters: of online cores, fast ones first.
    simd: features that every core has, by edgekit's names.
    ram_mb: without what firmware keeps.
    system, codename: of the release, such as `bookworm`.
    python: of the system, or the running one.
    """

    model: str = ""
    compatible: tuple[str, ...] = ()
    machine: str = ""
    clusters: tuple[Cluster, ...] = ()
    simd: tuple[str, ...] = ()
    ram_mb: int | None = None
    system: str = ""
    codename: str = ""
    python: str = ""
    glibc: str = ""
    governor: str = ""


def read_facts(root: Path | None = None) -> BoardFacts:
    """Read the facts of this machine, or of the files copied below `root`."""
    top = Path("/") if root is None else root
    cpuinfo = _text(top / "proc/cpuinfo")
    text = _text(top / "etc/os-release") or _text(top / "usr/lib/os-release")
    found = re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE)
    release = {name: value.strip().strip("\"'")[:_MOST_TEXT] for name, value in found}
    # Processor -> (implementer, part); (0, 0) where it does not identify itself so, as on x86
    kinds = {}
    for block in re.split(r"\n\s*\n", cpuinfo):
        number, implementer, part = (_field(block, name) for name in ("processor", "CPU implementer", "CPU part"))
        if re.fullmatch(_NUMBER, number):
            kinds[int(number)] = (_hex(implementer), _hex(part))
    machine = _machine(top, set(kinds.values()))
    if root is None:
        import platform

        python = platform.python_version()
    else:
        python = next(iter(_pythons(top)), "").removeprefix("usr/bin/python")
    memory = re.search(rf"^MemTotal:\s*({_NUMBER}) kB", _text(top / "proc/meminfo"), re.MULTILINE)
    return BoardFacts(
        model=_tree(top, "model").strip() or _field(cpuinfo, "Model"),
        compatible=tuple(entry for entry in _tree(top, "compatible").split("\0") if entry.strip()),
        machine=machine,
        clusters=_clusters(top, kinds, machine),
        simd=_simd(cpuinfo, machine),
        ram_mb=int(memory[1]) // 1024 if memory else None,
        system=release.get("PRETTY_NAME", ""),
        codename=release.get("VERSION_CODENAME", ""),
        python=python,
        glibc=_glibc(top, live=root is None),
        governor=_text(top / "sys/devices/system/cpu/cpufreq/policy0/scaling_governor").strip(),
    )


def _bytes(path: Path, most: int = _MOST) -> bytes:
    """Read a file; empty if it is missing or unreadable."""
    try:
        with open_regular(path) as file:  # a pipe in a captured folder would never end
            return file.read(most)
    except (OSError, ValueError):
        return b""


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _tree(top: Path, name: str) -> str:
    """Read a property of the device tree's root: zero-terminated strings."""
    found = _text(top / "proc/device-tree" / name) or _text(top / "sys/firmware/devicetree/base" / name)
    return found[:_MOST_TEXT].rstrip("\0\n").replace("\n", "\0")


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}\s*:[ \t]*(.*)$", text, re.MULTILINE)
    return found[1].strip()[:_MOST_TEXT] if found else ""


def _hex(text: str) -> int:
    return int(text, 16) if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,8}", text) else 0


def _machine(top: Path, kinds: set[tuple[int, int]]) -> str:
    """Read the machine from a program's ELF header."""
    for name in (*_pythons(top), "usr/bin/sh", "bin/sh", "usr/bin/busybox", "bin/busybox"):
        head = _bytes(top / name, 20)
        if head[:4] == b"\x7fELF" and len(head) == 20:
            machine = _ELF.get((head[4], struct.unpack_from("<H", head, 18)[0]), "")
            return "armv6l" if machine == "armv7l" and kinds & _ARMV6 else machine
    return ""


def _clusters(top: Path, kinds: dict[int, tuple[int, int]], machine: str) -> tuple[Cluster, ...]:
    online = _online(_text(top / "sys/devices/system/cpu/online")) or set(kinds)
    clocks: dict[int, float] = {}  # gigahertz that a processor is allowed now, which a power mode or an overclock sets
    for policy in sorted((top / "sys/devices/system/cpu/cpufreq").glob("policy*")):
        khz = _text(policy / "scaling_max_freq").strip() or _text(policy / "cpuinfo_max_freq").strip()
        if re.fullmatch(_NUMBER, khz):
            clocks |= dict.fromkeys(_online(_text(policy / "related_cpus").replace(" ", ",")), int(khz) / 1e6)
    groups: dict[str, tuple[CoreType | None, list[int]]] = {}
    for number, (implementer, part) in sorted(kinds.items()):
        if number in online:
            known = identify(implementer, part)
            name = "x86-64" if machine == "x86_64" else "unknown"
            if known or part:
                name = known.type if known else f"{implementer:#x}:{part:#x}"
            groups.setdefault(name, (known, []))[1].append(number)
    found = []
    for name, (known, numbers) in groups.items():
        highest = max((clocks[number] for number in numbers if number in clocks), default=None)
        found.append(Cluster(name, len(numbers), highest, known.generic if known else ""))
    return tuple(sorted(found, key=lambda cluster: (cluster.clock_ghz or 0, cluster.type), reverse=True))


def _online(text: str) -> set[int]:
    """Parse a CPU list: `0-3,6` is 0, 1, 2, 3 and 6."""
    found: set[int] = set()
    left = _MOST_CORES
    for low, high in re.findall(rf"({_NUMBER})(?:-({_NUMBER}))?", text):
        named = range(int(low), int(high or low) + 1)[:left]
        found.update(named)
        left -= len(named)
    return found


def _simd(cpuinfo: str, machine: str) -> tuple[str, ...]:
    """Return the features of every core, by 64-bit names too: the kernel may be 64-bit."""
    lines = re.findall(r"^(?:Features|flags)\s*:(.*)$", cpuinfo, re.MULTILINE)
    have = set.intersection(*(set(line.split()) for line in lines)) if lines else set()
    both = {**features_of("aarch64"), **features_of(machine)} if machine.startswith("armv7") else features_of(machine)
    return tuple(word for word, kernel in both.items() if kernel in have or (word == "neon" and "asimd" in have))


def _pythons(top: Path) -> list[str]:
    """List usr/bin/python3.N, the target of `python3` first."""
    try:
        names = sorted(path.name for path in (top / "usr/bin").glob("python3.*"))
    except OSError:
        return []
    names = [name for name in names if re.fullmatch(r"python3\.[0-9]{1,2}", name)]
    try:
        meant = (top / "usr/bin/python3").readlink().name
    except OSError:
        meant = ""
    names.sort(key=lambda name: (name != meant, -int(name.split(".")[1])))
    return [f"usr/bin/{name}" for name in names]


def _glibc(top: Path, *, live: bool) -> str:
    if live:
        try:
            said = os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (ValueError, OSError, AttributeError):
            said = ""
        return said.removeprefix("glibc ").strip()
    for pattern in ("usr/lib/*/libc.so.6", "lib/*/libc.so.6", "usr/lib*/libc.so.6", "lib*/libc.so.6"):
        for path in sorted(top.glob(pattern)):
            found = re.search(rb"GNU C Library .*?version ([0-9]{1,3}\.[0-9]{1,3})", _bytes(path))
            if found:
                return found[1].decode()
    return ""
