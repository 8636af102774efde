"""edgekit bench: time a bundle on this machine, under the load that it will get, and compare with an earlier time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.cli.options import BUNDLE, PATH, FiniteRange, as_json, budget_ms, budget_of, print_json, threads, use
from edgekit.cli.progress import shown

if TYPE_CHECKING:
    from edgekit.bench import Compared, Load, Setup

__all__ = ["bench"]


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("-n", "runs", type=click.IntRange(10), metavar="N", help="Timed requests. Default: 200.")
@click.option("--duration-s", type=FiniteRange(0.1, 86_400), metavar="S", help="Ask for so long, instead of -n.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Callers that each wait for their answer. Default: 1.",
)
@click.option(
    "--rate",
    type=FiniteRange(0.001, 1_000_000),
    metavar="R",
    help="Ask R times a second whether or not there are answers yet. A latency then counts from the moment at which the "
    "request was meant to be made.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "fixed"]),
    help="With --rate: at random moments, or evenly. Default: poisson.",
)
@budget_ms
@use
@click.option(
    "--batch", type=click.Choice(["on", "off"]), help="Whether waiting requests may share an inference. Default: on."
)
@click.option("--cache", is_flag=True, help="Leave the cache on: after the first round, every input is a hit.")
@click.option("--engine", metavar="NAME", help="litert, tflite-runtime or onnxruntime. Default: what is installed.")
@threads
@click.option(
    "--compare",
    "old",
    type=PATH,
    metavar="RECORD",
    help="Compare with an earlier record; exits 1 where conditions differ.",
)
@click.option("-o", "--output", type=PATH, metavar="RECORD", help="Write the record there, as JSON.")
@click.option(
    "--similarity",
    type=PATH,
    metavar="DIR",
    help="Instead: what answering from similar pictures would cost in correctness, on the frames in DIR.",
)
@as_json
def bench(
    bundle: Path, as_json: bool, old: Path | None, output: Path | None, similarity: Path | None, **asked: Any
) -> int:
    """Open BUNDLE, ask for its golden inputs, and print latencies by stage, cold start, memory and conditions.

    \b
    edgekit bench net.ekb                                 # one caller, 200 requests, cache off
    edgekit bench net.ekb --concurrency 8 --duration-s 10
    edgekit bench net.ekb --rate 100 --budget-ms 20 -o before.json
    edgekit bench net.ekb --rate 100 --budget-ms 20 --compare before.json
    """
    if similarity is not None:
        return _similarity(bundle, similarity, as_json)
    setup, load = _what(asked)
    from edgekit.bench import compare, measure, read_record

    then = read_record(old) if old is not None else None
    if then is not None:
        _refuse_early(old, then, load)
    with shown() as progress:
        found = measure(bundle, setup, load, progress=progress)
    compared = compare(then, found) if then is not None else None
    if compared is not None:
        found["compared"] = compared.as_json()
    if output is not None:
        _write(output, found)
    if as_json:
        print_json(found)
    else:
        for line in (*_lines(found), *_comparison(old, compared)):
            click.echo(line)
    return 1 if compared is not None and compared.refused else 0


def _what(asked: dict[str, Any]) -> tuple[Setup, Load]:
    """(Setup, Load) of the options; a usage error where two of them contradict each other."""
    if asked["rate"] is not None and asked["concurrency"] is not None:
        raise click.UsageError(
            "--rate asks whether or not there are answers yet, --concurrency waits for them: pass one."
        )
    if asked["arrivals"] is not None and asked["rate"] is None:
        raise click.UsageError("--arrivals goes with --rate.")
    if asked["runs"] is not None and asked["duration_s"] is not None:
        raise click.UsageError("Pass either -n or --duration-s.")
    budget = budget_of(asked["use"], asked["budget_ms"])
    from edgekit.bench import Load, Setup

    runs = asked["runs"] if asked["runs"] is not None or asked["duration_s"] is not None else 200
    load = Load(
        concurrency=asked["concurrency"] or 1,
        rate=asked["rate"],
        arrivals=asked["arrivals"] or "poisson",
        requests=runs,
        duration_s=asked["duration_s"],
        budget_ms=budget,
    )
    batching = None if asked["batch"] is None else asked["batch"] == "on"
    return Setup(asked["engine"], asked["threads"], asked["cache"], batching), load


def _refuse_early(old: Path | None, then: dict[str, Any], load: Load) -> None:
    """Before anything is timed: what differs already now will not be alike afterwards."""
    from edgekit.bench import ConditionsDifferError, conditions, known_before, load_words

    differing = known_before(then, conditions(), load_words(load))
    if differing:
        raise ConditionsDifferError(
            f"conditions differ: {'; '.join(map(str, differing))}",
            where=str(old),
            do="Ask as it was asked then, or make a new record here",
        )


def _write(output: Path, found: dict[str, Any]) -> None:
    from edgekit.errors import OutputError

    try:
        output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=str(output)) from error


def _lines(found: dict[str, Any]) -> list[str]:
    c, load = found["conditions"], found["load"]
    threads = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
    how = f"{load['rate_per_s']:g} requests a second, {load['arrivals']}" if load["loop"] == "open" else _callers(load)
    lines = [
        f"{found['bundle']}: {found['recipe']} with {found['engine']} {found['engine_version']}, {threads}",
        f"  {found['n']:,} answers to {found['asked']:,} requests in {found['seconds']:.2f} s, {how}, "
        f"cache {'on' if load['cache'] else 'off'}, batches {load['batch']}{_up_to(found)}",
    ]
    if found["n"]:
        lines.append(
            f"  p50 {found['p50_ms']:.3g} ms   p95 {found['p95_ms']:.3g}   p99 {found['p99_ms']:.3g}   "
            f"min {found['min_ms']:.3g}   max {found['max_ms']:.3g}   {found['throughput_per_s']:,.0f}/s"
        )
    if load["budget_ms"] is not None:
        b = found["budget"]
        lines.append(
            f"  budget {load['budget_ms']:g} ms: {b['met']:,} met, {b['missed']:,} missed, {b['refused']:,} refused"
        )
    if found["errors"]:
        lines.append("  no answer: " + ", ".join(f"{n:,} {code}" for code, n in found["errors"].items()))
    if found["asked_late_ms"] is not None and found["asked_late_ms"] > 1:
        lines.append(
            f"  1 % of the requests were made {found['asked_late_ms']:.3g} ms too late or more; latencies include that"
        )
    memory, peak = found["rss_mb"], found["peak_rss_mb"]
    grown = f", {memory['ready'] - memory['before']:.0f} MB of it for the model" if None not in memory.values() else ""
    lines.append(
        f"  ready {found['ready_ms']:.0f} ms after opening, first answer {found['first_ms']:.2f} ms, "
        f"peak memory {'not known' if peak is None else f'{peak:.0f} MB'}{grown}"
    )
    if found["stages_ms"]:
        p99 = found["stages_p99_ms"]
        lines.append(
            "  stages, p50 (p99) ms: "
            + "   ".join(f"{s} {ms:.3f} ({p99[s]:.3f})" for s, ms in found["stages_ms"].items())
        )
    lines.append(
        f"  on {c['cpu']}, {c['cores']} cores, load {c['load']}, {c['system']}, Python {c['python']}, NumPy {c['numpy']}"
    )
    return [*lines, *_during(c)]


def _callers(load: dict[str, Any]) -> str:
    return "1 caller" if load["concurrency"] == 1 else f"{load['concurrency']} callers"


def _up_to(found: dict[str, Any]) -> str:
    most = found["max_batch"]
    return f" (up to {most})" if found["load"]["batch"] == "on" and most > 1 else ""


def _during(c: dict[str, Any]) -> list[str]:
    """The clock, the heat, the neighbours; and a warning where the machine was slowed down."""
    told, clock, heat = c["during"], c["during"]["frequency_mhz"], c["during"]["temperature_c"]
    parts = [f"governor {c['governor']}"] if c["governor"] else []
    if clock:
        parts.append(f"{clock['mean']} MHz ({clock['min']} to {clock['max']})")
    if heat:
        parts.append(f"{heat['before']:g} to {heat['after']:g} °C (at most {heat['max']:g})")
    if told["others_cpu"] is not None:
        parts.append(f"other processes took {100 * told['others_cpu']:.0f} % of the processor")
    parts.append({None: "throttling not known", False: "not throttled", True: ""}[told["throttled"]])
    lines = ["  while it ran: " + ", ".join(part for part in parts if part)] if any(parts) else []
    if told["throttled"]:
        lines.append(
            f"  THROTTLED while it ran ({', '.join(told['throttled_by'])}): these figures are not the board's own"
        )
    return lines


def _comparison(old: Path | None, compared: Compared | None) -> list[str]:
    if compared is None:
        return []
    if compared.refused:
        return [f"not compared with {old}, because conditions differ:", *(f"  {one}" for one in compared.refused)]
    what = "; ".join(map(str, compared.subjects)) or "the same bundle on the same engine"
    lines = [f"against {old} ({what})", f"  {'':<17} {'then':>9} {'now':>9} {'ratio':>7}   then ranged    now ranges"]
    for r in compared.ratios:
        ranges = "   ".join(f"{s[0]:.4g} to {s[1]:.4g}" if s else "-" for s in (r.then_spread, r.now_spread))
        verdict = {"noise": "within the noise", "unknown": "", "better": "better", "worse": "WORSE"}[r.verdict]
        lines.append(f"  {r.name:<17} {r.then:>9.4g} {r.now:>9.4g} {r.ratio:>7.3f}   {ranges}   {verdict}".rstrip())
    return lines


def _similarity(bundle: Path, folder: Path, as_json: bool) -> int:
    from edgekit.similarity import measure_similarity

    with shown() as progress:
        found = measure_similarity(bundle, folder, progress=progress)
    if as_json:
        print_json(found)
    else:
        click.echo(json.dumps(found, indent=2))
    return 0
