"""Errors of the workstation and the host, and the line that prints an error."""

from __future__ import annotations

from edgekit_runtime.errors import EdgekitError

__all__ = [
    "ComparedFileError",
    "DemoError",
    "KeysError",
    "OutputError",
    "PackagingError",
    "PythonVersionError",
    "error_line",
]


class PackagingError(EdgekitError):
    """A bundle cannot be written or signed."""

    code = "packaging"


class ComparedFileError(EdgekitError):
    """A file given with --compare is no file of the model that is built."""

    code = "compared-file"


class OutputError(EdgekitError):
    """Where the result should go cannot be written."""

    code = "output"


class PythonVersionError(EdgekitError):
    """This Python is older than the command needs."""

    code = "python-version"


class DemoError(EdgekitError):
    """The demo's real models or photos are not there."""

    code = "demo"


class KeysError(EdgekitError):
    """A key cannot be made, found or used, or a root.json cannot be changed as asked."""

    code = "keys"


def error_line(error: EdgekitError) -> str:
    """The line on stderr, which ends with the code."""
    return f"error: {error} [{error.code}]"
