"""Many callers, one bundle: throughput, latency and fairness of predict().

Beside a lock, hand-written batchers and packages.

    python benchmarks/runtime/batching.py --cache FOLDER        # with benchmarks/runtime/requirements.txt installed

All ways run the artifacts of one bundle that `edgekit build` made (LiteRT, one thread); ours is `predict()`, as an
application calls it, all others call interpreters of their own (one a batch size). They run in turns, a short block
each, for several rounds; within a round the ratio to the lock is taken, and the median over the rounds is what counts.
Callers ask again as soon as they are answered. A package that is not installed is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from networks import VARIANTS, bundle
from peers import WAYS, Variants, Way

from edgekit.bench.conditions import conditions

LONE_S = 0.3


@dataclass(frozen=True)
class Case:
    """callers at once; batch: what `edgekit build --batch` was given; ways beside the lock and ours; reach: what is
    wanted.
    """

    name: str
    network: str
    callers: int
    batch: Sequence[int]
    ways: Sequence[str]
    lone_calls: int
    reach: str


CASES = [
    Case(
        "dense", "dense", 32, VARIANTS, tuple(WAYS), 60, "ratio >= 3 and >= every other, at a lower p99; lone <= 1.05"
    ),
    Case("dense-single", "dense", 32, (), tuple(WAYS), 60, "ratio >= every other, at a lower p99; lone <= 1.05"),
    Case("tiny", "tiny", 32, VARIANTS, ("lock", "ours", "window", "greedy", "batched"), 1000, "ratio >= 0.5"),
    Case(
        "mobilenet",
        "mobilenet",
        16,
        (),
        ("lock", "ours", "greedy"),
        12,
        "ratio >= 0.97, p99 <= 1.2 of 16 service times",
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="where the networks are kept")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a block")
    parser.add_argument("--only", choices=[case.name for case in CASES])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_batching.json"))
    options = parser.parse_args()
    value: dict[str, Any] = {"title": "many callers, one engine", "conditions": conditions(), "cases": {}}
    if options.only and options.output.exists():
        value["cases"] = json.loads(options.output.read_text())["cases"]
    for case in CASES:
        if options.only in (None, case.name):
            value["cases"][case.name] = found = measure(case, options.cache, options.rounds, options.seconds)
            show(case, found)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)


def measure(case: Case, cache: Path, rounds: int, seconds: float) -> dict[str, Any]:
    engine = Variants(bundle(case.network, cache, batch=case.batch))
    ways: dict[str, Way] = {}
    missing = {}
    for name in case.ways:
        try:
            ways[name] = WAYS[name](engine)
        except ImportError as error:
            missing[name] = str(error)
    blocks: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name, way in list(ways.items())[:: -1 if turn % 2 else 1]:
            block = crowd(way.ask, engine.item, case.callers, seconds)
            block["lone_ms"] = lone(way.ask, engine.item, case.lone_calls)
            blocks[name].append(block)
    described = {name: way.described() for name, way in ways.items()}
    for way in ways.values():
        way.close()
    rows = [row(name, blocks[name], blocks["lock"], case.callers) | described[name] for name in ways]
    return {"callers": case.callers, "rounds": rounds, "reach": case.reach, "rows": rows, "missing": missing}


def crowd(ask: Callable[[Any], Any], item: Any, callers: int, seconds: float) -> dict[str, float]:
    """So many threads ask, each again as soon as it was answered."""
    taken: list[list[float]] = [[] for _ in range(callers)]
    start, over = threading.Barrier(callers + 1), threading.Event()

    def caller(mine: list[float]) -> None:
        start.wait()
        while not over.is_set():
            before = perf_counter()
            ask(item)
            mine.append(perf_counter() - before)

    threads = [threading.Thread(target=caller, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    start.wait()
    began = perf_counter()
    sleep(seconds)
    over.set()
    took = perf_counter() - began
    answered = sum(map(len, taken))
    for thread in threads:
        thread.join()
    every = sorted(value * 1e3 for mine in taken for value in mine)
    return {
        "per_s": answered / took,
        "p50_ms": every[len(every) // 2],
        "p99_ms": every[int(0.99 * (len(every) - 1))],
        "worst_ms": every[-1],
    }


def lone(ask: Callable[[Any], Any], item: Any, calls: int) -> float:
    """p50 of one caller alone, milliseconds; of fewer calls where they take long."""
    taken: list[float] = []
    while len(taken) < calls and (len(taken) < 5 or sum(taken) < LONE_S):
        before = perf_counter()
        ask(item)
        taken.append(perf_counter() - before)
    return statistics.median(taken) * 1e3


def row(name: str, blocks: list[dict[str, float]], base: list[dict[str, float]], callers: int) -> dict[str, Any]:
    def middle(key: str) -> float:
        return statistics.median(block[key] for block in blocks)

    def against(key: str) -> float:
        return statistics.median(mine[key] / other[key] for mine, other in zip(blocks, base, strict=True))

    fair = statistics.median(
        mine["p99_ms"] / (callers * other["lone_ms"]) for mine, other in zip(blocks, base, strict=True)
    )
    keys = ("per_s", "p50_ms", "p99_ms", "worst_ms", "lone_ms")
    return {"way": name, **{key: middle(key) for key in keys}} | {
        "ratio": against("per_s"),
        "lone_ratio": against("lone_ms"),
        "p99_by_fair_share": fair,
    }


def show(case: Case, found: dict[str, Any]) -> None:
    print(f"\n{case.name}, {case.callers} callers; to reach: {case.reach}")
    head = ("answers/s", "ratio", "p50 ms", "p99 ms", "worst", "lone ms", "ratio", "p99/fair")
    print(f"  {'':<10}" + "".join(f"{name:>11}" for name in head))
    for one in found["rows"]:
        figures = (one["per_s"], one["ratio"], one["p50_ms"], one["p99_ms"], one["worst_ms"], one["lone_ms"])
        print(
            f"  {one['way']:<10}"
            + "".join(f"{value:>11.4g}" for value in (*figures, one["lone_ratio"], one["p99_by_fair_share"]))
        )
    for name, why in found["missing"].items():
        print(f"  {name:<10} not installed: {why}")


if __name__ == "__main__":
    main()
