"""edgekit profiles measure: time MobileNetV1 on this board, for estimates on a workstation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.options import PATH, as_json, catalogue_of, print_json, profile_path
from edgekit.cli.output import refuse_unwritable, say

if TYPE_CHECKING:
    from edgekit_profiles import Profile

__all__ = ["measure"]


@click.command()
@click.option(
    "--anchors",
    "folder",
    type=PATH,
    metavar="DIR",
    help="The network's files, which are in the board's package. Default: written here, where LiteRT or onnx can.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    multiple=True,
    metavar="N",
    help="Threads to time; repeatable. Default: 1 and up to 4.",
)
@click.option(
    "--profile",
    shell_complete=completion.profiles,
    metavar="NAME",
    help="The board's profile. Default: what `edgekit profiles detect` finds.",
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the anchor file there.")
@profile_path
@as_json
def measure(
    folder: Path | None,
    threads: tuple[int, ...],
    profile: str | None,
    output: Path | None,
    profile_paths: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Time MobileNetV1 here, in float32 and int8, with every engine installed: a few seconds. For `estimate --anchor`.

    \b
    edgekit profiles measure -o our-pi.json                       # on the board
    edgekit estimate net.ekb --anchor our-pi.json                 # on the workstation

    Exits 1 when the board slowed down or was busy meanwhile: such times say little of it.
    """
    from edgekit.estimating import Plan, measure_anchors
    from edgekit.estimating.anchoring import default_threads
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    if output is not None:
        refuse_unwritable(output)
    facts = read_facts()
    catalogue = catalogue_of(profile_paths)
    if profile is None:
        board = detect(facts, catalogue)
        known = board.profile if board.sure in ("certain", "likely") else None
    else:
        known = catalogue.load(profile)
    name = known.name if known else ""
    plan = Plan(threads=threads or default_threads(), profile=name, model=facts.model)
    found = measure_anchors(folder, plan, lambda line: click.echo(f"timing {line}", err=True))
    if output is not None:
        _write(output, found)
    if as_json:
        print_json(found)
    else:
        for line in _lines(found, output, known):
            say(line)
    return 0 if found["steady"] else 1


def _lines(found: dict[str, Any], output: Path | None, known: Profile | None) -> Iterator[str]:
    from edgekit_profiles import has_rates

    board, now = found["board"], found["conditions"]
    yield (
        f"MobileNetV1 1.0 224 on {board['model'] or board['machine']}: "
        f"{board['profile'] or 'no profile knows this board'}"
    )
    yield f"  {'engine':<24} {'precision':<10} {'threads':>7} {'best':>9} {'median':>9} {'p95':>9}  ms"
    for one in found["times"]:
        engine = f"{one['engine']} {one['engine_version']}"
        yield (
            f"  {engine:<24} {one['precision']:<10} {one['threads']:>7} {one['min_ms']:>9.2f} {one['p50_ms']:>9.2f} "
            f"{one['p95_ms']:>9.2f}"
        )
    for line in found["failed"]:
        yield f"  not timed  {line}"
    during = now["during"]
    clock, heat = during["frequency_mhz"], during["temperature_c"]
    ran = f"{clock['min']} to {clock['max']} MHz" if clock else "not told"
    yield f"  clock      {ran}, governor {now['governor'] or 'not told'}"
    warmed = f"{heat['before']:g} to {heat['after']:g} C" if heat else "not told"
    yield f"  heat       {warmed}"
    slowed = {True: ", ".join(during["throttled_by"]), False: "no", None: "not told"}[during["throttled"]]
    yield f"  throttled  {slowed}"
    if now["after"]["power_mode"] is not None:
        yield f"  mode       {now['after']['power_mode']}"
    for reason in found["changed"]:
        yield f"  not steady {reason}"
    if found["changed"]:
        yield "  next       mend that, and measure again: the workstation refuses this file"
    elif known is not None and not has_rates(known):  # no anchor is ever asked for there
        yield (
            f"  next       nothing is estimated for {known.core.type} cores: time the bundle itself here, "
            "and take that:"
        )
        yield (
            f"             edgekit bench BUNDLE -o RECORD.json; edgekit estimate BUNDLE --profile {known.name} "
            "--record RECORD.json"
        )
    elif output is not None:
        name = board["profile"] or "NAME"
        yield f"  next       on the workstation: edgekit estimate BUNDLE --profile {name} --anchor {output.name}"


def _write(output: Path, found: dict[str, Any]) -> None:
    from edgekit.errors import OutputError

    try:
        output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error
