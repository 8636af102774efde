"""Emulated processors, the /proc and /sys they show, the Debian release of a board.

    cpu = cpu_for(load("raspberry-pi-4"))        # CPUS["cortex-a72"]
    show(folder, cpu, cores=1)
    image_for(load("raspberry-pi-4"))            # Image(suite="bookworm", machine="aarch64")

Rules:
- a processor is named, never `max`: QEMU 7.2's makes LiteRT's INT8 wrong without an error;
- /proc/cpuinfo lists what QEMU executes, because kernels are chosen by it; the x86 host's would crash ONNX Runtime;
- a core that QEMU lacks is replaced by one with the same instructions, and the result names it;
- Debian's Python must be the board's, its glibc no newer; boards without such a release are refused (ARMv6 is not
  armhf);
- a bundle that fails under emulation is a result, not one of these errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgekit_profiles import Profile
from edgekit_runtime.system.errors import EdgekitError


class EmulationError(EdgekitError):
    """Something could not be run under QEMU."""

    code = "emulation"


class EmulatorMissingError(EmulationError):
    """The emulator or another tool is not installed; `do` has the command that installs it."""

    code = "emulator-missing"


class NotEmulatedError(EmulationError):
    """No processor of QEMU's user mode or no Debian release matches the board."""

    code = "emulation-unsupported"


class UserlandError(EmulationError):
    """Debian's packages could not be fetched or unpacked."""

    code = "emulation-userland"


class MirrorUpdatingError(UserlandError):
    """The mirror's files are inconsistent while it is being updated."""


_V8_0 = "fp asimd evtstrm crc32 cpuid"
_V8_2 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"  # with dotprod
)
_V7 = "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm"


@dataclass(frozen=True)
class QemuCpu:
    """One processor as QEMU names it.

    part, variant, revision: of Arm's identification register
    features: as the kernel lists them
    architecture: 7 or 8
    """

    name: str
    machine: str
    part: str
    variant: str
    revision: int
    features: str
    architecture: int = 8


# Identification: the "Main ID Register" of each core's technical reference manual. The 64-bit ones stand for the boards
# named; Debian's 32-bit QEMU has no 64-bit core, so a 32-bit system is emulated on the newest ARMv7 one.
CPUS = {
    cpu.name: cpu
    for cpu in (
        QemuCpu("cortex-a53", "aarch64", "0xd03", "0x0", 4, _V8_0),  # Raspberry Pi 3, Zero 2 W
        QemuCpu("cortex-a57", "aarch64", "0xd07", "0x1", 0, _V8_0),  # Jetson Nano
        QemuCpu("cortex-a72", "aarch64", "0xd08", "0x0", 3, _V8_0),  # Raspberry Pi 4
        QemuCpu("cortex-a76", "aarch64", "0xd0b", "0x4", 1, _V8_2),  # Raspberry Pi 5
        QemuCpu("cortex-a7", "armv7l", "0xc07", "0x0", 5, _V7, 7),  # Raspberry Pi 2
        QemuCpu("cortex-a15", "armv7l", "0xc0f", "0x2", 1, _V7, 7),
    )
}


def cpu_for(profile: Profile, name: str | None = None) -> QemuCpu:
    """The processor to emulate for a board, or the named one. Raises NotEmulatedError."""
    if name is not None:
        names = [cpu.name for cpu in CPUS.values() if cpu.machine == profile.arch]
        if name in names:
            return CPUS[name]
        why = "QEMU's 'max' gives wrong INT8 numbers without an error" if name == "max" else f"'{name}' is not emulated"
        raise NotEmulatedError(f"{why} on {profile.arch}", do=f"Name one of {', '.join(names)}")
    exact = CPUS.get(profile.core.type)
    if exact is not None and exact.machine == profile.arch:
        return exact
    if profile.arch == "armv7l":
        return CPUS["cortex-a15"]
    dotprod = {"dotprod", "asimddp", "sdot"} & set(profile.core.simd)
    return CPUS["cortex-a76" if dotprod else "cortex-a72"]


def show(folder: Path, cpu: QemuCpu, *, cores: int = 1, model: str = "") -> None:
    """Write `proc` and `sys` below the folder. model: for /proc/device-tree/model."""
    (folder / "proc" / "device-tree").mkdir(parents=True)
    (folder / "proc" / "device-tree" / "model").write_text(f"{model or 'an emulated board'}\0", encoding="utf-8")
    facts = {
        "BogoMIPS": "108.00",
        "Features": cpu.features,
        "CPU implementer": "0x41",
        "CPU architecture": cpu.architecture,
        "CPU variant": cpu.variant,
        "CPU part": cpu.part,
        "CPU revision": cpu.revision,
    }
    lines = "".join(f"{name}\t: {value}\n" for name, value in facts.items())
    cpuinfo = "".join(f"processor\t: {index}\n{lines}\n" for index in range(cores))
    (folder / "proc" / "cpuinfo").write_text(cpuinfo)
    system = folder / "sys" / "devices" / "system" / "cpu"
    every = "0" if cores == 1 else f"0-{cores - 1}"
    files = {"possible": every, "present": every, "online": every, "kernel_max": "255"}
    for index in range(cores):
        topology = {"physical_package_id": "0", "core_id": str(index)}
        topology |= dict.fromkeys(("core_siblings_list", "package_cpus_list", "cluster_cpus_list"), every)
        files |= {f"cpu{index}/topology/{name}": text for name, text in topology.items()}
        files |= {f"cpu{index}/cpufreq/cpuinfo_{edge}_freq": khz for edge, khz in _CLOCKS_KHZ.items()}
    for name, text in files.items():
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text(f"{text}\n")


# Programs order cores by these; nothing is timed under emulation.
_CLOCKS_KHZ = {"min": "600000", "max": "1500000"}


# suite -> CPython and glibc of that Debian release, which Raspberry Pi OS of the same name is built on
_SUITES = {"bookworm": ("3.11", "2.36"), "trixie": ("3.13", "2.41")}
# what `uname -m` says -> Debian's name of the architecture, the folder of its libraries, the emulator
_MACHINES = {
    "aarch64": ("arm64", "aarch64-linux-gnu", "qemu-aarch64"),
    "armv7l": ("armhf", "arm-linux-gnueabihf", "qemu-arm"),
}


@dataclass(frozen=True)
class Image:
    """A Debian release on one kind of ARM. suite: `bookworm`, `trixie`. machine: of `uname -m`."""

    suite: str
    machine: str

    @property
    def python(self) -> str:
        return _SUITES[self.suite][0]

    @property
    def glibc(self) -> str:
        return _SUITES[self.suite][1]

    @property
    def architecture(self) -> str:
        """`arm64` or `armhf`."""
        return _MACHINES[self.machine][0]

    @property
    def libraries(self) -> str:
        """The folder of libraries below /usr/lib."""
        return _MACHINES[self.machine][1]

    @property
    def emulator(self) -> str:
        return _MACHINES[self.machine][2]

    def __str__(self) -> str:
        return f"Debian {self.suite} {self.machine}, Python {self.python}"


def image_for(profile: Profile) -> Image:
    """Raises NotEmulatedError."""
    system = profile.os
    if profile.arch not in _MACHINES:
        raise NotEmulatedError(
            f"{profile.arch} cannot be emulated",
            where=profile.name,
            do=f"Emulated are {' and '.join(_MACHINES)}; on {profile.arch} run the check without --emulate",
        )
    for suite, (python, glibc) in _SUITES.items():
        if _parts(system.python)[:2] == _parts(python) and _parts(glibc) <= _parts(system.glibc):
            return Image(suite, profile.arch)
    known = ", ".join(f"Python {python} with glibc {glibc} ({suite})" for suite, (python, glibc) in _SUITES.items())
    raise NotEmulatedError(
        f"no Debian release matches {system.name or 'a system'} (Python {system.python or 'none'}, glibc "
        f"{system.glibc or 'none'})",
        where=profile.name,
        do=f"Emulated are {known}; run the check without --emulate",
    )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
