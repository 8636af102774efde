"""The command line: one thin file a command group: parse, call, print."""

from __future__ import annotations

from edgekit.cli.main import main

__all__ = ["main"]
