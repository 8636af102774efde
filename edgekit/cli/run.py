"""edgekit run: ask a bundle for answers here, or fill a cache file ahead of time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, refuse_unwritable, say
from edgekit.cli.progress import console_progress, until_signalled
from edgekit.report import words
from edgekit_runtime.system.errors import EdgekitError, InputError, visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgekit.bench.inputs import InputsError
    from edgekit_runtime import Answer, Model
    from edgekit_runtime.cache.disk import DiskCache, DiskStats
    from edgekit_runtime.contract.spec import Contract
    from edgekit_runtime.serving.session import Session

_OF_ANSWERS = ("watch", "budget_ms", "use", "k", "max_tokens", "telemetry", "device", "window_s")
"""Options that --fill-cache does not take."""
_SYNC_EVERY = 128


@click.command()
@click.argument("bundle", type=opt.BUNDLE, metavar="BUNDLE|ROOT")
@click.argument("inputs", nargs=-1)
@click.option("--text", "texts", multiple=True, help="A text to answer or continue; repeatable.")
@click.option(
    "--watch",
    type=opt.PATH,
    metavar="DIR",
    help="Answer each new image or array in DIR, until Ctrl-C. With --json, one object per line.",
)
@click.option(
    "--camera",
    metavar="SOURCE",
    help="Answer the frames of a camera (its number, or picamera2), a URL (rtsp://...) or a clip, until Ctrl-C.",
)
@click.option(
    "--view",
    is_flag=False,
    flag_value="",
    metavar="[:PORT|CLIP]",
    help="With --camera: draw the answers on the frames, on a local page or in a clip. Default: :8080, which opens in "
    "a browser.",
)
@opt.budget_ms
@opt.use
@click.option(
    "--max-tokens", default=256, show_default=True, type=click.IntRange(1, 100_000), help="Most tokens to generate."
)
@click.option("--top", "k", default=5, show_default=True, type=click.IntRange(1), help="Number of classes to show.")
@opt.engine()
@opt.threads()
@opt.pin
@click.option(
    "--telemetry",
    metavar="URL",
    callback=opt.broker_url,
    help="Report to this broker: mqtt://host:1883. Needs --device.",
)
@opt.device()
@opt.window_s()
@click.option(
    "--fill-cache",
    type=opt.PATH,
    metavar="FILE",
    help="Store the answers in FILE instead of printing them; an application uses them with CacheOptions(disk=FILE). "
    "Run it again after an interruption or with more files: it computes only what is missing.",
)
@click.option(
    "--disk-cache-mb",
    type=opt.FiniteRange(1, 1_000_000),
    metavar="MB",
    help="With --fill-cache: largest size of FILE, as CacheOptions(disk_mb=MB) in the application. Default: 256.",
)
@opt.opening
@opt.as_json
def run(
    bundle: Path,
    inputs: tuple[str, ...],
    texts: tuple[str, ...],
    watch: Path | None,
    camera: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run each of INPUTS through BUNDLE, or the active one of an install ROOT.

    INPUTS are images, .npy or .npz arrays of one or more items, .txt files with one text per line, or folders of them.

    A stateful bundle answers frame by frame: a .wav or an array of frames is its own sequence, and single frames
    continue one another until the next sequence.

    Exits 1 if an input got no answer, or if a folder has no inputs. Ctrl-C exits with 130; with --json the object then
    holds the answers so far and "interrupted": true. With --watch or --camera, Ctrl-C is the normal end, and exits 0.

    \b
    edgekit run net.ekb cat.jpg photos/ --top 3
    edgekit run net.ekb --watch inbox/ --use video --json | my-program
    edgekit run net.ekb --camera rtsp://porch.local/main --view
    edgekit run minilm.ekb --text "Where is the depot?" --json
    edgekit run net.ekb photos/ --fill-cache answers.db       # for CacheOptions(disk="answers.db")
    """
    if not inputs and not texts and watch is None and camera is None:
        raise click.UsageError("Name INPUTS, a --text, a directory to --watch, or a --camera.")
    if camera is not None and (inputs or opt.options_given("watch", "fill_cache")):
        raise click.UsageError("--camera is the only input: leave out INPUTS, --watch and --fill-cache.")
    view = options.pop("view")
    if camera is None and view is not None:
        raise click.UsageError("--view goes with --camera.")
    if "" in inputs:
        raise click.UsageError("One of INPUTS is empty.")
    if texts:
        from edgekit.bench.inputs import GivenText

        inputs += tuple(map(GivenText, texts))
    file, max_mb = options.pop("fill_cache"), options.pop("disk_cache_mb")
    if file is not None:
        if idle := opt.options_given(*_OF_ANSWERS):
            raise click.UsageError(f"--fill-cache prints no answers: leave out {', '.join(idle)}.")
        opened = {name: options[name] for name in ("engine", "threads", "pin", "trust", "allow_unsigned", "secret")}
        try:
            return _fill_cache(bundle, inputs, file, max_mb or 256.0, opened, as_json=as_json)
        except KeyboardInterrupt:
            if not as_json:
                click.echo("the answers so far are saved; run the same command again to continue", err=True)
            raise
    if max_mb is not None:
        raise click.UsageError("--disk-cache-mb goes with --fill-cache.")
    broker, device, window_s = (options.pop(name) for name in ("telemetry", "device", "window_s"))
    if broker is None and (device is not None or window_s is not None):
        raise click.UsageError("--device and --window-s go with --telemetry.")
    from edgekit_runtime import TelemetryOptions, open_bundle

    if broker is not None:
        options["telemetry"] = TelemetryOptions(broker, device, 60.0 if window_s is None else window_s)
    k, budget = options.pop("k"), opt.budget_of(options.pop("use"), options.pop("budget_ms"))
    k = 1 if camera is not None and not opt.options_given("k") else k
    printer = _AnswerPrinter(k, as_json, watch is not None or camera is not None, options.pop("max_tokens"))
    if camera is not None:
        from edgekit.cli.camera import follow, open_view
        from edgekit_runtime import CacheOptions, stream

        options["cache"] = CacheOptions(similar=2.0)
        with open_view(view) as show, open_bundle(bundle, budget_ms=budget, **options) as model:
            tell = printer.tell if show is None or as_json else None
            answered = follow(stream(camera, printer.begin(model)), model, tell, show, as_json)
            printer.finish(model)
        return 0 if answered else 1
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
    with until_signalled() as ended:

        def given() -> Iterator[str | InputsError]:
            for one in list_files(inputs):
                if ended.is_set():
                    return
                yield one
            click.echo(f"watching {watch}; Ctrl-C stops it", err=True)
            yield from map(str, arrivals.until(ended))

        yield given()


class _AnswerPrinter:
    """Prints each answer: text at once, JSON at the end or line by line.

    A stateful model answers in one session, which starts again before and after each sequence.
    """

    def __init__(self, k: int, as_json: bool, streams: bool, max_tokens: int) -> None:
        self._k, self._as_json, self._streams, self._max_tokens = k, as_json, streams, max_tokens
        self._answers: list[dict[str, Any]] = []
        self._begun = False
        self._after_sequence = False
        self.failed, self._asked = 0, 0
        self.trust: str | None = None
        self._unsigned = False
        self._why_alternate = ""

    def begin(self, model: Model) -> Model | Session:
        """What answers: the model, or a session of one that keeps a state."""
        self._begun, described = True, model.describe()
        self.trust = described["trust"]
        self._unsigned = not described["signed"]
        self._why_alternate = described["why_alternate"]
        return model if model.contract.state == "none" else model.session()

    def ask(self, model: Model, given: Iterator[str | InputsError]) -> None:
        """Run one input after another; a failure does not stop the rest."""
        from edgekit.bench.inputs import GivenText, load, several

        asked = self.begin(model)
        for one in given:
            name = one if isinstance(one, str) else one.where
            try:
                if not isinstance(one, str):
                    raise one
                items = several(one, asked.contract)
                if asked.contract.state != "none" and (items is not None or self._after_sequence):
                    cast("Session", asked).reset()
                self._after_sequence = items is not None
                for name, item in items or [(one, load(one, asked.contract))]:
                    try:
                        if model.contract.generation is not None and isinstance(item, GivenText):
                            self._generate(name, model, item)
                            continue
                        self._print(name, asked.predict(item))
                    except EdgekitError as error:
                        if asked.contract.state != "none":
                            raise
                        self._refused(name, error)
            except EdgekitError as error:
                self._refused(name, error)

    def tell(self, name: str, outcome: Answer | EdgekitError) -> None:
        if not isinstance(outcome, EdgekitError):
            self._print(name, outcome)
        else:
            self._refused(name, outcome)

    def _refused(self, name: str, error: EdgekitError) -> None:
        self.failed, self._asked = self.failed + 1, self._asked + 1
        if self._as_json:
            self._emit({"input": name, "error": error.as_json()})
        else:
            where = "" if error.where.startswith(name) else f"{name}: "
            click.echo(f"error: {where}{error} [{error.code}]", err=True)

    def _print(self, name: str, answer: Answer) -> None:
        self._asked += 1
        if self._as_json:
            self._emit(answer_json(name, answer, self._k))
            return
        for line in answer_lines(name, answer, self._k):
            say(line)

    def _generate(self, name: str, model: Model, prompt: str) -> None:
        """Print the pieces as they come, then the figures."""
        answer = model.generate(prompt, max_tokens=self._max_tokens)
        for piece in answer:
            if not self._as_json:
                click.echo("\n".join(map(visible, piece.split("\n"))), nl=False)
        self._asked += 1
        if self._as_json:
            figures = ("text", "finish", "source", "tokens", "reused", "first_ms", "tokens_per_s", "met_budget")
            self._emit({"input": name, **{figure: getattr(answer, figure) for figure in figures}})
            return
        click.echo()
        speed = "" if answer.tokens_per_s is None else f", {answer.tokens_per_s:.1f} a second"
        first_ms = 0.0 if answer.first_ms is None else answer.first_ms
        say(f"  {answer.tokens} tokens{speed}, the first after {first_ms:.0f} ms from the {answer.source or 'device'}")

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
        if interrupted and not (self._begun and self._as_json and not self._streams):
            return False
        if self._as_json and not self._streams:
            shown = {"answers": self._answers, "trust": self.trust}
            print_json(shown | ({"interrupted": True} if interrupted else {}))
        if self._why_alternate and not self._as_json:
            click.echo(f"note: {self._why_alternate}. For the same answers everywhere: --pin primary", err=True)
        if self._unsigned and not self.failed and not self._as_json:
            click.echo(f"note: {self.trust}", err=True)
        if self.failed and self._asked > 1 and not self._as_json:  # the lines that say why may be a thousand lines up
            click.echo(f"{self.failed} of {self._asked} inputs got no answer", err=True)
        return True


def _task(contract: Contract) -> str:
    """How to print an answer; `raw` if the contract does not say what outputs mean."""
    unsaid = {"detection": contract.detection is None, "embedding": contract.embedding is None}
    return "raw" if unsaid.get(contract.task, False) else contract.task


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
        return lines + [f"  {words.confidence(p.score):>7}  {p.label}" for p in answer.top(k)]
    if task == "detection":
        for box in answer.boxes:  # whole pixels are enough to look at
            lines.append(
                f"  {words.confidence(box.score):>7}  {box.label}   {box.left:.0f},{box.top:.0f} to "
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


def _fill_cache(
    bundle: Path, inputs: Sequence[str], path: Path, max_mb: float, opened: dict[str, Any], *, as_json: bool
) -> int:
    """Store the answers in a file. Exit code 1 if an input is unreadable or an answer not kept."""
    from edgekit.bench.inputs import InputsError, list_files, several
    from edgekit_runtime import open_bundle
    from edgekit_runtime.cache.disk import DiskCache

    refuse_unwritable(path, "--fill-cache")
    listed = list(list_files(inputs))
    files, closed = [one for one in listed if isinstance(one, str)], [one for one in listed if not isinstance(one, str)]
    if not files:
        raise closed[0]
    began = monotonic()
    with open_bundle(bundle, cache=False, settled=True, **opened) as model:  # one artifact, one form
        described = model.describe()
        if model.contract.state != "none":
            raise InputsError("the model keeps state, so its answers cannot be cached", where=str(bundle))
        if model.contract.text is not None:
            lines = {file: several(file, model.contract) for file in files if file.lower().endswith(".txt")}
            files = [item for file in files for _, item in lines.get(file) or [(file, file)]]
        disk = DiskCache(path, model.kept_form, max_bytes=int(max_mb * 2**20))
        with contextlib.closing(disk):
            counts = _store_answers(model, disk, files, path)
    found: dict[str, Any] = {
        "bundle": str(bundle),
        "recipe": described["recipe"],
        "engine": described["engine"]["name"],
        "disk_cache": str(path),
        "files": len(files),
        **counts,
        "unreadable": [{"file": error.where, "why": error.what} for error in closed] + counts["unreadable"],
        "seconds": round(monotonic() - began, 3),
    }
    if as_json:
        print_json(found)
    else:
        _print_filled(found, max_mb)
    return 1 if found["unreadable"] or found["full"] or found["not_kept"] else 0


def _store_answers(model: Model, disk: DiskCache, files: Sequence[str], path: Path) -> dict[str, Any]:
    """Compute what is missing, until the set begins to evict itself or the disk is full.

    Raises OutputError if the file cannot be written, or the disk was full.
    """
    from edgekit.bench.inputs import load
    from edgekit_runtime.cache.identity import identify
    from edgekit_runtime.cache.memory_tier import Miss, entry_bytes
    from edgekit_runtime.contract.text import TEXT, TextInput

    limit, name, form = _usable(disk, path).limit, model.contract.inputs[0].name, model.kept_form
    encode = None if model.contract.text is None else TextInput(model.contract)
    name = name if encode is None else TEXT
    tried, there, full, first = 0, 0, False, b""
    sizes: dict[bytes, int] = {}  # of the computed answers
    unreadable = []
    with console_progress() as progress:
        for tried, file in enumerate(files, 1):
            try:
                loaded = load(file, model.contract)
                if encode is not None and isinstance(loaded, (str, bytes)):
                    loaded = encode.admit(loaded)
                key, named = identify(loaded if isinstance(loaded, dict) else {name: loaded}, form.namespace)
                if key is None:
                    raise InputError("this input has no bytes to know it by", where=file)
                if not isinstance(disk.find(key), Miss):  # which marks it as used
                    there += 1
                else:
                    outputs = model.predict(loaded if encode is not None else named).outputs
                    sizes[key] = entry_bytes(outputs)
                    if not disk.put(key, outputs) and disk.sync():  # the writer was behind
                        disk.put(key, outputs)
                first = first or key
            except InputError as error:
                unreadable.append({"file": file, "why": error.what})
            progress("filling the cache", tried, len(files))
            if tried % _SYNC_EVERY == 0 or tried == len(files):
                disk.sync()
                full = bool(first and disk.stats().evicted and isinstance(disk.stale(first), Miss))
                if full or disk.stats().limit < limit:
                    break
    made = sum(not isinstance(disk.stale(key), Miss) for key in sizes)
    stats, largest = _usable(disk, path, limit), max(sizes.values(), default=0)
    return {
        "made": made,
        "there": there,
        "unreadable": unreadable,
        "full": full,
        "not_kept": len(sizes) - made,
        "pushed_out": max(0, min(len(sizes), stats.written) - made),
        "too_large": sum(size > disk.largest_bytes for size in sizes.values()),
        "largest_mb": disk.largest_bytes / 2**20,
        "needs_mb": math.ceil(16 * largest / 2**20) if largest > disk.largest_bytes else None,
        "bytes": stats.bytes,
        "evicted": stats.evicted,
        "left": len(files) - tried,
    }


_TROUBLE = {
    "full": (
        "the disk is full, and what was written is gone",
        "Make room there, or name a file on another disk with --fill-cache",
    ),
    "busy": ("another process keeps it locked", "Run it again when that one has ended"),
}


def _usable(disk: DiskCache, path: Path, limit: int = 0) -> DiskStats:
    """Raises OutputError if it cannot be written. limit: at the start; a full disk halves it."""
    from edgekit.packaging.output_errors import OutputError

    stats = disk.stats()
    trouble = "full" if stats.limit < limit else stats.trouble
    if trouble is not None:
        what, do = _TROUBLE.get(trouble, ("it cannot be written", "Name a file that can be written with --fill-cache"))
        raise OutputError(what, where=str(path), do=do)
    return stats


def _print_filled(found: dict[str, Any], max_mb: float) -> None:
    rate = found["made"] / found["seconds"] if found["seconds"] else 0.0
    click.echo(
        f"{found['disk_cache']}: {found['made']:,} answers made, {found['there']:,} already there, "
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
            f"{lost:,} answers are not kept: the file was not writable for a while. Run the same command again",
            err=True,
        )
    if found["full"]:
        click.echo(
            f"{max_mb:g} MiB are too few: answers evict each other; {found['left']:,} files were not tried. "
            "Pass a larger --disk-cache-mb, here and as disk_mb of CacheOptions",
            err=True,
        )
