"""What `edgekit bench` prints for a person."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.bench.compare import BenchComparison

BUSY = 0.25
"""Share of the processor that other processes may take without a warning."""


def bench_lines(found: dict[str, Any]) -> list[str]:
    c, load = found["conditions"], found["load"]
    threads = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
    callers = "1 caller" if load["concurrency"] == 1 else f"{load['concurrency']} callers"
    how = f"{load['rate_per_s']:g} requests a second, {load['arrivals']}" if load["loop"] == "open" else callers
    most = found["max_batch"]
    up_to = f" (up to {most})" if load["batch"] == "on" and most > 1 else ""
    lines = [
        f"{found['bundle']}: {found['recipe']} with {found['engine']} {found['engine_version']}, {threads}",
        f"  {found['n']:,} answers to {found['asked']:,} requests in {found['seconds']:.2f} s, {how}, "
        f"cache {'on' if load['cache'] else 'off'}, batches {load['batch']}{up_to}",
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
    lines += _opening_lines(found)
    if found["stages_ms"]:
        p99 = found["stages_p99_ms"]
        lines.append(
            "  stages, p50 (p99) ms: "
            + "   ".join(f"{s} {ms:.3f} ({p99[s]:.3f})" for s, ms in found["stages_ms"].items())
        )
    lines.append(
        f"  on {c['cpu']}, {c['cores']} cores, load {c['load']}, {c['system']}, Python {c['python']}, NumPy "
        f"{c['numpy']}"
    )
    return [*lines, *_during_lines(c), *engine_lines(found.get("engines"))]


def engine_lines(elected: dict[str, Any] | None) -> list[str]:
    """The candidates of this machine as a table, by p50, then what was refused and why."""
    if elected is None:
        return []
    from edgekit_profiles.estimate import milliseconds

    rows = [("engines tried here", "p50 ms", "p99 ms", "cpu ms", "MB", "runs", "cosine")]
    order = sorted(elected["candidates"], key=lambda one: (one["p50_ms"] is None, one["p50_ms"]))
    for one in order:
        figures = [one[name] for name in ("p50_ms", "p99_ms", "cpu_ms", "memory_mb", "runs")]
        shown = ["-" if value is None else milliseconds(value) for value in figures]
        cosine = "-" if one["cosine"] is None else f"{one['cosine']:.4f}"
        mark = "* " if one["candidate"] == elected["chosen"] else "  "
        rows.append((mark + one["candidate"], *shown, cosine))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, one in zip(rows, [None, *order], strict=True):
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        why = "" if one is None or not one["refused"] else f"  {one['refused']}"
        lines.append(f"  {row[0]:<{widths[0]}}  {why or '  '.join(cells)}".rstrip())
    return [*lines, f"  * elected, {elected['how']}: {elected['why']}"]


def _opening_lines(found: dict[str, Any]) -> list[str]:
    """How long opening took, and the memory; a cold start holds the runtime and the model only."""
    start = []
    if found["cold_start_ms"] is not None:
        start.append(f"cold start {found['cold_start_ms']:.0f} ms (new process: Python, imports, opening)")
    if found["first_open_ms"] is not None:
        start.append(f"first one ever {found['first_open_ms']:.0f} (with tests and tuning)")
    start += [f"opening alone {found['ready_ms']:.0f} ms", f"first answer {found['first_ms']:.2f} after it"]
    grown, peak, alone = found["rss_mb"], found["peak_rss_mb"], found["cold_rss_mb"]
    memory = [f"peak memory {'not known' if peak is None else f'{peak:.0f} MB'}"]
    if None not in grown.values():
        memory.append(f"the model {grown['ready'] - grown['before']:.0f}")
    if alone is not None:
        memory.append(f"a process that only opens it {alone:.0f}")
    return [f"  {', '.join(start)}", f"  {', '.join(memory)}"]


def _during_lines(c: dict[str, Any]) -> list[str]:
    """Clock, heat and other processes, with a warning if the machine was throttled."""
    during, clock, heat = c["during"], c["during"]["frequency_mhz"], c["during"]["temperature_c"]
    parts = [f"governor {c['governor']}"] if c["governor"] else []
    if clock:
        parts.append(f"{clock['mean']} MHz ({clock['min']} to {clock['max']})")
    if heat:
        parts.append(f"{heat['before']:g} to {heat['after']:g} °C (at most {heat['max']:g})")
    if during["others_cpu"] is not None:
        parts.append(f"other processes took {100 * during['others_cpu']:.0f} % of the processor")
    parts.append({None: "throttling not known", False: "not throttled", True: ""}[during["throttled"]])
    lines = ["  while it ran: " + ", ".join(part for part in parts if part)] if any(parts) else []
    if (during["others_cpu"] or 0.0) > BUSY:
        lines.append("  the machine was busy: these figures are noisy and too slow")
    if during["throttled"]:
        lines.append(
            f"  THROTTLED while it ran ({', '.join(during['throttled_by'])}): these figures do not represent the board"
        )
    return lines


def comparison_lines(old: Path | None, compared: BenchComparison | None) -> list[str]:
    if compared is None:
        return []
    if compared.refused:
        what = "it is another model" if compared.refused[0].name == "model" else "conditions differ"
        return [f"not compared with {old}, because {what}:", *(f"  {one}" for one in compared.refused)]
    what = "; ".join(map(str, compared.subjects)) or "the same bundle on the same engine"
    lines = [f"against {old} ({what})", f"  {'':<17} {'then':>9} {'now':>9} {'ratio':>7}   then ranged    now ranges"]
    for r in compared.ratios:
        ranges = "   ".join(f"{s[0]:.4g} to {s[1]:.4g}" if s else "-" for s in (r.then_spread, r.now_spread))
        verdict = {"noise": "within the noise", "unknown": "", "better": "better", "worse": "WORSE"}[r.verdict]
        lines.append(f"  {r.name:<17} {r.then:>9.4g} {r.now:>9.4g} {r.ratio:>7.3f}   {ranges}   {verdict}".rstrip())
    return lines
