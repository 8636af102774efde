"""The host side's error tree."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = ["DemoError", "OutputError", "PackagingError", "PythonVersionError"]


class PackagingError(EdgekitError):
    """A bundle cannot be written or signed."""

    code = "packaging"


class OutputError(EdgekitError):
    """Where the result should go cannot be written."""

    code = "output"


class PythonVersionError(EdgekitError):
    """This Python is older than the command needs."""

    code = "python-version"


class DemoError(EdgekitError):
    """The demo's real models or photos are not there."""

    code = "demo"
