"""What a command prints, and whether a file can be written, asked before the work whose result goes there.

Rule: a line with words of a bundle, a model or a folder in it is printed by `say`: what cannot be seen, or turns the
writing round, is printed escaped.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

__all__ = ["refuse_unwritable", "say"]


def say(line: str, *, err: bool = False) -> None:
    """A line as a person may be shown it."""
    from edgekit_runtime.errors import visible

    click.echo(visible(line), err=err)


def refuse_unwritable(output: Path, option: str = "-o") -> None:
    """Before minutes of work, not after them. Raises OutputError."""
    from edgekit.errors import OutputError

    folder = output.parent
    if output.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = "there is no such folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = "its folder may not be written to"
    else:
        return
    raise OutputError(f"cannot be written: {why}", where=str(output), do=f"Name another file with {option}")
