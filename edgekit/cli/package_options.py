"""Options of what is packed for a board: the same for a folder, a .deb and a push."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from edgekit.cli.options import PATH, allow_unsigned
from edgekit_runtime.engines import ENGINES

__all__ = ["board", "packed_options"]

_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(tuple(ENGINES)),
        help="Default: what installs there.",
    ),
    click.option(
        "--extra",
        "extras",
        type=click.Choice(["image", "telemetry"]),
        multiple=True,
        help="Also what this needs; repeatable.",
    ),
    click.option("--wheel", type=PATH, metavar="WHL", help="edgekit's own wheel. Default: this edgekit."),
    click.option(
        "--trust",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="A root.json, or a public key (PEM; repeatable), that comes along and is trusted there for this model. "
        "Default: what the board trusts.",
    ),
    allow_unsigned,
    click.option("--no-check", is_flag=True, help="Do not ask `edgekit check` first whether it will load there."),
)


def packed_options(service: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--service, --engine, --extra, --wheel, --trust, --allow-unsigned and --no-check. service: what --service does with its CMD."""
    text = f"{service}; {{bundle}}, {{python}} and {{prefix}} stand for what is installed."

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((click.option("--service", metavar="CMD", help=text), *_OPTIONS)):
            command = option(command)
        return command

    return add


def board(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--profile, which names one board and no more. default: what it is where it is left out."""
    return click.option(
        "--profile", multiple=True, callback=_one, metavar="NAME", help=f"The board. Default: {default}."
    )


def _one(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    if len(given) > 1:
        raise click.BadParameter(
            f"a package is for one board, and this names {len(given)}: run it once for each", context, option
        )
    return given[0] if given else None
