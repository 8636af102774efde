"""Every option of every command, as it is spelt: tests/cli/options.txt.

python tests/support/spellings.py             writes the file again, after an option was added
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from edgekit.cli.main import cli

FILE = Path(__file__).parents[1] / "cli" / "options.txt"


def listed() -> str:
    return "\n".join(sorted(_lines(cli, "edgekit", click.Context(cli)))) + "\n"


def _lines(command: click.Command, path: str, context: click.Context) -> Iterator[str]:
    for one in command.params:
        if isinstance(one, click.Option):
            required = " required" if one.required else ""
            yield f"{path} {' '.join(sorted(one.opts, key=len))}{' ...' if one.multiple else ''}{required}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _lines(below, f"{path} {name}", context)


if __name__ == "__main__":
    FILE.write_text(listed(), encoding="utf-8")
