"""edgekit check: will it load on that board, and answer there as it did here?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.cli import completion
from edgekit.cli.options import BUNDLE, as_json, catalogue_of, print_json, profile_path
from edgekit.cli.output import say
from edgekit.cli.progress import shown
from edgekit.cli.secret_options import secret

if TYPE_CHECKING:
    from edgekit.checking import Checked, Finding, Replayed

__all__ = ["check"]


@click.command()
@click.argument("artifact", type=BUNDLE, metavar="BUNDLE|ROOT|ARTIFACT")
@click.option(
    "--profile",
    "profiles",
    shell_complete=completion.profiles,
    multiple=True,
    metavar="NAME",
    help="The board: a name of `edgekit profiles list`, or the path of a .toml. Repeatable. Default: the bundle's own.",
)
@profile_path
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    metavar="ENGINE==VERSION",
    help="The runtime that the board really has, such as tflite-runtime==2.14.0. Default: what the profile installs.",
)
@click.option("--emulate", is_flag=True, help="Install and replay it on the board's processor under QEMU, too.")
@click.option("--no-replay", is_flag=True, help="Only what the files tell: nothing is run, nothing is fetched.")
@secret
@as_json
def check(
    artifact: Path,
    profiles: tuple[str, ...],
    profile_paths: tuple[Path, ...],
    runtimes: tuple[str, ...],
    emulate: bool,
    no_replay: bool,
    secret: str | None,
    as_json: bool,
) -> int:
    """Say before a board is at hand whether a bundle (or the active one of an install ROOT, a .tflite or .onnx file)
    will load and agree there.

    What can be told from the file alone comes first: operator versions, NumPy, wheels for the board's Python, memory.
    Then the golden examples are replayed with that very version of the runtime, which is installed beside this
    environment and kept. Each finding has a code: `edgekit doctor CODE` says more. Exits 1 when a finding is an error.

    \b
    edgekit check net.ekb --profile raspberry-pi-4
    edgekit check net.tflite --profile raspberry-pi-4 --runtime tflite-runtime==2.14.0
    """
    from edgekit.checking import Request
    from edgekit.checking import check as checked
    from edgekit.checking.checked import runtime_named
    from edgekit.model_file import bundle_file

    if emulate and no_replay:
        raise click.UsageError("--emulate replays, and --no-replay does not: pass one of them.")
    artifact = click.get_current_context().with_resource(bundle_file(artifact))
    named = tuple(runtime_named(text) for text in runtimes)
    catalogue = catalogue_of(profile_paths)
    boards = [catalogue.load(name) for name in dict.fromkeys(profiles or [_own(artifact)])]
    with shown() as progress:
        found = [checked(Request(artifact, board, named, not no_replay, emulate, secret), progress) for board in boards]
    if as_json:
        several = {"ok": all(one.ok for one in found), "checks": [one.as_json() for one in found]}
        print_json(found[0].as_json() if len(found) == 1 else several)
    else:
        for one in found:
            for line in _lines(one, artifact):
                say(line)
    return 0 if all(one.ok for one in found) else 1


def _own(artifact: Path) -> str:
    """The board that a bundle was built for."""
    from edgekit.model_file import form_of
    from edgekit_runtime.bundle import read_bundle

    if form_of(artifact) != "bundle":
        raise click.UsageError("A model file does not say for which board: pass --profile NAME.")
    return read_bundle(artifact).manifest.target.profile


def _lines(checked: Checked, artifact: Path) -> Iterator[str]:
    errors = sum(found.level == "error" for found in checked.findings)
    verdict = _fine(checked) if checked.ok else f"{errors} error{'s' if errors > 1 else ''}"
    yield f"{artifact.name} on {checked.profile}: {verdict}"
    for replayed in checked.replays:
        yield f"  replayed {_replayed(replayed)}"
    for found in checked.findings:
        yield from _finding(found)


def _fine(checked: Checked) -> str:
    """What was not run is not known to be right."""
    missing = any(found.code in ("replay-unavailable", "replay-impossible") for found in checked.findings)
    if checked.replayed is None:
        return "ok, not replayed"
    return "ok, in part not replayed" if missing and checked.replayed.where == "native" else "ok"


def _replayed(one: Replayed) -> str:
    whose = f"{one.artifact} " if one.artifact else ""
    where = f"under QEMU, {one.cpu}, not on hardware" if one.where == "emulated" else "on this machine"
    if one.worst is None:
        return f"{whose}with {one.runtime} {where}: no answer"
    cosine = "" if one.cosine is None else f", cosine {one.cosine:.4f}"
    count = f"{one.examples} golden examples, " if one.examples else ""
    return f"{whose}with {one.runtime} {where}: {count}furthest {_furthest(one)}{cosine}"


def _furthest(one: Replayed) -> str:
    """A step of float outputs is 1e-4 of the largest value, which says nothing to a reader."""
    worst = one.worst or 0.0
    return f"{worst:.3g} step{'s' * (worst != 1)}" if one.quantized else f"{worst * 1e-2:.2g} % of the largest value"


def _finding(found: Finding) -> Iterator[str]:
    whose = f"{found.artifact}: " if found.artifact else ""
    yield f"  {found.level} {found.code}: {whose}{found.what}"
    if found.level == "error":
        yield f"    why: {found.why}"
    yield f"    do:  {found.do}"
