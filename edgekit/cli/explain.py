"""edgekit explain: what a code means, or a message of a loader or converter, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from edgekit.cli.options import as_json, print_json

if TYPE_CHECKING:
    from edgekit.checking import Entry

__all__ = ["explain"]


@click.command()
@click.argument("what", nargs=-1, metavar="[CODE|MESSAGE]")
@as_json
def explain(what: tuple[str, ...], as_json: bool) -> None:
    """Explain CODE, or the text of an error MESSAGE (quote it). Without either: list the codes."""
    from edgekit.checking import entries
    from edgekit.checking.page import TITLES

    text = " ".join(what).strip()
    if text:
        found = _found(text)
        if as_json:
            print_json({"entries": [one.as_json() for one in found]})
            return
        for one in found:
            for line in _lines(one):
                click.echo(line)
        return
    every = list(entries().values())
    if as_json:
        print_json({"entries": [one.as_json() for one in every]})
        return
    width = max(len(one.code) for one in every)
    for kind, title in TITLES.items():
        click.echo(f"{title}:")
        for one in every:
            if one.kind == kind:
                click.echo(f"  {one.code:<{width}}  {one.what}")


def _found(text: str) -> list[Entry]:
    """By code; else by what is in a message. Raises UnexplainedError."""
    from edgekit.checking import entries, entry, matching

    if text in entries():
        return [entry(text)]
    found = matching(text)
    if found:
        return found[:1]
    if len(text.split()) == 1:
        return [entry(text)]
    from edgekit.checking.catalogue import UnexplainedError

    raise UnexplainedError(
        "no entry knows this message", do="Quote the line that names the cause; `edgekit explain` lists all codes"
    )


def _lines(one: Entry) -> Iterator[str]:
    yield f"{one.code}: {one.what}"
    yield f"  why     {one.why}"
    yield f"  do      {one.do}"
    for source in one.sources:
        yield f"  source  {source}"
