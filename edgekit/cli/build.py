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
from typing import Any

import click

from edgekit.building.build_request import BuildRequest
from edgekit.cli import options as opt
from edgekit.cli.printing import print_result
from edgekit.cli.progress import console_progress
from edgekit.cli.signing import signing_of

_GRACE_S = 2.0
_EPILOG = """\b
Examples:
  A first look, with photos like those from the board's camera:
    edgekit build net.keras --profile raspberry-pi-4 --calibration photos/
  With labelled photos (one sub-folder per class) and limits:
    edgekit build net.keras --profile raspberry-pi-4 --profile raspberry-pi-5 \\
      --calibration photos/ --evaluation labelled/ --max-drop 1% --budget-ms 50
  An ONNX model with a free image size, fixed to one size:
    edgekit build net.onnx --shape image=1,3,48,192 --profile x86-64 --calibration photos/
\b
Exits 0 if every board got a bundle within the limits, 1 if not (the report says why; the other bundles are written),
2 for a usage error, 130 if interrupted: run it again to resume.
"""


@click.command(cls=opt.SectionedCommand, epilog=_EPILOG)
@click.argument("model", type=opt.MODEL)
@opt.options_of(BuildRequest)
@opt.no_cache
@opt.as_json
def build(as_json: bool, **options: Any) -> int:
    """Convert MODEL for your boards, measure the accuracy loss, and pack the result.

    MODEL is a trained model: .keras, .h5, .onnx, .tflite, .pt2, a SavedModel folder, or module:function for PyTorch.
    edgekit converts it in several ways, most of them to 8-bit integers (INT8), which are smaller and faster but less
    precise. It compares each artifact with your model, and packs the best one within your limits into a bundle (.ekb)
    for each board. A report shows the measurements, and why artifacts were rejected.
    """
    from edgekit.api import build as build_with
    from edgekit.building.build_report import summary

    signing = signing_of(options.pop("sign"), options.pop("signer"), options.pop("passphrase_file"))
    options["cache"] = not options.pop("no_cache") and (options["cache"] or True)
    command = ("edgekit", *sys.argv[1:])
    with scratch() as folder, resumable(as_json, folder):
        with console_progress() as progress:
            report = build_with(sign=signing, command=command, progress=progress, say=progress.say, **options)
        print_result(report.as_json(), summary(report, warned=True), as_json)
    return 0 if report.complete else 1


@contextmanager
def scratch() -> Iterator[str]:
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
def resumable(as_json: bool, folder: str) -> Iterator[None]:
    """On Ctrl-C, print one line and exit without waiting for a busy conversion tool."""
    try:
        yield
    except KeyboardInterrupt:
        others = [one for one in threading.enumerate() if one.name == "edgekit-build"]
        for one in others:
            one.join(_GRACE_S / len(others))
        if not as_json:
            click.echo("interrupted; run the same command again to resume", err=True)
        if any(one.is_alive() for one in others):
            if as_json:
                click.echo('{"error": {"code": "interrupted", "what": "interrupted", "where": "", "do": ""}}')
            sys.stdout.flush()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(130)
        if not as_json:
            raise click.exceptions.Exit(130) from None
        raise
