"""edgekit estimate: how long an artifact will take on boards, without having one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import completion
from edgekit.cli.options import PATH, as_json, catalogue_of, print_json, profile_path, threads
from edgekit.cli.output import say
from edgekit.cli.secret_options import secret
from edgekit_runtime.engines import ENGINES

if TYPE_CHECKING:
    from edgekit.estimating import Answer, Given, LayerTime, Subject
    from edgekit_profiles import HostTimes, Profile

__all__ = ["estimate"]

_FEW = 5


@click.command()
@click.argument("artifact", type=PATH, metavar="BUNDLE|ROOT|ARTIFACT")
@click.option(
    "--profile",
    "profiles",
    shell_complete=completion.profiles,
    multiple=True,
    metavar="NAME",
    help="The board; repeatable. Default: the bundle's own.",
)
@threads
@click.option(
    "--runtime",
    type=click.Choice(tuple(ENGINES)),
    help="The engine on the board. Default: what installs there.",
)
@click.option("--layers", is_flag=True, help="All layers, in the file's order. Default: the five that take longest.")
@click.option(
    "--measure-here",
    is_flag=True,
    help="Time the file and MobileNetV1 on this machine first (x86-64 with LiteRT; about 2 s): their ratio narrows the "
    "range for boards whose MobileNetV1 is known. A bundle brings the ratio of its build.",
)
@click.option(
    "--anchor",
    "anchor_paths",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="What `edgekit profiles measure` wrote on the board; repeatable.",
)
@click.option(
    "--record",
    "record_paths",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="What `edgekit bench -o` wrote on the board for this artifact: then the answer is measured. Repeatable.",
)
@profile_path
@secret
@as_json
def estimate(artifact: Path, as_json: bool, **asked: Any) -> int:
    """How long ARTIFACT (a bundle, an install ROOT, a .tflite or an .onnx file) will take on a board: a range, its
    grade, what it rests on.

    \b
    edgekit estimate net-raspberry-pi-4.ekb
    edgekit estimate net.tflite --profile raspberry-pi-5 --profile jetson-nano --measure-here
    edgekit estimate net.ekb --profile raspberry-pi-4 --anchor our-pi.json

    `anchored` goes from the time of MobileNetV1 on that board, `estimated` from a fit to published times of many
    boards, `measured` was taken there. Exits 1 where a board's time cannot be told.
    """
    from edgekit.estimating import answer, open_subjects
    from edgekit.estimating.answer import refuse_unused, refuse_unused_anchors
    from edgekit.model_file import bundle_file
    from edgekit_profiles.anchors import refuse_strangers

    file = click.get_current_context().with_resource(bundle_file(artifact))
    subjects = _runnable(open_subjects(file, asked["secret"]), asked["runtime"])
    profiles = _profiles(asked["profiles"], subjects, asked["profile_paths"])
    given = _given(asked)
    refuse_strangers(given.anchors, profiles)
    answers = []
    for subject in subjects:
        host = _host(subject) if asked["measure_here"] else None
        answers += [answer(subject, profile, _with(given, host)) for profile in profiles]
    pairs = [(subject, profile) for subject in subjects for profile in profiles]
    matched = [(subject, told, profile) for (subject, profile), told in zip(pairs, answers, strict=True)]
    refuse_unused(given.records, matched, given.catalogue)
    refuse_unused_anchors(given.anchors, matched)
    if as_json:
        print_json({"artifact": str(artifact), "estimates": [_json(told, asked["layers"]) for told in answers]})
    else:
        for told in answers:
            for line in _lines(told, asked["layers"]):
                say(line)
        _hint(subjects, answers, asked["measure_here"])
    return 1 if any(told.estimate is None for told in answers) else 0


def _runnable(subjects: list[Subject], runtime: str | None) -> list[Subject]:
    """Of a bundle, those that the runtime can run. Raises CannotEstimateError where that is none."""
    from edgekit_profiles import CannotEstimateError

    if runtime is None:
        return subjects
    found = [subject for subject in subjects if subject.format in ENGINES[runtime].formats]
    if not found:
        others = ", ".join(name for name, kind in ENGINES.items() if subjects[0].format in kind.formats)
        what = (
            f"{runtime} runs {' and '.join(ENGINES[runtime].formats)}, and {subjects[0].name} is {subjects[0].format}"
        )
        raise CannotEstimateError(what, do=f"Name an engine that runs it: {others}")
    return found


def _profiles(names: Sequence[str], subjects: Sequence[Subject], paths: Sequence[Path]) -> list[Profile]:
    catalogue = catalogue_of(paths)
    wanted = list(dict.fromkeys(names or [subject.profile for subject in subjects if subject.profile]))
    if not wanted:
        raise click.UsageError("A model file does not say for which board: pass --profile NAME.")
    return [catalogue.load(name) for name in wanted]


def _given(asked: dict[str, Any]) -> Given:
    from edgekit.estimating import Given
    from edgekit.estimating.answer import open_record
    from edgekit_profiles.anchors import read_anchor_file

    return Given(
        engine=asked["runtime"],
        threads=asked["threads"],
        anchors=[read_anchor_file(path) for path in asked["anchor_paths"]],
        records=[(path, open_record(path)) for path in asked["record_paths"]],
        catalogue=catalogue_of(asked["profile_paths"]),
    )


def _with(given: Given, host: HostTimes | None) -> Given:
    from dataclasses import replace

    return replace(given, host=host)


def _host(subject: Subject) -> HostTimes | None:
    """None, with the reason on stderr, where this machine cannot tell."""
    from edgekit.estimating import can_time_here, time_here
    from edgekit_runtime.errors import EdgekitError

    why = can_time_here(subject.format, subject.precision)
    if not why:
        try:
            return time_here([(subject.format, subject.data, subject.precision)])[0]
        except EdgekitError as error:
            why = error.what
    click.echo(f"{subject.name} was not timed here: {why}", err=True)
    return None


def _json(told: Answer, layers: bool) -> dict[str, Any]:
    found = asdict(told.estimate) if told.estimate else None
    shown = [asdict(layer) for layer in told.layers] if layers else [asdict(layer) for layer in _longest(told.layers)]
    return {
        "subject": told.subject,
        "profile": told.profile,
        "engine": told.engine or None,
        "threads": told.threads,
        "estimate": found,
        "layers": shown,
        "refused": told.refused.as_json() if told.refused else None,
    }


def _lines(told: Answer, layers: bool) -> Iterator[str]:
    from edgekit_profiles import milliseconds

    found = told.estimate
    if found is None:
        yield f"{told.subject} on {told.profile}: no estimate"
        if told.refused is not None:
            yield f"  why        {told.refused.what}"
            yield f"  next       {told.refused.do}"
        return
    low, mid, high = map(milliseconds, (found.low_ms, found.mid_ms, found.high_ms))
    plural = "s" if told.threads > 1 else ""
    yield f"{told.subject} on {told.profile}: {low} to {high} ms, middle {mid} ms, {found.grade}"
    yield f"  engine     {told.engine}, {told.threads} thread{plural}"
    if found.dominated_by:
        yield f"  mostly     {found.dominated_by}"
    yield from _wrapped("rests on", found.source)
    for note in found.notes:
        yield from _wrapped("note", note)
    shown = told.layers if layers else _longest(told.layers)
    if shown:
        yield from _table(shown, len(told.layers))


def _longest(layers: Sequence[LayerTime]) -> list[LayerTime]:
    return sorted(layers, key=lambda layer: -layer.ms)[:_FEW]


def _wrapped(title: str, text: str) -> Iterator[str]:
    for number, line in enumerate(textwrap.wrap(text, 105, break_long_words=False)):
        yield f"  {title if number == 0 else '':<10} {line}"


def _table(shown: Sequence[LayerTime], total: int) -> Iterator[str]:
    from edgekit_profiles import milliseconds

    which = "layers" if len(shown) == total else f"the {len(shown)} of {total} layers that take longest"
    yield f"  {which}, by the roofline's share of the middle:"
    yield f"    {'ms':>7} {'share':>6} {'Mmac':>8}  {'kind':<15} {'bound by':<24} layer"
    for layer in shown:
        yield (
            f"    {milliseconds(layer.ms):>7} {layer.share:>6.1%} {layer.macs / 1e6:>8.2f}  {layer.kind:<15} "
            f"{layer.bound_by:<24} {_short(layer.name)}"
        )


def _short(name: str, most: int = 60) -> str:
    """A converter joins the names of what it fused; the first is the layer's."""
    name = name.split(";")[0]
    return name if len(name) <= most else f"...{name[3 - most :]}"


def _hint(subjects: Sequence[Subject], answers: Sequence[Answer], measured: bool) -> None:
    """How to know better, where this machine could."""
    from edgekit.estimating import can_time_here

    if measured or not any(told.estimate and told.estimate.grade == "anchored" for told in answers):
        return
    if any(subject.host is None and not can_time_here(subject.format, subject.precision) for subject in subjects):
        click.echo("hint: --measure-here takes about 2 s and makes the anchored ranges narrower", err=True)
