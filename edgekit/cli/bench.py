"""edgekit bench: time a bundle on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import BUNDLE, as_json, print_json, threads
from edgekit.cli.progress import shown

__all__ = ["bench"]


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("-n", "runs", default=200, show_default=True, type=click.IntRange(10), help="Timed requests.")
@click.option("--engine", metavar="NAME", help="litert, tflite-runtime or onnxruntime. Default: what is installed.")
@threads
@as_json
def bench(bundle: Path, runs: int, engine: str | None, threads: int | None, as_json: bool) -> None:
    """Open BUNDLE, answer its golden inputs one after another with the cache off, and print latencies by stage."""
    from edgekit.bench import measure

    with shown() as progress:
        found = measure(bundle, runs=runs, engine=engine, threads=threads, progress=progress)
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        click.echo(line)


def _lines(found: dict[str, Any]) -> list[str]:
    c, memory = found["conditions"], found["peak_rss_mb"]
    threads = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
    stages = "   ".join(f"{stage} {ms:.3f}" for stage, ms in found["stages_ms"].items())
    return [
        f"{found['bundle']}: {found['recipe']} with {found['engine']} {found['engine_version']}, {threads}, "
        f"{found['n']} requests",
        f"  p50 {found['p50_ms']:.2f} ms   p95 {found['p95_ms']:.2f}   p99 {found['p99_ms']:.2f}   "
        f"min {found['min_ms']:.2f}   {found['throughput_per_s']:.0f}/s",
        f"  ready {found['ready_ms']:.0f} ms after opening, first answer {found['first_ms']:.2f} ms, "
        f"peak memory {'not known' if memory is None else f'{memory:.0f} MB'}",
        f"  stages, p50 ms: {stages}",
        f"  on {c['cpu']}, {c['cores']} cores, load {c['load']}, Python {c['python']}, NumPy {c['numpy']}",
    ]
