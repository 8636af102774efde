"""An ARM board without the board: Debian's user land under QEMU's user mode, to prove that a bundle installs and agrees.

    found = replay("camera.ekb", load("raspberry-pi-4"))       # Replayed(ok=True, runtime="litert 2.3.0", where="emulated", ...)

image, packages, userland   which Debian stands for a board, and its files in a folder
board, machine              the processor, the /proc and /sys that it shows, and running its Python
installing                  the wheelhouse, by the board's own pip
guest, tasks, replay        golden answers compared, there and here

Everything here was under QEMU and not on hardware, and says so.
"""

from __future__ import annotations

from edgekit.emulation.board import CPUS, Cpu, cpu_for
from edgekit.emulation.errors import EmulationError, EmulatorMissingError, NotEmulatedError, UserlandError
from edgekit.emulation.image import Image, image_for
from edgekit.emulation.installing import InstallError
from edgekit.emulation.replay import GoldenVerdict, Replayed, replay
from edgekit.emulation.tasks import Package

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
