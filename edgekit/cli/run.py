"""edgekit run: ask a bundle for answers here, or fill a cache file ahead of time."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

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
    refuse_unwritable,
    say,
    secret,
    threads,
    trust,
    use,
)
from edgekit.cli.progress import console_progress
from edgekit.report import words as scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgekit.bench.inputs import InputsError
    from edgekit_runtime import Answer, EdgekitError, Model
    from edgekit_runtime.contract.spec import Contract
    from edgekit_runtime.serving.session import Session

_OF_ANSWERS = ("watch", "budget_ms", "use", "k", "telemetry", "device", "window_s")
"""Options that --fill-cache does not take."""


@click.command()
@click.argument("bundle", type=BUNDLE, metavar="BUNDLE|ROOT")
@click.argument("inputs", nargs=-1)
@click.option(
    "--watch",
    type=PATH,
    metavar="DIR",
    help="Watch DIR and answer each picture or array that arrives, until Ctrl-C. With --json, one object a line.",
)
@budget_ms
@use
@click.option("--top", "k", default=5, show_default=True, type=click.IntRange(1), help="Classes to show.")
@engine
@threads
@pin
@click.option("--telemetry", metavar="URL", help="Report to this broker: mqtt://host:1883. Needs --device.")
@click.option("--device", metavar="ID", help="This board's id in the fleet.")
@click.option("--window-s", type=FiniteRange(0.1, 86_400), metavar="S", help="A report's length. Default: 60.")
@click.option(
    "--fill-cache",
    type=PATH,
    metavar="FILE",
    help="Keep the answers in FILE instead of printing them; an application finds them there with "
    "CacheOptions(disk=FILE). Run it again after an interruption or with more files: it computes what is missing.",
)
@click.option(
    "--disk-cache-mb",
    type=FiniteRange(1, 1_000_000),
    metavar="MB",
    help="With --fill-cache: how large FILE may become, as CacheOptions(disk_mb=MB) in the application. Default: 256.",
)
@trust
@allow_unsigned
@secret
@as_json
def run(bundle: Path, inputs: tuple[str, ...], watch: Path | None, as_json: bool, **options: Any) -> int:
    """Answer each of INPUTS with BUNDLE, or the active one of an install ROOT.

    INPUTS are pictures, .npy or .npz arrays, or folders of them.

    A bundle that keeps a state answers frame by frame: a .wav or an array of frames is a sequence of its own, and
    inputs that are single frames follow one another, up to the next sequence.

    Exits 1 when an input got no answer, or a folder holds none. Ctrl-C ends it with 130, and with --json the
    one object then holds the answers so far and "interrupted": true. It is the ordinary end of --watch, which then
    exits 0: an input that got no answer was reported when it came.

    \b
    edgekit run net.ekb cat.jpg photos/ --top 3
    edgekit run net.ekb --watch inbox/ --use video --json | my-program
    edgekit run net.ekb photos/ --fill-cache answers.db       # for CacheOptions(disk="answers.db")
    """
    if not inputs and watch is None:
        raise click.UsageError("Name something to answer: INPUTS, or a folder to --watch.")
    if "" in inputs:
        raise click.UsageError("One of INPUTS is an empty name.")
    file, max_mb = options.pop("fill_cache"), options.pop("disk_cache_mb")
    if file is not None:
        if idle := options_given(*_OF_ANSWERS):
            raise click.UsageError(f"--fill-cache prints no answers: leave out {', '.join(idle)}.")
        opened = {name: options[name] for name in ("engine", "threads", "pin", "trust", "allow_unsigned", "secret")}
        return fill_cache(bundle, inputs, file, max_mb or 256.0, opened, as_json=as_json)
    if max_mb is not None:
        raise click.UsageError("--disk-cache-mb goes with --fill-cache.")
    broker, device, window_s = (options.pop(name) for name in ("telemetry", "device", "window_s"))
    if broker is None and (device is not None or window_s is not None):
        raise click.UsageError("--device and --window-s go with --telemetry.")
    from edgekit_runtime import TelemetryOptions, open_bundle

    if broker is not None:
        options["telemetry"] = TelemetryOptions(broker, device, 60.0 if window_s is None else window_s)
    k, budget = options.pop("k"), budget_of(options.pop("use"), options.pop("budget_ms"))
    printer = _AnswerPrinter(k, as_json, streams=watch is not None)
    try:
        with _files_to_run(inputs, watch) as given, open_bundle(bundle, budget_ms=budget, **options) as model:
            printer.ask(model, given)
    except KeyboardInterrupt:
        if not printer.finish(interrupted=True):
            raise
        return 130
    printer.finish(model)
    return 1 if printer.failed and watch is None else 0


@contextlib.contextmanager
def _files_to_run(inputs: tuple[str, ...], watch: Path | None) -> Iterator[Iterator[str | InputsError]]:
    """The inputs, then the files that come into the watched folder until SIGINT or SIGTERM."""
    from edgekit.bench.inputs import Arrivals, list_files

    if watch is None:
        yield list_files(inputs)
        return
    arrivals = Arrivals(watch)  # first: what comes while the bundle is opened is new
    with _until_signalled() as ended:

        def given() -> Iterator[str | InputsError]:
            for one in list_files(inputs):
                if ended.is_set():
                    return
                yield one
            click.echo(f"watching {watch}; Ctrl-C ends it", err=True)
            yield from map(str, arrivals.until(ended))

        yield given()


@contextlib.contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one is taken as it always is."""
    ended = threading.Event()
    before: dict[int, Any] = {}
    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)

    def end(number: int, _frame: object) -> None:
        ended.set()
        signal.signal(number, before[number])

    for number in numbers:
        before[number] = signal.signal(number, end)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _AnswerPrinter:
    """Prints each answer: text at once, JSON at the end or line by line.

    A stateful model answers in one session, which starts again before and after each sequence.
    """

    def __init__(self, k: int, as_json: bool, streams: bool) -> None:
        self._k, self.answer_json, self._streams = k, as_json, streams
        self._answers: list[dict[str, Any]] = []
        self._begun = False
        self._after_sequence = False
        self.failed, self._files_to_run = 0, 0
        self.trust: str | None = None
        self._unsigned = False
        self._why_alternate = ""

    def ask(self, model: Model, given: Iterator[str | InputsError]) -> None:
        """Run one input after another; a failure does not stop the rest."""
        from edgekit.bench.inputs import frames, load
        from edgekit_runtime import EdgekitError

        asked: Model | Session = model if model.contract.state == "none" else model.session()
        self._begun, described = True, model.describe()
        self.trust = described["trust"]
        self._unsigned = not described["signed"]
        self._why_alternate = described["why_alternate"]
        for one in given:
            self._files_to_run += 1
            if not isinstance(one, str):
                self._refused(one.where, one)
                continue
            name = one
            try:
                sequence = frames(one, asked.contract) if asked.contract.state != "none" else None
                if sequence is not None or self._after_sequence:
                    cast("Session", asked).reset()
                self._after_sequence = sequence is not None
                if sequence is None:
                    self._print(one, asked.predict(load(one, asked.contract)))
                    continue
                for name, frame in sequence:
                    self._print(name, asked.predict(frame))
            except EdgekitError as error:
                self._refused(name, error)

    def _refused(self, name: str, error: EdgekitError) -> None:
        self.failed += 1
        if self.answer_json:
            self._emit({"input": name, "error": error.as_json()})
        else:
            where = "" if error.where.startswith(name) else f"{name}: "
            click.echo(f"error: {where}{error} [{error.code}]", err=True)

    def _print(self, name: str, answer: Answer) -> None:
        if self.answer_json:
            self._emit(answer_json(name, answer, self._k))
            return
        for line in answer_lines(name, answer, self._k):
            say(line)

    def _emit(self, value: dict[str, Any]) -> None:
        if self._streams:
            print_json(value)
        else:
            self._answers.append(value)

    def finish(self, model: Model | None = None, *, interrupted: bool = False) -> bool:
        """Print the rest. False if the interruption stopped nothing here: the caller reports it.

        model: to say which telemetry still waits.
        """
        sent = None if model is None else model.stats().telemetry
        if sent is not None and sent.waiting:
            why = sent.trouble or ("no fleet has confirmed it" if sent.sent else "not connected")
            advice = f" ({sent.advice})" if sent.advice else ""
            click.echo(f"telemetry: {why}; {sent.waiting} window(s) wait in the spool{advice}", err=True)
        if interrupted and not (self._begun and self.answer_json and not self._streams):
            return False
        if self.answer_json and not self._streams:
            shown = {"answers": self._answers, "trust": self.trust}
            print_json(shown | ({"interrupted": True} if interrupted else {}))
        if self._why_alternate and not self.answer_json:
            click.echo(f"note: {self._why_alternate}. For the same answers everywhere: --pin primary", err=True)
        if self._unsigned and not self.failed and not self.answer_json:
            click.echo(f"note: {self.trust}", err=True)
        if (
            self.failed and self._files_to_run > 1 and not self.answer_json
        ):  # the lines that say why may be a thousand lines up
            click.echo(f"{self.failed} of {self._files_to_run} inputs got no answer", err=True)
        return True


def _task(contract: Contract) -> str:
    """How to print an answer; `raw` if the contract does not say what outputs mean."""
    if (contract.task == "detection" and contract.detection is None) or (
        contract.task == "embedding" and contract.embedding is None
    ):
        return "raw"
    return contract.task


def answer_json(given: str, answer: Answer, k: int) -> dict[str, Any]:
    task = _task(answer.contract)
    outputs = {
        name: {"shape": list(array.shape), "dtype": array.dtype.name, "values": array.ravel().tolist()}
        for name, array in answer.outputs.items()
    }
    shown = {
        "input": given,
        "top": [asdict(p) for p in answer.top(k)] if task == "classification" else None,
        "boxes": [asdict(box) for box in answer.boxes] if task == "detection" else None,
        "vector": answer.vector.tolist() if task == "embedding" else None,
        "outputs": outputs,
        "source": answer.source,
        "artifact": answer.artifact,
        "engine": answer.engine,
        "timings_ms": dict(answer.timings),
        "met_budget": answer.met_budget,
    }
    return shown if answer.distance is None else shown | {"distance": answer.distance}


def answer_lines(given: str, answer: Answer, k: int) -> list[str]:
    late = "" if answer.met_budget is not False else ", over budget"
    by = "" if answer.artifact is None else f": {answer.artifact} on {answer.engine}"
    lines = [f"{given}   {answer.timings['total']:.1f} ms from the {answer.source}{by}{late}"]
    task = _task(answer.contract)
    if task == "classification":
        return lines + [f"  {scores.confidence(p.score):>7}  {p.label}" for p in answer.top(k)]
    if task == "detection":
        for box in answer.boxes:  # whole pixels are enough to look at
            lines.append(
                f"  {scores.confidence(box.score):>7}  {box.label}   {box.left:.0f},{box.top:.0f} to "
                f"{box.right:.0f},{box.bottom:.0f} ({box.right - box.left:.0f} x {box.bottom - box.top:.0f})"
            )
        return lines if answer.boxes else [*lines, "  nothing found"]
    if task == "embedding":
        vector = answer.vector
        return [*lines, f"  vector of {vector.size}, length {math.hypot(*vector.tolist()):.4g}: {_few(vector)}"]
    return lines + [
        f"  {name} {array.dtype}{list(array.shape)}: {_few(array)}" for name, array in answer.outputs.items()
    ]


def _few(array: NDArray[Any]) -> str:
    flat = array.ravel()
    return ", ".join(f"{value:.5g}" for value in flat[:8]) + (", ..." if flat.size > 8 else "")


def fill_cache(
    bundle: Path, inputs: Sequence[str], file: Path, max_mb: float, opened: dict[str, Any], *, as_json: bool
) -> int:
    """Fill the cache. Exit code 1 if a file could not be read or an answer is not on disk."""
    from edgekit.bench.filling import fill

    refuse_unwritable(file, "--fill-cache")
    try:
        with console_progress() as progress:
            found = fill(bundle, inputs, file, max_mb=max_mb, progress=progress, opened=opened)
    except KeyboardInterrupt:
        if not as_json:
            click.echo("the answers so far are kept: the same command continues from there", err=True)
        raise
    if as_json:
        print_json(found)
    else:
        _print_report(found, max_mb)
    return 1 if found["unreadable"] or found["full"] or found["not_kept"] else 0


def _print_report(found: dict[str, Any], max_mb: float) -> None:
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
    if lost := found["not_kept"] - found["too_large"] - found["pushed_out"]:
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
