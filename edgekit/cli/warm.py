"""edgekit warm: answer a folder ahead of time, so that the application finds the answers on disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import BUNDLE, PATH, FiniteRange, allow_unsigned, as_json, engine, print_json, threads, trust
from edgekit.cli.output import say
from edgekit.cli.progress import shown
from edgekit.cli.secret_options import secret

__all__ = ["warm"]


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--disk-cache",
    "file",
    type=PATH,
    required=True,
    metavar="FILE",
    help="The file to fill: what the application passes as open_bundle(..., disk_cache=FILE).",
)
@click.option(
    "--disk-cache-mb",
    "max_mb",
    type=FiniteRange(1, 1_000_000),
    default=256.0,
    show_default=True,
    metavar="MB",
    help="How large it may become: what the application passes as disk_cache_mb.",
)
@engine
@threads
@trust
@allow_unsigned
@secret
@as_json
def warm(bundle: Path, folder: Path, as_json: bool, **options: Any) -> int:
    """Answer every picture and array in DIR with BUNDLE and keep the answers on disk.

    An application that opens the same bundle with the same file finds them there, by the bytes of what it asks. What is
    there already is not computed again: run it again after an interruption, or with more files.
    Exits 1 when a file could not be read or an answer is not on disk afterwards.
    """
    import edgekit.warming

    filling = edgekit.warming.Filling(**options)
    try:
        with shown() as progress:
            found = edgekit.warming.warm(bundle, folder, filling, progress)
    except KeyboardInterrupt:
        if not as_json:
            click.echo("what was answered is kept: run the same command again, and it goes on from there", err=True)
        raise
    if as_json:
        print_json(found)
    else:
        _tell(found, filling.max_mb)
    return 1 if found["unreadable"] or found["full"] or found["not_kept"] else 0


def _tell(found: dict[str, Any], max_mb: float) -> None:
    rate = found["made"] / found["seconds"] if found["seconds"] else 0.0
    click.echo(
        f"{found['disk_cache']}: {found['made']:,} answers made, {found['there']:,} were there, "
        f"{found['bytes'] / 2**20:.1f} MiB, {found['seconds']:.1f} s, {rate:.1f}/s with {found['recipe']} on {found['engine']}"
    )
    for one in found["unreadable"]:
        say(f"left out: {one['file']}: {one['why']}", err=True)
    if found["too_large"]:
        click.echo(
            f"{found['too_large']:,} answers are not kept: one may take a sixteenth of the bound, {found['largest_mb']:g} MiB. "
            f"Pass --disk-cache-mb {max(found['needs_mb'], math.ceil(max_mb)):g} or more, here and as disk_cache_mb to open_bundle",
            err=True,
        )
    if lost := found["not_kept"] - found["too_large"]:
        click.echo(
            f"{lost:,} answers are not kept: the file could not be written for a while. Run the same command again",
            err=True,
        )
    if found["full"]:
        click.echo(
            f"{max_mb:g} MiB are too few: answers push each other out; {found['left']:,} files were not tried. "
            "Pass a larger --disk-cache-mb, here and as disk_cache_mb to open_bundle",
            err=True,
        )
