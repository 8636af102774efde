"""edgekit bench: time a bundle on this machine, under the load that it will get, and compare with an earlier time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.bench_text import bench_lines, comparison_lines
from edgekit.cli.deploy import identity, port
from edgekit.cli.options import (
    BUNDLE,
    PATH,
    FiniteRange,
    allow_unsigned,
    as_json,
    budget_ms,
    budget_of,
    engine,
    options_given,
    pin,
    print_json,
    threads,
    trust,
    use,
)
from edgekit.cli.output import refuse_unwritable, say
from edgekit.cli.progress import shown
from edgekit.cli.secret_options import secret

if TYPE_CHECKING:
    from edgekit.bench import Load, Setup

__all__ = ["bench"]

LEAST_S = 1.0
"""Of a run whose length nobody asked for: 200 requests of a small network last a few milliseconds, and tell nothing."""


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="BUNDLE|ROOT")
@click.option(
    "-n",
    "runs",
    type=click.IntRange(10),
    metavar="N",
    help="Timed requests. Default: 200, and a second's worth at least.",
)
@click.option("--duration-s", type=FiniteRange(0.1, 86_400), metavar="S", help="Ask for so long, instead of -n.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Callers that each wait for their answer. Default: 1.",
)
@click.option(
    "--rate",
    type=FiniteRange(0.001, 1_000_000),
    metavar="R",
    help="Ask R times a second whether or not there are answers yet. A latency then counts from the moment at which "
    "the request was meant to be made.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "fixed"]),
    help="With --rate: at random moments, or evenly. Default: poisson.",
)
@budget_ms
@use
@click.option(
    "--batch", type=click.Choice(["on", "off"]), help="Whether waiting requests may share an inference. Default: on."
)
@click.option("--cache", is_flag=True, help="Leave the cache on: after the first round, every input is a hit.")
@engine
@threads
@pin
@click.option(
    "--compare",
    "old",
    type=PATH,
    metavar="RECORD",
    help="Compare with an earlier record; exits 1 where conditions differ.",
)
@click.option("-o", "--output", type=PATH, metavar="RECORD", help="Write the record there, as JSON.")
@click.option("--on", metavar="USER@HOST", help="Time it on a board that `edgekit deploy` has put it on, over ssh.")
@port
@identity
@click.option("--prefix", default="", metavar="DIR", help="With --on: where `edgekit deploy --prefix` put it there.")
@trust
@allow_unsigned
@secret
@as_json
def bench(
    bundle: Path,
    as_json: bool,
    old: Path | None,
    output: Path | None,
    **asked: Any,
) -> int:
    """Open BUNDLE, or the active one of an install ROOT, ask for its golden inputs, and print latencies by stage, cold
    start, memory and conditions.

    \b
    edgekit bench net.ekb                                 # one caller, 200 requests, cache off
    edgekit bench net.ekb --concurrency 8 --duration-s 10
    edgekit bench net.ekb --rate 100 --budget-ms 20 -o before.json
    edgekit bench net.ekb --rate 100 --budget-ms 20 --compare before.json
    edgekit bench net.ekb --on pi@raspberrypi -o board.json     # the board's own record
    """
    board = _Board(*(asked.pop(name) for name in ("on", "port", "identity", "prefix")))
    if board.to is None and (board.port or board.identity or board.prefix):
        raise click.UsageError("--port, --identity and --prefix go with --on.")
    who = {name: asked.pop(name) for name in ("trust", "allow_unsigned", "secret")}
    if board.to is not None and (idle := options_given(*who)):
        raise click.UsageError(f"{', '.join(idle)} is for this machine; with --on the board finds its own keys.")
    if output is not None:
        refuse_unwritable(output)
    setup, load = _what(asked | who)
    from edgekit.bench import compare, measure, read_record

    then = read_record(old) if old is not None else None
    if board.to is not None:
        found = _there(bundle, board, asked)
    else:
        if then is not None:
            _refuse_early(old, then, load)
        with shown() as progress:
            found = measure(bundle, setup, load, progress=progress)
    compared = compare(then, found) if then is not None else None
    if compared is not None:
        found["compared"] = compared.as_json()
    code = _told(found, lambda told: [*bench_lines(told), *comparison_lines(old, compared)], output, as_json)
    return 1 if compared is not None and compared.refused else code


@dataclass(frozen=True)
class _Board:
    """Where --on is to time it; to: None for here."""

    to: str | None
    port: int | None
    identity: Path | None
    prefix: str


def _there(bundle: Path, board: _Board, asked: dict[str, Any]) -> dict[str, Any]:
    """The record of the same command on the board."""
    from edgekit.shipping import Address, bench_on

    names = {"runs": "-n", "cache": "--cache"}
    words: list[str] = []
    for name, value in asked.items():
        if value is None or value is False:
            continue
        option = names.get(name, f"--{name.replace('_', '-')}")
        words += [option] if value is True else [option, str(value)]
    assert board.to is not None
    return bench_on(Address(board.to, board.port, board.identity), bundle, tuple(words), board.prefix)


def _what(asked: dict[str, Any]) -> tuple[Setup, Load]:
    """(Setup, Load) of the options; a usage error where two of them contradict each other."""
    if asked["rate"] is not None and asked["concurrency"] is not None:
        raise click.UsageError(
            "--rate asks whether or not there are answers yet, --concurrency waits for them: pass one."
        )
    if asked["arrivals"] is not None and asked["rate"] is None:
        raise click.UsageError("--arrivals goes with --rate.")
    if asked["runs"] is not None and asked["duration_s"] is not None:
        raise click.UsageError("Pass either -n or --duration-s.")
    budget = budget_of(asked["use"], asked["budget_ms"])
    from edgekit.bench import Load, Setup

    runs = asked["runs"] if asked["runs"] is not None or asked["duration_s"] is not None else 200
    load = Load(
        concurrency=asked["concurrency"] or 1,
        rate=asked["rate"],
        arrivals=asked["arrivals"] or "poisson",
        requests=runs,
        duration_s=asked["duration_s"],
        least_s=LEAST_S if asked["runs"] is None and asked["duration_s"] is None else 0.0,
        budget_ms=budget,
    )
    batching = None if asked["batch"] is None else asked["batch"] == "on"
    names = ("engine", "threads", "cache", "secret", "trust", "allow_unsigned", "pin")
    return Setup(batching=batching, **{name: asked[name] for name in names}), load


def _refuse_early(old: Path | None, then: dict[str, Any], load: Load) -> None:
    """Before anything is timed: what differs already now will not be alike afterwards."""
    from edgekit.bench import ConditionsDifferError, conditions, known_before, load_words

    differing = known_before(then, conditions(), load_words(load))
    if differing:
        raise ConditionsDifferError(
            f"conditions differ: {'; '.join(map(str, differing))}",
            where=str(old),
            do="Ask as it was asked then, or make a new record here",
        )


def _told(
    found: dict[str, Any], lines: Callable[[dict[str, Any]], list[str]], output: Path | None, as_json: bool
) -> int:
    """Printed, then written: a disk that is full by now costs the file and not the figures."""
    if as_json:
        print_json(found)
    else:
        for line in lines(found):
            say(line)
    if output is not None:
        from edgekit.errors import OutputError

        try:
            _write(output, found)
        except OutputError as error:
            click.echo(f"error: {error}", err=True)  # stdout has its one object
            return 1
    return 0


def _write(output: Path, found: dict[str, Any]) -> None:
    """Raises OutputError. A file is there whole or not at all; a pipe or a device is written to as it is."""
    from edgekit.errors import OutputError
    from edgekit.packaging.writer import write_whole

    text = json.dumps(found, indent=2) + "\n"
    try:
        if output.exists() and not output.is_file():
            output.write_text(text, encoding="utf-8")
            return
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
    write_whole(output.resolve(), text.encode(), "the record")
