"""edgekit estimate: how long an artifact will take on boards, without having one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.building.build_request import BuildRequest
from edgekit.cli import options as opt
from edgekit.cli.printing import print_result
from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.errors import EdgekitError

if TYPE_CHECKING:
    from edgekit.boards.estimates import EstimateResult
    from edgekit.boards.subject import EstimateSubject
    from edgekit_profiles import HostTimes


@click.command()
@click.argument("artifact", type=opt.PATH, metavar="BUNDLE|ROOT|ARTIFACT")
@opt.profiles(help="The board; repeatable. Default: the bundle's own.")
@opt.threads()
@click.option(
    "--runtime",
    type=click.Choice(opt.BOARD_ENGINES),
    help="The engine on the board. Default: the one that installs there.",
)
@click.option("--layers", is_flag=True, help="Show all layers, in file order. Default: the five slowest.")
@click.option(
    "--measure-here",
    is_flag=True,
    help="Time the file and MobileNetV1 on this machine first (x86-64 with LiteRT; about 2 s). Their ratio narrows the "
    "range for boards with a known MobileNetV1 time. A bundle beside its report has the build's ratio.",
)
@opt.options_of(BuildRequest, "anchors")
@click.option(
    "--record",
    "record_paths",
    type=opt.PATH,
    multiple=True,
    metavar="FILE",
    help="Record of `edgekit bench -o` on the board for this artifact, used instead of an estimate. Repeatable.",
)
@opt.profile_path
@opt.opening
@opt.as_json
def estimate(artifact: Path, as_json: bool, **asked: Any) -> int:
    """Estimate the latency on a board: a range, its grade and its sources.

    The argument is a bundle, an install ROOT, a .tflite or an .onnx file.

    \b
    edgekit estimate net-raspberry-pi-4.ekb
    edgekit estimate net.tflite --profile raspberry-pi-5 --profile jetson-nano --measure-here
    edgekit estimate net.ekb --profile raspberry-pi-4 --anchor our-pi.json

    Grades: `measured` on the board, `anchored` to the time of MobileNetV1 there, `estimated` from a fit to published
    times of many boards. Exits 1 if a board has no estimate.
    """
    from edgekit.boards.anchoring import can_time_here
    from edgekit.boards.estimates import EstimateOptions, answer, open_record, refuse_unused, refuse_unused_anchors
    from edgekit.boards.subject import open_subjects
    from edgekit_profiles.anchors import read_anchor_file, refuse_other_boards

    file = opt.held_bundle(artifact, asked["trust"], asked["allow_unsigned"])
    subjects = _runnable(open_subjects(file, asked["secret"]), asked["runtime"])
    catalogue = opt.catalogue_of(asked["profile_paths"])
    names = list(dict.fromkeys(asked["profiles"] or [subject.profile for subject in subjects if subject.profile]))
    if not names:
        raise click.UsageError("A model file names no board: pass --profile NAME.")
    profiles = [catalogue.load(name) for name in names]
    given = EstimateOptions(
        engine=asked["runtime"],
        threads=asked["threads"],
        anchors=[read_anchor_file(path) for path in asked["anchors"]],
        records=[(path, open_record(path)) for path in asked["record_paths"]],
        catalogue=catalogue,
    )
    refuse_other_boards(given.anchors, profiles)
    answers = []
    for subject in subjects:
        host = _host(subject) if asked["measure_here"] else None
        answers += [answer(subject, profile, replace(given, host=host)) for profile in profiles]
    pairs = [(subject, profile) for subject in subjects for profile in profiles]
    matched = [(subject, answered, profile) for (subject, profile), answered in zip(pairs, answers, strict=True)]
    refuse_unused(given.records, matched, given.catalogue)
    refuse_unused_anchors(given.anchors, matched)
    record = {"artifact": str(artifact), "estimates": [one.as_json(asked["layers"]) for one in answers]}
    print_result(record, (line for one in answers for line in _lines(one, asked["layers"])), as_json)
    if not as_json:
        anchored = any(one.estimate and one.estimate.grade == "anchored" for one in answers)
        untimed = [subject for subject in subjects if subject.host is None]
        if anchored and not asked["measure_here"] and not all(can_time_here(s.format, s.precision) for s in untimed):
            click.echo("hint: --measure-here takes about 2 s and makes the anchored ranges narrower", err=True)
    return 1 if any(one.estimate is None for one in answers) else 0


def _runnable(subjects: list[EstimateSubject], runtime: str | None) -> list[EstimateSubject]:
    """Artifacts that the runtime can run. Raises CannotEstimateError if there are none."""
    from edgekit_profiles import CannotEstimateError

    if runtime is None:
        return subjects
    found = [subject for subject in subjects if subject.format in ENGINES[runtime].formats]
    if not found:
        others = ", ".join(name for name in opt.BOARD_ENGINES if subjects[0].format in ENGINES[name].formats)
        what = (
            f"{runtime} runs {' and '.join(ENGINES[runtime].formats)}, and {subjects[0].name} is {subjects[0].format}"
        )
        raise CannotEstimateError(what, do=f"Name an engine that runs it: {others}")
    return found


def _host(subject: EstimateSubject) -> HostTimes | None:
    """None, with the reason on stderr, if this machine cannot measure it."""
    from edgekit.boards.anchoring import can_time_here, time_here

    why = can_time_here(subject.format, subject.precision)
    if not why:
        try:
            return time_here([(subject.format, subject.data, subject.precision)])[0]
        except EdgekitError as error:
            why = error.what
    click.echo(f"{subject.name} was not timed here: {why}", err=True)
    return None


def _lines(answered: EstimateResult, layers: bool) -> Iterator[str]:
    from edgekit_profiles import milliseconds

    found = answered.estimate
    if found is None:
        yield f"{answered.subject} on {answered.profile}: no estimate"
        if answered.refused is not None:
            yield f"  why        {answered.refused.what}"
            yield f"  next       {answered.refused.do}"
        return
    low, mid, high = map(milliseconds, (found.low_ms, found.mid_ms, found.high_ms))
    yield f"{answered.subject} on {answered.profile}: {low} to {high} ms, middle {mid} ms, {found.grade}"
    yield f"  engine     {answered.engine}, {answered.threads} thread{'s' if answered.threads > 1 else ''}"
    if found.dominated_by:
        yield f"  mostly     {found.dominated_by}"
    yield from _wrapped("rests on", found.source)
    for note in found.notes:
        yield from _wrapped("note", note)
    shown, total = answered.shown(layers), len(answered.layers)
    if not shown:
        return
    which = "layers" if len(shown) == total else f"the {len(shown)} of {total} layers that take longest"
    yield f"  {which}, by the roofline's share of the middle:"
    yield f"    {'ms':>7} {'share':>6} {'Mmac':>8}  {'kind':<15} {'bound by':<24} layer"
    for layer in shown:
        name = layer.name.split(";")[0]  # a converter joins the names of what it fused; the first is the layer's
        yield (
            f"    {milliseconds(layer.ms):>7} {layer.share:>6.1%} {layer.macs / 1e6:>8.2f}  {layer.kind:<15} "
            f"{layer.bound_by:<24} {name if len(name) <= 60 else f'...{name[-57:]}'}"
        )


def _wrapped(title: str, text: str) -> Iterator[str]:
    for number, line in enumerate(textwrap.wrap(text, 105, break_long_words=False)):
        yield f"  {title if number == 0 else '':<10} {line}"
