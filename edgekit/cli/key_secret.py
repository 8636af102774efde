"""edgekit keys secret: a key to encrypt bundles with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.cli.key_options import folder, folder_of
from edgekit.cli.options import as_json, print_json

if TYPE_CHECKING:
    from edgekit.keys.secret import SecretEntry

__all__ = ["print_secrets", "secret"]


@click.command()
@click.argument("name")
@folder
@as_json
def secret(name: str, folder: Path | None, as_json: bool) -> None:
    """Make NAME.secret, a key to encrypt bundles with; the boards that shall run them need the same file.

    Whoever has it can read those bundles, and without it nobody can, you included: keep a copy where it is safe.

    \b
    edgekit keys secret camera
    """
    from edgekit.keys.secret import create_secret

    made = create_secret(folder_of(folder), name)
    if as_json:
        print_json({"name": made.name, "id": made.id, "file": str(made.path)})
        return
    click.echo(f"secret '{name}' {made.id:.12}")
    click.echo(f"  file     {made.path}   who has it can read the bundles; keep a copy")
    click.echo(f"next: edgekit build ... --encrypt {made.path}")
    click.echo("      on each board: the same file as /etc/edgekit/secret or ~/.config/edgekit/secret, mode 0600")


def print_secrets(entries: Sequence[SecretEntry]) -> None:
    if not entries:
        return
    click.echo("secrets, which encrypt bundles")
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        click.echo(f"  {entry.name:<{width}}  {entry.id[:16] or entry.trouble}")
