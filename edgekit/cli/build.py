"""edgekit build: a trained model in, a checked bundle for each board out.

Rules:
- the help is for a person who has never quantized anything;
- an interrupted build ends at once, whatever a conversion tool is doing, and says that the next one resumes there.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from edgekit.cli import options as completion
from edgekit.cli.key_roots import passphrase_file, sign, signer, signing_of
from edgekit.cli.options import PATH, PERCENT, as_json, budget_ms, encrypt, print_json, profile_path, say
from edgekit.cli.progress import console_progress

_GROUPS = {
    "What to build for": ("profile", "profile-path", "anchor", "name", "model-version", "output"),
    "Who signs, and who can read": ("sign", "signer", "passphrase-file", "encrypt"),
    "What the bundles say of themselves": ("licence", "rollout-seq", "not-before", "expires", "compatible"),
    "Your data": ("calibration", "evaluation", "metric", "compare", "allow-random"),
    "Limits": ("max-drop", "budget-ms", "repair-budget", "recipe", "alternates", "batch", "degraded"),
    "What the model file does not say": ("contract", "shape", "constant", "signature", "trust-model"),
    "How the build runs": ("jobs", "cache", "no-cache", "json", "help"),
}
_GRACE_S = 2.0


class _GroupedCommand(click.Command):
    """Prints the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {max(one.opts, key=len).lstrip("-"): one.get_help_record(ctx) for one in self.get_params(ctx)}
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([record for name in names if (record := records[name]) is not None])


_EPILOG = """\b
Examples:
  A first look, with one folder of photos like those the board will see:
    edgekit build net.keras --profile raspberry-pi-4 --calibration photos/
  With proof: labelled photos (one sub-folder a class), and limits to keep:
    edgekit build net.keras --profile raspberry-pi-4 --profile raspberry-pi-5 \\
      --calibration photos/ --evaluation labelled/ --max-drop 1% --budget-ms 50
  An ONNX model that takes pictures of any size, pinned to one:
    edgekit build net.onnx --shape image=1,3,48,192 --profile x86-64 --calibration photos/
\b
Exits 0 when every board got a bundle within the limits, 1 when one did not (the others are written \
all the same, and the
report says why), 2 for a mistake in the command, 130 when it was interrupted: the next run resumes there.
"""


@click.command(cls=_GroupedCommand, epilog=_EPILOG)
@click.argument("model", type=PATH)
@click.option(
    "--profile",
    "profiles",
    shell_complete=completion.profiles,
    multiple=True,
    required=True,
    metavar="NAME",
    help="The board to build for; `edgekit profiles list` shows them. Repeat it for several boards: they share the "
    "work.",
)
@profile_path
@click.option(
    "--anchor",
    "anchors",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="What `edgekit profiles measure` wrote on one of the boards: its latencies are then estimated from that.  "
    "Repeatable.",
)
@click.option("--name", metavar="NAME", help="What the bundles are called. Default: as the model file.")
@click.option(
    "--model-version", default="1", show_default=True, metavar="TEXT", help="Your model's version, kept in the bundle."
)
@sign
@signer
@passphrase_file
@encrypt
@click.option("--licence", metavar="TEXT", help="The model's licence, such as Apache-2.0; kept in the bundle.")
@click.option(
    "--rollout-seq",
    type=int,
    metavar="N",
    help="The number of this roll-out. A board that installed N refuses whatever has a lower number, for good.",
)
@click.option("--not-before", metavar="DATE", help="No board installs the bundles earlier: 2027-01-31, at 00:00 UTC.")
@click.option("--expires", metavar="DATE", help="No board installs the bundles later: 2027-12-31, at 00:00 UTC.")
@click.option(
    "--compatible",
    multiple=True,
    metavar="NAME",
    help="Another profile whose boards may install the bundles too; repeatable. Default: the one each is built for.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="DIR",
    default=Path("bundles"),
    show_default=True,
    help="Where bundles and the report go.",
)
@click.option(
    "--calibration",
    metavar="SET",
    help="A hundred or more typical inputs, without labels: they show which numbers flow through the model, which "
    "INT8 must know. A folder of images or .wav files, .npy, .npz, data.yaml, COCO's .json, or module:function.",
)
@click.option(
    "--evaluation",
    metavar="SET",
    help="Other inputs, to measure how far each result drifts from your model. With labels (sub-folders, or `y` in "
    "an .npz) accuracy is measured. Default: a part of --calibration is held out.",
)
@click.option(
    "--metric",
    shell_complete=completion.metrics,
    metavar="NAME",
    help=f"What decides: {', '.join(completion.METRICS)}, or your own module:function. Default: what the task and the "
    "labels suggest.",
)
@click.option(
    "--compare",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A .tflite or .onnx file that another tool made of MODEL: it is measured like edgekit's own and shown beside "
    "them, and never packed. Repeatable.",
)
@click.option(
    "--allow-random",
    is_flag=True,
    help="Make up inputs where none are given. Only for a first look: results on real input will differ, "
    "and the report says so.",
)
@click.option(
    "--max-drop",
    type=PERCENT,
    metavar="PERCENT",
    help="How much accuracy INT8 may cost you, in points: 1%. What loses more is repaired, or refused. Without "
    "labels: how many answers may change. 100% allows everything. Default: 5%; no limit on made-up inputs.",
)
@budget_ms
@click.option(
    "--repair-budget",
    "repair_s",
    type=click.FloatRange(0, 86_400),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Processor time to search for a repair of INT8 that loses more than --max-drop. 0: do not repair.",
)
@click.option(
    "--recipe",
    "recipes",
    shell_complete=completion.recipes,
    multiple=True,
    metavar="NAME",
    help="Make only this kind of artifact, such as tflite-int8; repeatable. Default: all that may be worth it.",
)
@click.option(
    "--alternates",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="How many runners-up to keep in each bundle, so that the board itself can find out which is faster.",
)
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(2, 256),
    multiple=True,
    metavar="N",
    help="Pack the chosen artifact for N items at once besides, where its file cannot take them otherwise; repeatable.",
)
@click.option(
    "--degraded",
    type=PATH,
    multiple=True,
    metavar="BUNDLE",
    help="Pack the model of this bundle, too, which was built for the same board of a smaller network: it answers what "
    "would be late, where the application opens it with ModelLimits(degraded=True). Repeatable, one a board.",
)
@click.option(
    "--contract",
    type=PATH,
    metavar="TOML",
    help="A file that says what inputs and outputs mean. Default: MODEL.contract.toml beside the model.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,48,192",
    help="The size of an input that the model leaves open; repeatable.",
)
@click.option(
    "--constant",
    "constants",
    multiple=True,
    metavar="NAME=16000",
    help="An input that always has this value, and need not be given on the board; repeatable.",
)
@click.option("--signature", metavar="NAME", help="Which function of a SavedModel to take, if it has several.")
@click.option(
    "--trust-model",
    is_flag=True,
    help="Let code inside the model file run (Lambda layers, pickles). Only for files whose author you trust.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=lambda: min(2, os.cpu_count() or 1),
    metavar="N",
    help="How much is converted and measured at once. Default: 2, or the number of cores if that is less.",
)
@click.option(
    "--cache",
    type=PATH,
    metavar="DIR",
    help="Where work is kept for the next build. Default: edgekit/build in your cache folder (~/.cache); "
    "it stays below 4 GiB.",
)
@click.option("--no-cache", is_flag=True, help="Use nothing of earlier builds, and keep nothing for later ones.")
@as_json
def build(as_json: bool, **options: Any) -> int:
    """Make MODEL small and fast for your boards, prove how good it still is, and pack it.

    MODEL is a trained model: .keras, .h5, .onnx, .tflite, .pt2, a SavedModel folder, or module:function for PyTorch. It
    is converted in several ways, most of them with 8-bit numbers (INT8), which are smaller and faster but round. Each
    result is run and compared with your model; for each board the best one that keeps your limits is packed into a
    bundle (.ekb), and a report shows what was measured, what was refused and why.
    """
    from edgekit.api import build as build_with
    from edgekit.building.build_report import summary

    signing = signing_of(options.pop("sign"), options.pop("signer"), options.pop("passphrase_file"))
    folder, without = options.pop("cache"), options.pop("no_cache")
    cache = False if without else folder or True
    command = ("edgekit", *sys.argv[1:])
    with _scratch() as scratch, _resumable(as_json, scratch):
        with console_progress() as progress:
            report = build_with(
                sign=signing, cache=cache, command=command, progress=progress, say=progress.say, **options
            )
        if as_json:
            print_json(report.as_json())
        else:
            for line in summary(report, warned=True):
                say(line)
    return 0 if report.complete else 1


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder for the temporary files of TensorFlow and other tools, removed with the build."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="edgekit-build-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")
            if variable is not None:
                os.environ["TMPDIR"] = variable


@contextmanager
def _resumable(as_json: bool, scratch: str) -> Iterator[None]:
    """On Ctrl-C, print one line and exit without waiting for a busy conversion tool."""
    try:
        yield
    except KeyboardInterrupt:
        others = [one for one in threading.enumerate() if one.name == "edgekit-build"]
        for one in others:
            one.join(_GRACE_S / len(others))
        if not as_json:
            click.echo("interrupted: run the same command again, and it resumes here", err=True)
        if any(one.is_alive() for one in others):
            if as_json:
                click.echo('{"error": {"code": "interrupted", "what": "interrupted", "where": "", "do": ""}}')
            sys.stdout.flush()
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(130)
        if not as_json:
            raise click.exceptions.Exit(130) from None
        raise
