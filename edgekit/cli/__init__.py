"""The command line: one file a command group, each thin: parse, call, print.

Nothing here is imported by other rooms.
"""

from __future__ import annotations

from edgekit.cli.main import main

__all__ = ["main"]
