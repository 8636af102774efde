"""edgekit fleet rollout, pause, resume, abort, undo: move a fleet in waves, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli import options as opt
from edgekit.cli.printing import print_result

if TYPE_CHECKING:
    from edgekit.fleet.rollouts.rollout_tables import Rollout, RolloutTables
    from edgekit.fleet.rollouts.waves import Word


@click.command()
@click.argument("bundle", type=opt.BUNDLE)
@click.option(
    "--waves", default="1%,10%,50%,100%", show_default=True, help="Cumulative share of the boards for each wave."
)
@click.option("--against", default="", metavar="LABEL=NAME",
              help="Compare with boards of this site or group, which keep their version.")  # fmt: skip
@click.option(
    "--abort-over", default="5%", show_default=True, help="Stop if two boards and more than this share of a wave fail."
)
@click.option("--url", metavar="URL", help="URL of the bundle, if you host it yourself.")
@click.option("--server", metavar="URL", help="The fleet server's URL for boards; it then hosts the bundle.")
@opt.bundles(help="The server's bundle folder. Default: next to the store.")
@click.option("--model", metavar="NAME", help="Boards that run this model. Default: the bundle's own name.")
@opt.profile(help="Boards of this profile. Default: all profiles of the bundle.")
@click.option("--site", metavar="NAME", help="Boards with this label.")
@click.option("--group", metavar="NAME", help="Boards with this label.")
@click.option("--settle", "settle_s", type=click.FloatRange(0), default=600.0, show_default=True, metavar="SECONDS",
              help="How long to watch each wave.")  # fmt: skip
@click.option("--deadline", "deadline_s", type=click.FloatRange(0), default=86400.0, show_default=True,
              metavar="SECONDS", help="How long offline boards delay a wave.")  # fmt: skip
@click.option("--p99-margin", type=click.FloatRange(1.0), default=1.25, show_default=True, metavar="FACTOR",
              help="A board is slower if its p99 or p90 grows by more than this factor.")  # fmt: skip
@click.option(
    "--shadow", metavar="SHARE", help="First run the new version silently on this share of some boards' requests: 5%."
)
@click.option("--differ", default="5%", show_default=True, metavar="SHARE",
              help="With --shadow: stop if more answers than this differ from the active version's.")  # fmt: skip
@click.option("--unjudged", is_flag=True, help="Continue without telemetry to compare.")
@click.option("--no-undo", is_flag=True, help="Do not roll boards back if the roll-out stops.")
@opt.store()
@opt.as_json
def rollout(bundle: Path, url: str | None, server: str | None, as_json: bool, store: str, **given: Any) -> None:
    """Move boards to BUNDLE in waves.

    The fleet server runs the roll-out; boards need `edgekit agent`.

    \b
    edgekit fleet rollout net.ekb --waves 1%,10%,50%,100% --abort-over 5% --server https://fleet.example
    """
    if (url is None) == (server is None):
        raise click.UsageError("Pass either --url or --server.")
    from edgekit.fleet.rollouts.rollout_tables import fitting
    from edgekit.fleet.rollouts.waves import RolloutPlan, parse_share
    from edgekit.fleet.store.records import now_ms
    from edgekit.fleet.web import BundleFiles, bundles_beside, read_bundle_facts

    waves = tuple(parse_share(one.strip()) for one in given["waves"].split(","))
    plan = RolloutPlan(
        waves, parse_share(given["abort_over"]), given["settle_s"], deadline_s=given["deadline_s"],
        shadow=parse_share(given["shadow"] or "0"), differ=parse_share(given["differ"]),
        judged=not given["unjudged"], undo=not given["no_undo"], p99_margin=given["p99_margin"],
        against=tuple(given["against"].split("=", 1)) if given["against"] else (),
    )  # fmt: skip
    facts, data = read_bundle_facts(bundle)
    with _opened(store) as (opened, tables):
        names = ("model", "profile", "site", "group")
        wanted = {name: given[name] for name in names}
        devices = fitting(facts, opened.fleet(), against=plan.against, **wanted)
        if server is not None:
            BundleFiles(given["bundles"] or bundles_beside(store)).add(facts.sha256, data)
            url = f"{server.rstrip('/')}/bundles/{facts.sha256}.ekb"
        made = tables.make(facts, url or "", plan, devices, now_ms())
        _show(made, tables, as_json)


@click.command()
@click.argument("number", type=int, required=False)
@opt.store()
@opt.as_json
def rollouts(number: int | None, store: str, as_json: bool) -> None:
    """List roll-outs, or show one board by board.

    \b
    edgekit fleet rollouts
    edgekit fleet rollouts 3
    """
    with _opened(store) as (_, tables):
        if number is not None:
            _show(tables.get(number), tables, as_json, boards=True)
            return
        found = tables.all()
        lines = [_line(one, tables) for one in found] or ["no roll-out yet: edgekit fleet rollout BUNDLE --server URL"]
        print_result({"rollouts": [_json(one, tables) for one in found]}, lines, as_json)


def _speaking(word: Word, what: str) -> click.Command:
    @click.command(word, help=f"{what}\n\n\b\nedgekit fleet {word} 3")
    @click.argument("number", type=int)
    @opt.store()
    @opt.as_json
    def command(number: int, store: str, as_json: bool) -> None:
        from edgekit.fleet.store.records import now_ms

        with _opened(store) as (_, tables):
            _show(tables.speak(number, word, now_ms()), tables, as_json)

    return command


COMMANDS: tuple[click.Command, ...] = (
    rollout,
    rollouts,
    _speaking("pause", "Pause roll-out NUMBER: start no further wave."),
    _speaking("resume", "Resume roll-out NUMBER; its current figures are ignored."),
    _speaking("abort", "End roll-out NUMBER; boards that moved stay.\n\nOther boards' orders are withdrawn."),
    _speaking("undo", "End roll-out NUMBER; boards that moved go back."),
)


@contextmanager
def _opened(url: str) -> Iterator[tuple[Any, RolloutTables]]:
    """The store and its roll-outs."""
    from edgekit.fleet.rollouts.rollout_tables import RolloutTables

    with opt.opened_store(url) as store:
        yield store, RolloutTables(store)


def _json(one: Rollout, tables: RolloutTables) -> dict[str, Any]:
    counted = tables.phases(one.id)
    return {
        "rollout": one.id, "name": one.name, "version": one.version, "profile": one.profile, "sha256": one.sha256,
        "url": one.url, "state": one.standing.state, "wave": one.standing.wave + 1, "waves": list(one.plan.waves),
        "boards": one.boards, "why": one.standing.why, "phases": _phases(counted),
    }  # fmt: skip


def _phases(counted: dict[tuple[int, str, str], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, want, phase), n in counted.items():
        word = _phase(want, phase)
        found[word] = found.get(word, 0) + n
    return found


def _phase(want: str, phase: str) -> str:
    """In words: waiting, ordered, what boards reported, going back, back, withdrawn."""
    if want == "former":
        return "back" if phase == "committed" else f"going back: {phase or 'ordered'}"
    if not want or (want == "none" and phase in ("", "shadowing")):
        return "withdrawn" if want else "waiting"
    return f"shadow: {phase or 'ordered'}" if want == "shadow" else phase or "ordered"


def _line(one: Rollout, tables: RolloutTables) -> str:
    phases = ", ".join(f"{n} {word}" for word, n in _phases(tables.phases(one.id)).items())
    wave = f"wave {one.standing.wave + 1} of {len(one.plan.waves)}" if one.standing.wave >= 0 else "shadow"
    why = f"; {one.standing.why}" if one.standing.why else ""
    return f"{one.id:>4}  {one.name} {one.version}  {one.standing.state}, {wave}: {phases}{why}"


def _show(one: Rollout, tables: RolloutTables, as_json: bool, *, boards: bool = False) -> None:
    from edgekit.fleet.rollouts.shadows import describe

    rows, shadows = (tables.boards(one.id), tables.shadows(one)) if boards else ([], [])
    figures = tables.figures(one.id) if boards else []
    devices = [
        {"device": row.device, "wave": row.wave + 1, "want": row.want, "phase": row.phase, "version": row.version,
         "error": row.error, "code": row.code} for row in rows
    ]  # fmt: skip
    found = [asdict(row) | {"ratio": row.ratio, "ratios": row.ratios.wire()} for row in shadows]
    more = {"devices": devices, "shadows": found, "compared": [asdict(figure) for figure in figures]}
    lines = [_line(one, tables)]
    if shadows:
        lines.append(f"      shadow: {describe(shadows)}")
    for figure in figures:
        before, since, then, now, votes, sure = figure.cells()
        lines.append(f"      {figure.name}: {votes} boards worse, evidence {sure}")
        if figure.wave:
            lines.append(f"          {since}, before {before}; others {now}, before {then}")
    for row in rows:
        error = f"  {row.error} [{row.code}]" if row.code else ""
        lines.append(f"      {row.device:<24} wave {row.wave + 1}  {_phase(row.want, row.phase)}{error}")
    print_result({**_json(one, tables), **(more if boards else {})}, lines, as_json)
