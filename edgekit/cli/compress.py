"""edgekit compress trains a float model for INT8; edgekit contract drafts a contract file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit.cli import options as completion
from edgekit.cli.options import PATH, PERCENT, FiniteRange, as_json, budget_ms, print_json, profile_path, say
from edgekit.cli.progress import console_progress


def _sides(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """(height, width) of "160", or of "120x160"."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise click.BadParameter("give a side in pixels, 160, or a height and a width, 120x160")
    return int(sides[0]), int(sides[-1])


@click.command()
@click.argument("model", type=PATH)
@click.option("--train", required=True, metavar="SET", help="Labelled inputs to train on, as for edgekit build.")
@click.option(
    "--evaluation", required=True, metavar="SET", help="Other labelled inputs, which decide and are never trained on."
)
@click.option(
    "--steps",
    metavar="LIST",
    help="What to do, of split,distill,prune,sparse,qat. Default: what the limits call for, maybe nothing.",
)
@click.option("--metric", shell_complete=completion.metrics, metavar="NAME", help="As for edgekit build.")
@click.option("--max-drop", type=PERCENT, metavar="PERCENT", help="How much accuracy INT8 may cost you, in points: 1%.")
@click.option(
    "--profile", shell_complete=completion.profiles, metavar="NAME", help="The board to estimate milliseconds for."
)
@profile_path
@budget_ms
@click.option(
    "--epochs",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Passes over --train, at most; it ends earlier when held-out items no longer gain.",
)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Items in one step.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=1e-3, show_default=True, help="The first learning rate."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed, the same result.")
@click.option(
    "--teacher", type=PATH, metavar="MODEL", help="distill: any model with the same outputs. Default: MODEL itself."
)
@click.option(
    "--width", type=float, metavar="SHARE", help="distill: derive the student, of that share of MODEL's channels: 0.5."
)
@click.option(
    "--start",
    type=click.Choice(["sliced", "new"]),
    default="sliced",
    show_default=True,
    help="distill: the derived student begins with MODEL's own weights, or with new ones.",
)
@click.option(
    "--input",
    "input_size",
    callback=_sides,
    metavar="SIDE",
    help="distill: derive the student, of pictures of that side, or of HEIGHTxWIDTH: 160.",
)
@click.option(
    "--features",
    metavar="LAYER",
    help="distill: the student also learns what that layer of the teacher gives. STUDENT=TEACHER where names differ.",
)
@click.option("--temperature", type=float, default=2.0, show_default=True, help="distill: softens answers of classes.")
@click.option("--alpha", type=float, default=0.7, show_default=True, help="distill: the teacher's share of the loss.")
@click.option("--sparsity", type=float, metavar="SHARE", help="sparse: the share of weights that become zero: 0.5.")
@click.option(
    "--repair-budget",
    "repair_s",
    type=FiniteRange(0, 86_400),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Show what a build's repair reaches in that time beside the steps. 0: do not.",
)
@click.option(
    "--beside",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="The -o of a run with another --seed: the page shows their spread; repeatable.",
)
@click.option("--contract", type=PATH, metavar="TOML", help="As for edgekit build.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,48,192", help="As for edgekit build.")
@click.option("--trust-model", is_flag=True, help="As for edgekit build.")
@click.option(
    "-o", "--output", type=PATH, metavar="DIR", default=Path("compressed"), show_default=True, help="Where it goes."
)
@click.option("--cache", type=PATH, metavar="DIR", help="As for edgekit build.")
@click.option("--no-cache", is_flag=True, help="Use nothing of earlier runs, and keep nothing for later ones.")
@as_json
def compress(as_json: bool, **options: Any) -> int:
    """Train MODEL a little more, so that INT8 costs it less or it takes less time.

    MODEL is a .keras file of Keras 3, a PyTorch model (.pt2, module:function) or an .onnx file. The result is a .keras
    file, in the folder of -o: give it to `edgekit build` in place of MODEL. Worth its time where `edgekit build`
    refuses for `drop` or `budget`, or leaves much in float to prevent that.

    \b
    Example:
      edgekit compress net.keras --train train/ --evaluation labelled/ --max-drop 1%
      edgekit compress net.keras --train train/ --evaluation labelled/ --profile raspberry-pi-4 --budget-ms 5
      edgekit build compressed/net.keras --profile raspberry-pi-4 --calibration train/ --evaluation labelled/
    \b
    Exits 0 when the limits are kept, 1 when they are not, 130 when it was interrupted: the next run resumes there.
    """
    from edgekit.api import compress as compress_with

    folder, without = options.pop("cache"), options.pop("no_cache")
    if folder and without:
        raise click.UsageError("--cache and --no-cache contradict each other: give one of them")
    steps = tuple(step.strip() for step in (options.pop("steps") or "").split(",") if step.strip())
    with console_progress() as progress:
        try:
            report = compress_with(
                cache=folder or not without, steps=steps, progress=progress, say=progress.say, **options
            )
        except KeyboardInterrupt:
            if as_json:
                raise
            progress.say("interrupted: run the same command again, and it resumes at the last round")
            raise click.exceptions.Exit(130) from None
    if as_json:
        print_json(report.as_json())
    else:
        for line in report.table():
            say(line)
        say(report.verdict)
        if report.page is not None:
            say(f"page  {report.page}")
    return 0 if report.kept else 1


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--like",
    type=click.Choice(("yolo", "ssd", "torchvision", "keras-app")),
    help="What models of this family usually take and answer. Default: what the file says, and nothing of pixels.",
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Default: MODEL.contract.toml beside the model.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,48,192", help="As for edgekit build; repeatable.")
@click.option("--constant", "constants", multiple=True, metavar="NAME=16000", help="As for edgekit build; repeatable.")
@click.option("--signature", metavar="NAME", help="Which function of a SavedModel to take, if it has several.")
@click.option("--trust-model", is_flag=True, help="Let code inside the model file run.")
@as_json
def contract(model: Path, like: str | None, output: Path | None, as_json: bool, **options: Any) -> int:
    """Draft the contract file of MODEL: what its inputs and outputs mean.

    The draft is accepted by `edgekit build` as it is. Check each line before you trust an accuracy: a wrong mean or std
    costs more than 8 bits do. What a build or an earlier draft found in the model is not looked for again.

    \b
    edgekit contract yolo11n.onnx --like yolo
    """
    from edgekit.packaging.output_errors import OutputError
    from edgekit_converters.data.describe_contract import default_file, describe, stated_keys
    from edgekit_converters.data.draft_contract import draft, left_to_say
    from edgekit_converters.recipe.store import DiskStore, default_folder
    from edgekit_converters.sources.load import open_source
    from edgekit_converters.sources.source_model import LoadOptions

    file = output or default_file(model)
    if file.exists():
        raise OutputError("the file is there already", where=str(file), do="Name another one with -o, or remove it")
    source = open_source(model, LoadOptions.parse(**options), DiskStore(default_folder()))
    text = draft(source, like)  # type: ignore[arg-type]  # click checked the name
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        what = f"the draft cannot be written: {error.strerror or error}"
        raise OutputError(what, where=str(file), do="Name another file with -o") from error
    task = describe(source, file).task
    guessed = "task" not in stated_keys(file)
    if as_json:
        print_json({"file": str(file), "task": task})
        return 0
    click.echo(str(file))
    rest = "; ".join(left_to_say(source, text))
    verb = "is taken for" if guessed else "is"
    click.echo(f"the task {verb} {task}. Check each line of the draft{rest and ': ' + rest}", err=True)
    click.echo(f"then: edgekit build {model} ...", err=True)
    return 0
