"""How commands print and write their results.

Rules:
- text from a bundle, a model or a folder is printed by `say`, which escapes control and bidirectional characters;
- whether a file can be written is checked before the work whose result goes there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from edgekit.packaging.output_errors import OutputError
from edgekit_runtime.system.errors import visible
from edgekit_runtime.system.strict_json import finite_json


def say(line: str, *, err: bool = False) -> None:
    """Print the line with unsafe characters escaped."""
    click.echo(visible(line), err=err)


def print_json(value: dict[str, Any]) -> None:
    """Print one line, with null for NaN and infinity."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # rare, so that outputs of a million numbers are not walked through for nothing
        text = json.dumps(finite_json(value), allow_nan=False)
    click.echo(text)


def print_result(record: dict[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print the record as JSON, or else the lines."""
    if as_json:
        print_json(record)
        return
    for line in lines:
        say(line)


def refuse_unwritable(output: Path, option: str = "-o") -> None:
    """Raises OutputError before the work, not after it."""
    folder = output.parent
    if output.is_dir():
        why = "it is a directory"
    elif not folder.is_dir():
        why = "no such directory"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = "its directory is not writable"
    else:
        return
    raise OutputError(f"cannot be written: {why}", where=str(output), do=f"Name another file with {option}")


def write_json(output: Path, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write a record: a file atomically, a pipe or a device directly. Raises OutputError."""
    from edgekit.packaging.writer import write_whole

    text = json.dumps(value, indent=indent) + "\n"
    try:
        if output.exists() and not output.is_file():
            output.write_text(text, encoding="utf-8")
            return
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
    write_whole(output.resolve(), text.encode(), "the record")
