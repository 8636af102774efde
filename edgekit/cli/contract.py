"""`edgekit contract`: a contract file to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import PATH, as_json, print_json


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
    from edgekit.errors import OutputError
    from edgekit_converters.contract_file.describe import default_file, describe, stated_keys
    from edgekit_converters.contract_file.draft import draft, left_to_say
    from edgekit_converters.sources.load import open_source
    from edgekit_converters.sources.model import LoadOptions
    from edgekit_converters.store import DiskStore, default_folder

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
