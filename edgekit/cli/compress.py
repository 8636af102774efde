"""edgekit compress trains a float model for INT8; edgekit contract drafts a contract file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from edgekit.building.build_request import BuildRequest
from edgekit.cli import options as opt
from edgekit.cli.printing import print_result
from edgekit.cli.progress import console_progress
from edgekit.compressing.compress_request import CompressRequest, read_recipe
from edgekit.packaging.output_errors import OutputError
from edgekit_converters.sources.load_options import LoadOptions


@click.command()
@click.argument("model", type=opt.MODEL)
@opt.options_of(CompressRequest)
@click.option(
    "--recipe", "file", type=opt.PATH, metavar="FILE",
    help="TOML file with more settings: batch, rate, seed, alpha, ... docs/compress.md lists every key.",
)  # fmt: skip
@opt.no_cache
@opt.as_json
def compress(as_json: bool, file: Path | None, no_cache: bool, **options: Any) -> int:
    """Retrain MODEL, so that it loses less accuracy in INT8 or runs faster.

    MODEL is a Keras 3 .keras file, a PyTorch model (.pt2, module:function) or an .onnx file. The result is a .keras
    file in the -o folder: pass it to `edgekit build` instead of MODEL. Worth the time if `edgekit build` rejects the
    model for `drop` or `budget`, or has to keep many layers in float.

    \b
    Example:
      edgekit compress net.keras --train train/ --evaluation labelled/ --max-drop 1%
      edgekit compress net.keras --train train/ --evaluation labelled/ --profile raspberry-pi-4 --budget-ms 5
      edgekit build compressed/net.keras --profile raspberry-pi-4 --calibration train/ --evaluation labelled/
    \b
    Exits 0 if the limits are kept, 1 if not, 130 if interrupted: run it again to resume.
    """
    from edgekit.api import compress as compress_with

    options |= {} if file is None else read_recipe(file)
    if no_cache and "cache" in options:
        raise click.UsageError("--no-cache contradicts the recipe's cache: remove one of them.")
    options.setdefault("cache", not no_cache)
    with console_progress() as progress:
        try:
            report = compress_with(progress=progress, say=progress.say, **options)
        except KeyboardInterrupt:
            if as_json:
                raise
            progress.say("interrupted; run the same command again to resume at the last round")
            raise click.exceptions.Exit(130) from None
    page = [] if report.page is None else [f"page  {report.page}"]
    print_result(report.as_json(), [*report.table(), report.verdict, *page], as_json)
    return 0 if report.kept else 1


@click.command()
@click.argument("model", type=opt.MODEL)
@click.option(
    "--like",
    type=click.Choice(("yolo", "ssd", "torchvision", "keras-app")),
    help="Start from the defaults of this model family. Default: only what the file states.",
)
@click.option(
    "--length",
    type=click.IntRange(3, 1 << 16),
    metavar="TOKENS",
    help="Hugging Face folder: tokens per text. Default: the model's own, at most 128.",
)
@opt.options_of(BuildRequest, "calibration", help="Real inputs: the model's answers to 64 of them determine the task.")
@opt.output("FILE", "Default: MODEL.contract.toml next to the model.")
@opt.options_of(LoadOptions)
@opt.as_json
def contract(
    model: Path,
    like: str | None,
    length: int | None,
    calibration: str | None,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Draft the contract file of MODEL, which describes its inputs and outputs.

    `edgekit build` accepts the draft unchanged. Check each line before you trust an accuracy figure: a wrong mean or
    std costs more than INT8 does.

    For a Hugging Face folder (config.json, tokenizer.json) it also writes FOLDER.onnx with a fixed text length.

    \b
    edgekit contract yolo11n.onnx --like yolo
    edgekit contract all-MiniLM-L6-v2/ --length 64      # then: edgekit build all-MiniLM-L6-v2.onnx ...
    """
    from edgekit_converters.data.describe_contract import default_file, describe, stated_keys
    from edgekit_converters.data.draft_contract import draft, left_to_say
    from edgekit_converters.recipe.store import DiskStore, default_folder
    from edgekit_converters.sources.load import open_source
    from edgekit_converters.sources.source_model import toml_text
    from edgekit_converters.sources.transformer import find_tokenizer, is_transformer, read_transformer

    file = output or default_file(model)
    if file.exists():
        raise OutputError("it already exists", where=str(file), do="Name another file with -o")
    store, chosen = DiskStore(default_folder()), LoadOptions.parse(**options)
    if is_transformer(model):
        from edgekit.packaging.writer import write_whole

        found, network = read_transformer(model, length), model.with_name(model.name + ".onnx")
        if network.exists():
            raise OutputError("the file already exists", where=str(network), do="Remove it, or rename the folder")
        write_whole(network, found.onnx, "the model")
        tokenizer = os.path.relpath(find_tokenizer(model), file.parent)
        source = open_source(network, chosen, store)
        text = toml_text({**found.contract, "text": {"tokenizer": tokenizer, **found.contract["text"]}})
        text, model = f"# From {model.name}/config.json. Check each line.\n{text}", network
    elif calibration is None:
        source = open_source(model, chosen, store)
        text = draft(source, like)  # type: ignore[arg-type]  # click checked the name
    else:
        from edgekit.building.build_subject import draft_by_answers

        source, text = draft_by_answers(model, like, chosen, store, calibration)  # type: ignore[arg-type]
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        what = f"the draft cannot be written: {error.strerror or error}"
        raise OutputError(what, where=str(file), do="Name another file with -o") from error
    task = describe(source, file).task
    guessed = "task" not in stated_keys(file)
    print_result({"file": str(file), "task": task}, [str(file)], as_json)
    if as_json:
        return
    rest = "; ".join(left_to_say(source, text))
    verb = "is taken for" if guessed else "is"
    click.echo(f"the task {verb} {task}. Check each line of the draft{rest and ': ' + rest}", err=True)
    click.echo(f"then: edgekit build {model} ...", err=True)
