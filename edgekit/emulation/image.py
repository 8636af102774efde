"""Which Debian stands for a board's operating system.

    image_for(load("raspberry-pi-4"))        # Image(suite="bookworm", machine="aarch64")

Rules: the Python must be the board's, for wheels depend on it, and the glibc no newer than the board's, or a wheel that
the board cannot load would load here. What no Debian release has is refused, never approximated. Debian's armhf is
ARMv7: it does not stand for ARMv6 (Raspberry Pi 1 and Zero).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.emulation.errors import NotEmulatedError
from edgekit_profiles import Profile

__all__ = ["Image", "image_for"]

# suite -> CPython and glibc of that Debian release, which Raspberry Pi OS of the same name is built on
_SUITES = {"bookworm": ("3.11", "2.36"), "trixie": ("3.13", "2.41")}
# what `uname -m` says -> Debian's name of the architecture, the folder of its libraries, the emulator
_MACHINES = {
    "aarch64": ("arm64", "aarch64-linux-gnu", "qemu-aarch64"),
    "armv7l": ("armhf", "arm-linux-gnueabihf", "qemu-arm"),
}


@dataclass(frozen=True)
class Image:
    """A Debian release on one kind of ARM. suite: `bookworm` or `trixie`. machine: `aarch64` or `armv7l`."""

    suite: str
    machine: str

    @property
    def python(self) -> str:
        """CPython, as `3.11`."""
        return _SUITES[self.suite][0]

    @property
    def glibc(self) -> str:
        return _SUITES[self.suite][1]

    @property
    def architecture(self) -> str:
        """As Debian calls it: `arm64` or `armhf`."""
        return _MACHINES[self.machine][0]

    @property
    def libraries(self) -> str:
        """The folder of this architecture's libraries below /usr/lib."""
        return _MACHINES[self.machine][1]

    @property
    def emulator(self) -> str:
        return _MACHINES[self.machine][2]

    def __str__(self) -> str:
        return f"Debian {self.suite} {self.machine}, Python {self.python}"


def image_for(profile: Profile) -> Image:
    """Raises NotEmulatedError, saying what nothing stands for."""
    system = profile.os
    if profile.arch not in _MACHINES:
        raise NotEmulatedError(
            f"no emulation stands for {profile.arch}",
            where=profile.name,
            do=f"Emulated are {' and '.join(_MACHINES)}; on {profile.arch} run the check without --emulate",
        )
    for suite, (python, glibc) in _SUITES.items():
        if _parts(system.python)[:2] == _parts(python) and _parts(glibc) <= _parts(system.glibc):
            return Image(suite, profile.arch)
    known = ", ".join(f"Python {python} with glibc {glibc} ({suite})" for suite, (python, glibc) in _SUITES.items())
    raise NotEmulatedError(
        f"no Debian release stands for {system.name or 'a system'} (Python {system.python or 'none'}, glibc "
        f"{system.glibc or 'none'})",
        where=profile.name,
        do=f"Emulated are {known}; run the check without --emulate",
    )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
