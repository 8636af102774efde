"""edgekit try: a first look at a model, without a contract file, in one command."""

from __future__ import annotations

import shlex
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_json, say
from edgekit.cli.progress import console_progress
from edgekit.report import words
from edgekit_converters.recipe.option import options_in
from edgekit_converters.sources.load_options import LoadOptions


@click.command("try")
@click.argument("model", type=opt.MODEL)
@click.option(
    "--like",
    "--calibration",
    "like",
    metavar="DATA",
    help="Data like the board's, ideally 500 items or more; a fifth, at most 64, is held out to compare on. A folder "
    "of images or recordings, an .npz, or module:function. Default: random inputs, which prove little.",
)
@click.option(
    "--family",
    type=click.Choice(("yolo", "ssd", "torchvision", "keras-app")),
    help="Model family, for usual contract values.",
)
@opt.profiles(help="Boards to build for; repeatable. Default: this machine and a Raspberry Pi 4.")
@opt.output("DIR", "Default: tried/MODEL.")
@opt.options_of(LoadOptions)
@click.option("--open", "opens", is_flag=True, help="Open the report in a browser.")
@opt.as_json
def try_model(
    model: Path,
    like: str | None,
    family: Any,
    profiles: tuple[str, ...],
    output: Path | None,
    opens: bool,
    as_json: bool,
    **loading: Any,
) -> int:
    """Try MODEL: guess its contract, build it, compare ten answers.

    Prints the guesses and writes them into a contract file that you can correct. Next, run `edgekit build` with your
    limits, boards and evaluation set.

    \b
    edgekit try net.onnx --like photos/
    """
    from edgekit.building.build_report import summary
    from edgekit.cli.build import resumable, scratch
    from edgekit.cli.install import board_of
    from edgekit.trying import look

    boards = profiles or tuple(dict.fromkeys((*board_of(None, quiet=True).profiles[:1], "raspberry-pi-4")))
    folder = output or Path("tried") / model.stem
    with scratch() as temporary, resumable(as_json, temporary), console_progress() as progress:
        found = look(model, like, folder, boards, family, loading, progress, progress.say)
    if as_json:
        answers = [asdict(one) for one in found.answers]
        made = {"guessed": list(found.guessed), "answers": answers, "build": found.report.as_json()}
        print_json({"contract": str(found.contract), **made})
        return 0 if found.report.complete else 1
    for line in summary(found.report, warned=True):
        say(line)
    if found.answers:
        click.echo(f"\n{sum(one.same for one in found.answers)} of {len(found.answers)} answers match the original's:")
        rows = [("", "the original", "the bundle", "")]
        rows += [(one.item, one.original, one.bundle, "" if one.same else "differs") for one in found.answers]
        for line in words.aligned(rows, right=False):
            say(f"  {line}".rstrip())
    command = ["edgekit", "build", str(model), "--contract", str(found.contract), "--profile", boards[-1]]
    for option in options_in(LoadOptions):
        given = loading[option.name]
        for value in given if option.repeats else filter(None, [given]):
            command += [option.flag] if value is True else [option.flag, str(value)]
    command += ["--calibration", like or "DATA", "--evaluation", "OTHER_DATA", "-o", "bundles"]
    click.echo(f"\nNext, with your limits and any option named above: {shlex.join(command)}")
    if opens and (page := found.report.page) is not None:
        webbrowser.open(page.absolute().as_uri())
    return 0 if found.report.complete else 1
