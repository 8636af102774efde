"""edgekit status and rollback: what is installed in a root, and which generation is active."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.cli.options import PATH, ROOT, as_json, print_json, trust

if TYPE_CHECKING:
    from edgekit_runtime.install import Generation, Status


@click.command()
@click.argument("place", type=PATH, metavar="[ROOT]", required=False)
@click.option("--root", type=PATH, metavar="DIR", help="The same as ROOT.")
@as_json
def status(place: Path | None, root: Path | None, as_json: bool) -> None:
    """Show the active version of an install ROOT, where a rollback leads, and the last install.

    Puts in order what a power cut left, and removes what nothing needs any more, as an install and a rollback do: the
    active and the previous version stay, the one on trial, what an application has open, and the download of an
    interrupted install. Exits 0 wherever the root can be read.

    \b
    edgekit status /var/lib/edgekit/camera
    """
    from edgekit_runtime.install import status as found_in

    named = place or root
    if named is None or (place and root):
        raise click.UsageError("Name one install root: ROOT, or --root DIR.")
    found = found_in(named)
    if as_json:
        print_json(found.as_json())
        return
    for line in _status_lines(found):
        click.echo(line)


def _status_lines(found: Status) -> Iterator[str]:
    from edgekit_runtime.install.reading import in_words
    from edgekit_runtime.install.trial import TrialTerms

    yield str(found.root)
    if found.current is None and found.refusal is None:
        yield "  nothing answers here yet"
    elif found.current is None:
        yield "  nothing answers here"
    else:
        yield f"  answers    {_label(found.current)}, {found.state}"
        yield f"  trust      {found.current.signature_text}"
    if found.refusal is not None:
        yield f"  BUT        {'it does not open: ' if found.current is not None else ''}{found.refusal}"
    if found.seen is not None:
        failed = f", {found.failed_starts} failed start{'s' * (found.failed_starts > 1)}" if found.failed_starts else ""
        asked, seen = TrialTerms(), found.seen
        counted = f"{seen.answers} of {asked.answers} answers, {seen.seconds:.0f} of {asked.seconds:.0f} s"
        yield f"  trial      {counted}{failed}"
    if found.previous is not None:
        yield f"  rollback   to {_label(found.previous)}{', UNSIGNED' if found.previous.unsigned else ''}"
        if found.previous_refusal is not None:
            yield f"  BUT        it does not open: {found.previous_refusal}"
    if found.rollout_seq is not None:
        yield f"  accepts    rollout_seq {found.rollout_seq + 1} and higher"
    for file in found.trust:
        yield f"  trusts     {in_words(file)}"
    if found.profile is not None:
        yield f"  board      {found.profile}, as `edgekit install --profile` said"
    if found.unfinished is not None:
        doing = "works now" if found.busy else "is not finished: the same install continues it, another one removes it"
        yield f"  install    of {found.unfinished.source}: {found.unfinished.state}; it {doing}"
    if found.in_use:
        yield f"  in use     {', '.join(found.in_use)}: removed once the application that has it open closes it"
    if found.freed is not None:
        yield f"  freed      {found.freed['removed']} removed, {found.freed['bytes']:,} bytes, at {found.freed['at']}"
    if found.failure is not None:
        yield f"  refused    {found.failure.at}: {found.failure.what} ({found.failure.code})"


def _label(made: Generation) -> str:
    return f"generation {made.number}: {made.name} version {made.version} ({made.recipe}, {made.bundle[:12]})"


@click.command()
@ROOT
@click.option(
    "--to",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Go to generation N, older or newer, as `edgekit status` numbers them. Default: the one before.",
)
@trust
@as_json
def rollback(root: Path, number: int | None, trust: tuple[Path, ...], as_json: bool) -> None:
    """Go back to the previous generation, or give up the one on trial.

    With --to, go to another generation that is still here.

    \b
    edgekit rollback --root /var/lib/edgekit/camera
    edgekit rollback --root /var/lib/edgekit/camera --to 4
    """
    from edgekit_runtime.install import activate
    from edgekit_runtime.install import rollback as switch_back

    if number is not None:
        print_switch(as_json, "activated", activate(root, number, trust=trust), "answers")
    else:
        print_switch(as_json, "rolled-back", switch_back(root, trust=trust), "answers again")


def print_switch(as_json: bool, event: str, made: Generation | None, does: str) -> None:
    """Print which generation is active from now on; None where there was none before."""
    if as_json:
        print_json({"event": event, "generation": made.as_json() if made else None})
        return
    if made is None:
        click.echo("nothing answers: there was no generation before")
        return
    click.echo(f"generation {made.number} {does}: {made.name} version {made.version}")
    click.echo(made.signature_text)
