"""The error tree of shipping. Each code is a refusal that a script may act upon."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError


class ShippingError(EdgekitError):
    """A package for a board cannot be made, or cannot be put there."""

    code = "shipping"


class NoWheelError(ShippingError):
    """A requirement has neither a wheel for the board nor a Debian package.
    The board's Python, glibc and machine decide."""

    code = "no-wheel"


class WheelDownloadError(ShippingError):
    """The package index cannot be reached, or gave bytes that are not those it promised."""

    code = "download"


class DebError(ShippingError):
    """A .deb cannot be made here."""

    code = "deb"


class SshError(ShippingError):
    """The board cannot be reached over SSH, or a command there failed."""

    code = "ssh"


class BoardRefusedError(ShippingError):
    """The machine at the other end is not the board that the package is for.
    Said before anything is copied."""

    code = "board-refused"
