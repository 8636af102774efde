"""What can stand in the way of emulation.
That a bundle fails under it is no error of these: it is a result."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError


class EmulationError(EdgekitError):
    """Something could not be run under QEMU."""

    code = "emulation"


class EmulatorMissingError(EmulationError):
    """The emulator, or a tool beside it, is not installed.
    `do` has the command that installs it."""

    code = "emulator-missing"


class NotEmulatedError(EmulationError):
    """A board or a processor that QEMU's user mode and Debian's packages cannot stand for."""

    code = "emulation-unsupported"


class UserlandError(EmulationError):
    """Debian's packages could not be fetched or unpacked.
    The network, the mirror or the disk failed."""

    code = "emulation-userland"


class MirrorUpdatingError(UserlandError):
    """The mirror's own files contradict each other, as they do while it is being updated."""
