"""`edgekit run --fill-cache`: answers on disk before the application asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import PATH, FiniteRange, print_json
from edgekit.cli.output import say
from edgekit.cli.progress import shown

__all__ = ["fill_cache", "fill_options"]

_FILE = click.option(
    "--fill-cache",
    type=PATH,
    metavar="FILE",
    help="Keep the answers in FILE instead of printing them; an application finds them there with "
    "CacheOptions(disk=FILE). Run it again after an interruption or with more files: it computes what is missing.",
)
_SIZE = click.option(
    "--disk-cache-mb",
    type=FiniteRange(1, 1_000_000),
    metavar="MB",
    help="With --fill-cache: how large FILE may become, as CacheOptions(disk_mb=MB) in the application. Default: 256.",
)


def fill_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --fill-cache and --disk-cache-mb."""
    return _FILE(_SIZE(command))


def fill_cache(
    bundle: Path, inputs: Sequence[str], file: Path, max_mb: float, opened: dict[str, Any], *, as_json: bool
) -> int:
    """Fill, report, and return the exit code: 1 if a file could not be read or an answer is not on disk."""
    from edgekit.filling import fill

    try:
        with shown() as progress:
            found = fill(bundle, inputs, file, max_mb=max_mb, progress=progress, opened=opened)
    except KeyboardInterrupt:
        if not as_json:
            click.echo("the answers so far are kept: the same command continues from there", err=True)
        raise
    if as_json:
        print_json(found)
    else:
        _tell(found, max_mb)
    return 1 if found["unreadable"] or found["full"] or found["not_kept"] else 0


def _tell(found: dict[str, Any], max_mb: float) -> None:
    rate = found["made"] / found["seconds"] if found["seconds"] else 0.0
    click.echo(
        f"{found['disk_cache']}: {found['made']:,} answers made, {found['there']:,} were there, "
        f"{found['bytes'] / 2**20:.1f} MiB, {found['seconds']:.1f} s, {rate:.1f}/s with {found['recipe']} on "
        f"{found['engine']}"
    )
    for one in found["unreadable"]:
        say(f"left out: {one['file']}: {one['why']}", err=True)
    if found["too_large"]:
        click.echo(
            f"{found['too_large']:,} answers are not kept: one may take a sixteenth of the bound, "
            f"{found['largest_mb']:g} MiB. Pass --disk-cache-mb {max(found['needs_mb'], math.ceil(max_mb)):g} or "
            "more, here and as disk_mb of CacheOptions",
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
            "Pass a larger --disk-cache-mb, here and as disk_mb of CacheOptions",
            err=True,
        )
