"""edgekit check: will it load on that board, and answer there as it did here?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.cli import completion
from edgekit.cli.options import (
    BUNDLE,
    allow_unsigned,
    as_json,
    catalogue_of,
    print_json,
    profile_path,
    say,
    secret,
    trust,
)
from edgekit.cli.progress import console_progress

if TYPE_CHECKING:
    from edgekit.checking.checked import CheckReport
    from edgekit.checking.replay import ReplayResult


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
@click.option("--no-replay", is_flag=True, help="Only what the files show: nothing is run, nothing is fetched.")
@trust
@allow_unsigned
@secret
@as_json
def check(
    artifact: Path,
    profiles: tuple[str, ...],
    profile_paths: tuple[Path, ...],
    runtimes: tuple[str, ...],
    emulate: bool,
    no_replay: bool,
    trust: tuple[Path, ...],
    allow_unsigned: bool,
    secret: str | None,
    as_json: bool,
) -> int:
    """Predict whether a bundle loads on a board, and agrees there.

    The argument is a bundle, an install ROOT, a .tflite or an .onnx file.

    What the file alone shows comes first: operator versions, NumPy, wheels for the board's Python, memory.
    Then the golden examples are replayed with that very version of the runtime, which is installed beside this
    environment and kept. Each finding has a code: `edgekit doctor CODE` says more. Exits 1 when a finding is an error.

    \b
    edgekit check net.ekb --profile raspberry-pi-4
    edgekit check net.tflite --profile raspberry-pi-4 --runtime tflite-runtime==2.14.0
    """
    from edgekit.checking.checked import CheckRequest, runtime_named
    from edgekit.checking.checked import check as checked
    from edgekit.model_file import bundle_file, form_of
    from edgekit_runtime.bundle.reader import read_bundle

    if emulate and no_replay:
        raise click.UsageError("--emulate replays, and --no-replay does not: pass one of them.")
    artifact = click.get_current_context().with_resource(bundle_file(artifact, trust, allow_unsigned))
    if not profiles:
        if form_of(artifact) != "bundle":
            raise click.UsageError("A model file does not say for which board: pass --profile NAME.")
        profiles = (read_bundle(artifact).manifest.target.profile,)
    named = tuple(runtime_named(text) for text in runtimes)
    catalogue = catalogue_of(profile_paths)
    boards = [catalogue.load(name) for name in dict.fromkeys(profiles)]
    with console_progress() as progress:
        found = [
            checked(CheckRequest(artifact, board, named, not no_replay, emulate, secret), progress) for board in boards
        ]
    if as_json:
        several = {"ok": all(one.ok for one in found), "checks": [one.as_json() for one in found]}
        print_json(found[0].as_json() if len(found) == 1 else several)
    else:
        for one in found:
            for line in _lines(one, artifact):
                say(line)
    return 0 if all(one.ok for one in found) else 1


def _lines(checked: CheckReport, artifact: Path) -> Iterator[str]:
    errors = sum(found.level == "error" for found in checked.findings)
    missing = any(found.code in ("replay-unavailable", "replay-impossible") for found in checked.findings)
    if errors:
        verdict = f"{errors} error{'s' if errors > 1 else ''}"
    elif checked.replayed is None:  # what was not run is not known to be right
        verdict = "ok, not replayed"
    else:
        verdict = "ok, in part not replayed" if missing and checked.replayed.where == "native" else "ok"
    yield f"{artifact.name} on {checked.profile}: {verdict}"
    for replayed in checked.replays:
        yield f"  replayed {replay_line(replayed)}"
    for found in checked.findings:
        yield f"  {found.level} {found.code}: {f'{found.artifact}: ' if found.artifact else ''}{found.what}"
        if found.level == "error":
            yield f"    why: {found.why}"
        yield f"    do:  {found.do}"


def replay_line(one: ReplayResult) -> str:
    whose = f"{one.artifact} " if one.artifact else ""
    where = f"under QEMU, {one.cpu}, not on hardware" if one.where == "emulated" else "on this machine"
    worst = one.worst
    if worst is None:
        return f"{whose}with {one.runtime} {where}: no answer"
    cosine = "" if one.cosine is None else f", cosine {one.cosine:.4f}"
    count = f"{one.examples} golden examples, " if one.examples else ""
    # A step of float outputs is 1e-4 of the largest value, which says nothing to a reader.
    share = f"{worst * 1e-2:.2g} % of the largest value"
    furthest = f"{worst:.3g} step{'s' * (worst != 1)}" if one.quantized else share
    return f"{whose}with {one.runtime} {where}: {count}furthest {furthest}{cosine}"
