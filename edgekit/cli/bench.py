"""edgekit bench: time a bundle under a load, and compare it with an earlier record."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.bench_text import bench_lines, comparison_lines
from edgekit.cli.deploy import identity, port, prefix
from edgekit.cli.printing import print_result, refuse_unwritable, write_json
from edgekit.cli.progress import console_progress

if TYPE_CHECKING:
    from edgekit.bench.load_generator import Load
    from edgekit.bench.measure import BenchSetup

LEAST_S = 1.0
"""Shortest run of default length: 200 requests of a small network take a few milliseconds, and the noise is larger."""


@click.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="BUNDLE|ROOT")
@click.option(
    "-n",
    "runs",
    type=click.IntRange(10),
    metavar="N",
    help="Timed requests. Default: 200, for at least a second; 20 of a language model.",
)
@click.option(
    "--duration-s", type=opt.FiniteRange(0.1, 86_400), metavar="S", help="Measure for this long, instead of -n."
)
@click.option("--concurrency", type=click.IntRange(1, 1024), metavar="N", help="Concurrent callers. Default: 1.")
@click.option(
    "--rate",
    type=opt.FiniteRange(0.001, 1_000_000),
    metavar="R",
    help="Send R requests a second without waiting for answers. Latency then counts from each request's scheduled "
    "time.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "fixed"]),
    help="With --rate: at random moments, or evenly. Default: poisson.",
)
@opt.budget_ms
@opt.use
@click.option("--batch", type=click.Choice(["on", "off"]), help="Whether waiting requests may be batched. Default: on.")
@click.option("--cache", is_flag=True, help="Leave the cache on: after the first round, every input is a hit.")
@opt.engine()
@opt.threads()
@opt.pin
@click.option(
    "--compare", "old", type=opt.PATH, metavar="RECORD",
    help="Compare with an earlier record; exit 1 if the model, machine or load differs.",
)  # fmt: skip
@opt.output("RECORD", "Write the record there, as JSON.")
@click.option(
    "--on", metavar="USER@HOST", help="Measure over ssh on a board where `edgekit deploy` installed the bundle."
)
@port
@identity
@prefix(help="With --on: the `--prefix` given to `edgekit deploy`.")
@click.option("--engines", is_flag=True, help="Also list every engine tried on this machine, and why one was elected.")
@opt.opening
@opt.as_json
def bench(bundle: Path, as_json: bool, old: Path | None, output: Path | None, **asked: Any) -> int:
    """Measure BUNDLE, or the active one of an install ROOT, on this machine.

    Runs the golden inputs; prints latencies by stage, cold start, memory and conditions.

    \b
    edgekit bench net.ekb                                 # one caller, 200 requests, cache off
    edgekit bench net.ekb --concurrency 8 --duration-s 10
    edgekit bench net.ekb --rate 100 --budget-ms 20 -o before.json
    edgekit bench net.ekb --rate 100 --budget-ms 20 --compare before.json
    edgekit bench net.ekb --engines                       # which engine was elected, and why
    edgekit bench net.ekb --on pi@raspberrypi -o board.json     # measure on the board
    """
    board = _BenchTarget(*(asked.pop(name) for name in ("on", "port", "identity", "prefix")))
    if board.to is None and (board.port or board.identity or board.prefix):
        raise click.UsageError("--port, --identity and --prefix go with --on.")
    who = {name: asked.pop(name) for name in ("trust", "allow_unsigned", "secret")}
    if board.to is not None and (idle := opt.options_given(*who)):
        raise click.UsageError(f"{', '.join(idle)} is for this machine; with --on the board uses its own keys.")
    if output is not None:
        refuse_unwritable(output)
    setup, load = _setup_and_load(asked | who)
    from edgekit.bench.compare import ConditionsDifferError, compare, known_before, read_record
    from edgekit.bench.conditions import conditions
    from edgekit.bench.measure import load_words, measure

    then = read_record(old) if old is not None else None
    if board.to is not None:
        found = board.measure(bundle, asked)
    else:
        # Before anything is timed: conditions that differ now will differ afterwards.
        if then is not None and (differing := known_before(then, conditions(), load_words(load))):
            raise ConditionsDifferError(
                f"conditions differ: {'; '.join(map(str, differing))}",
                where=str(old),
                do="Use the same options as then, or make a new record here",
            )
        with console_progress() as progress:
            found = measure(bundle, setup, load, progress=progress)
    with board.answered():
        compared = compare(then, found) if then is not None else None
        if compared is not None:
            found["compared"] = compared.as_json()
        lines = [*bench_lines(found), *comparison_lines(old, compared)]
    code = report(found, lines, output, as_json)
    return 1 if compared is not None and compared.refused else code


@dataclass(frozen=True)
class _BenchTarget:
    """Where --on times the bundle; to: None for this machine."""

    to: str | None
    port: int | None
    identity: Path | None
    prefix: str

    def answered(self) -> AbstractContextManager[None]:
        """Around work on the record, which is the board's own where there is one."""
        from edgekit.shipping.ssh import answered_by

        return nullcontext() if self.to is None else answered_by(self.to)

    def measure(self, bundle: Path, asked: dict[str, Any]) -> dict[str, Any]:
        """Run the same command on the board and return its record."""
        from edgekit.shipping.push import bench_on
        from edgekit.shipping.ssh import Address

        names = {"runs": "-n"}
        words: list[str] = []
        for name, value in asked.items():
            if value is None or value is False:
                continue
            option = names.get(name, f"--{name.replace('_', '-')}")
            words += [option] if value is True else [option, str(value)]
        assert self.to is not None
        return bench_on(Address(self.to, self.port, self.identity), bundle, tuple(words), self.prefix)


def _setup_and_load(asked: dict[str, Any]) -> tuple[BenchSetup, Load]:
    """Parse the options. Raises UsageError where two of them contradict each other."""
    if asked["rate"] is not None and asked["concurrency"] is not None:
        raise click.UsageError("Pass either --rate or --concurrency.")
    if asked["arrivals"] is not None and asked["rate"] is None:
        raise click.UsageError("--arrivals goes with --rate.")
    if asked["runs"] is not None and asked["duration_s"] is not None:
        raise click.UsageError("Pass either -n or --duration-s.")
    budget = opt.budget_of(asked["use"], asked["budget_ms"])
    from edgekit.bench.load_generator import Load
    from edgekit.bench.measure import BenchSetup

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
    names = ("engine", "threads", "cache", "secret", "trust", "allow_unsigned", "pin", "engines")
    return BenchSetup(batching=batching, **{name: asked[name] for name in names}), load


def report(found: dict[str, Any], lines: list[str], output: Path | None, as_json: bool) -> int:
    """Print, then write: a disk that is full by now costs the file and not the figures."""
    print_result(found, lines, as_json)
    if output is not None:
        from edgekit.packaging.output_errors import OutputError, error_line

        try:
            write_json(output, found)
        except OutputError as error:
            click.echo(error_line(error), err=True)  # stdout has its one object
            return 1
    return 0
