"""Timing two or more ways of doing the same thing in one run, so that a noisy machine is noisy for all of them.

Every way runs in short blocks, in turn, for several rounds; within a round the ratio to the baseline is taken, and the
median over the rounds is what counts. The minimum is shown too: for a raw kernel it is the least disturbed figure.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any


@dataclass(frozen=True)
class Figures:
    """Microseconds a call; ratio: the median over rounds of this way's p50 by the baseline's p50 of the same round."""

    name: str
    p50_us: float
    min_us: float
    p99_us: float
    ratio: float


def compare(
    ways: Mapping[str, Callable[[int], Any]], *, rounds: int = 15, block: int = 40, warm_up: int = 20
) -> list[Figures]:
    """ways: name -> a call that takes a running number (to make inputs differ); the first is the baseline."""
    number = 0
    for call in ways.values():
        for _ in range(warm_up):
            number += 1
            call(number)
    times: dict[str, list[list[int]]] = {name: [] for name in ways}
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in ways.items():
                taken = []
                for _ in range(block):
                    number += 1
                    start = perf_counter_ns()
                    call(number)
                    taken.append(perf_counter_ns() - start)
                times[name].append(taken)
    finally:
        gc.enable()
    baseline = [statistics.median(taken) for taken in next(iter(times.values()))]
    return [_figures(name, blocks, baseline) for name, blocks in times.items()]


def _figures(name: str, blocks: list[list[int]], baseline: list[float]) -> Figures:
    everything = sorted(ns for block in blocks for ns in block)
    ratios = [statistics.median(block) / base for block, base in zip(blocks, baseline, strict=True)]
    return Figures(
        name,
        statistics.median(everything) / 1e3,
        everything[0] / 1e3,
        everything[int(0.99 * (len(everything) - 1))] / 1e3,
        statistics.median(ratios),
    )


def report(title: str, tables: Mapping[str, list[Figures]], conditions: Mapping[str, Any], file: Path) -> None:
    """Print the tables and write them, with the conditions, as JSON."""
    told = (f"{key} {value}" for key, value in conditions.items() if isinstance(value, (str, int, float)))
    print(f"{title}\n  " + ", ".join(told))
    for caption, rows in tables.items():
        print(f"\n{caption}\n  {'':<52} {'p50 us':>10} {'min us':>10} {'p99 us':>10} {'ratio':>7}")
        for row in rows:
            print(f"  {row.name:<52} {row.p50_us:>10.1f} {row.min_us:>10.1f} {row.p99_us:>10.1f} {row.ratio:>7.3f}")
    value = {
        "title": title,
        "conditions": dict(conditions),
        "tables": {caption: [asdict(row) for row in rows] for caption, rows in tables.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {file}", file=sys.stderr)
