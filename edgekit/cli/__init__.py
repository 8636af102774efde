"""The command line: one file a command group, each thin: parse, call, print.

Other packages import nothing from here.
"""

from __future__ import annotations

from edgekit.cli.main import main

__all__ = ["main"]
