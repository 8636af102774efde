"""An ARM board without the board: Debian's user land under QEMU's user mode, to prove that a bundle installs and
agrees.

    # Replayed(ok=True, runtime="litert 2.3.0", where="emulated", ...)
    found = replay("camera.ekb", load("raspberry-pi-4"))

board, machine   the processor, what it shows, which Debian stands for it, and running its Python
userland         Debian's packages in a folder
replay, guest    the wheelhouse by the board's own pip; golden answers compared, there and here

Everything here was under QEMU and not on hardware, and says so.
"""

from __future__ import annotations

from edgekit.emulation.board import CPUS, Cpu, Image, cpu_for, image_for
from edgekit.emulation.errors import EmulationError, EmulatorMissingError, NotEmulatedError, UserlandError
from edgekit.emulation.replay import GoldenVerdict, InstallError, Package, Replayed, replay

__all__ = [
    "CPUS",
    "Cpu",
    "EmulationError",
    "EmulatorMissingError",
    "GoldenVerdict",
    "Image",
    "InstallError",
    "NotEmulatedError",
    "Package",
    "Replayed",
    "UserlandError",
    "cpu_for",
    "image_for",
    "replay",
]
