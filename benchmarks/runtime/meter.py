"""What it costs to count a request.

How many, from where, how long, in which stage, within which budget, how much clipped.

    pip install -r benchmarks/runtime/requirements.txt
    python benchmarks/runtime/meter.py

Every way counts the same: the total and four stages as histograms, the source, the budget's outcome, clipped values.
The cost is the mean over blocks of thousands of requests, so that what is put off until later is in it; the median over
rounds counts. What a single call takes is told apart, because some put work off and one call in a while does it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns

import numpy as np

from edgekit.bench.conditions import conditions
from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.meter import Meter

BLOCK = 5120
CALLERS = 8
STAGES = {"prepare": ("identify", "decode", "adapt"), "queue": ("queue",), "infer": ("engine",), "finish": ("finish",)}
Way = Callable[[float, bool, dict[str, float]], None]


@dataclass(frozen=True)
class Row:
    """Microseconds. each: a request, everything included, one caller; threads: the same with 8 callers at once.

    p50, p999, most: of single calls.
    """

    name: str
    each_us: float
    ratio: float
    threads_us: float
    p50_us: float
    p999_us: float
    most_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_meter.json"))
    options = parser.parse_args()
    told = {
        "edgekit: meter.add, all of it": of_meter,
        "edgekit: meter.record, total alone": of_total,
        "a lock, a histogram after another": of_histograms,
        "prometheus_client: Histogram.observe and Counter.inc": of_prometheus,
        "prometheus_client: one Histogram.observe": of_one_prometheus,
        "hdrhistogram: record_value under a lock": of_hdr,
    }
    ways = {name: made for name, make in told.items() if (made := tried(name, make)) is not None}
    requests = drawn(BLOCK)
    rows = compare(ways, requests, options.rounds)
    found = conditions() | {name: version(name) for name in ("prometheus_client", "hdrhistogram")}
    show(rows, found)
    value = {"title": "Counting a request", "conditions": found, "block": BLOCK, "callers": CALLERS}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value | {"rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)


def drawn(n: int) -> list[tuple[float, bool, dict[str, float]]]:
    """(total, met, timings) as `predict` has them, milliseconds with a slow tail."""
    draw = np.random.default_rng(0)
    medians = {"identify": 0.003, "decode": 0.4, "adapt": 0.01, "queue": 0.2, "engine": 4.0, "finish": 0.02}
    columns = {stage: (median * draw.lognormal(0.0, 0.5, n)).tolist() for stage, median in medians.items()}
    rows = [{stage: columns[stage][i] for stage in columns} for i in range(n)]
    return [(sum(row.values()), sum(row.values()) < 8.0, row | {"total": sum(row.values())}) for row in rows]


def of_meter() -> Way:
    meter, stages = Meter(), ("prepare", "queue", "infer", "finish")

    def way(total: float, met: bool, timings: dict[str, float]) -> None:
        prepare = timings["identify"] + timings["decode"] + timings["adapt"]
        spent = total, prepare, timings["queue"], timings["engine"], timings["finish"]
        meter.add(("device", stages, spent, met, (3, 150_528, None)))

    return way


def of_total() -> Way:
    meter = Meter()
    return lambda total, met, timings: meter.record("device", total, met)


def of_histograms() -> Way:
    """What the meter did before it folded: each histogram in turn, under one lock."""
    lock, total_of = threading.Lock(), Histogram()
    stages, counts = {stage: Histogram() for stage in STAGES}, [0, 0, 0, 0]

    def way(total: float, met: bool, timings: dict[str, float]) -> None:
        with lock:
            total_of.record(total)
            for stage, parts in STAGES.items():
                stages[stage].record(sum(timings[part] for part in parts))
            counts[met] += 1
            counts[2] += 3
            counts[3] += 150_528

    return way


def of_prometheus() -> Way:
    import prometheus_client as prometheus

    registry = prometheus.CollectorRegistry()
    bounds = [2.0**octave / 1e3 for octave in range(-7, 15)]
    latency = prometheus.Histogram("latency", "", ["source"], registry=registry, buckets=bounds).labels("device")
    by_stage = prometheus.Histogram("stage", "", ["stage"], registry=registry, buckets=bounds)
    stages = {stage: by_stage.labels(stage) for stage in STAGES}
    outcomes = prometheus.Counter("budget", "", ["outcome"], registry=registry)
    budget = {met: outcomes.labels(str(met)) for met in (True, False)}
    values, clipped = (prometheus.Counter(name, "", registry=registry) for name in ("values", "clipped"))

    def way(total: float, met: bool, timings: dict[str, float]) -> None:
        latency.observe(total / 1e3)
        for stage, parts in STAGES.items():
            stages[stage].observe(sum(timings[part] for part in parts) / 1e3)
        budget[met].inc()
        values.inc(150_528)
        clipped.inc(3)

    return way


def of_one_prometheus() -> Way:
    import prometheus_client as prometheus

    bounds = [2.0**octave / 1e3 for octave in range(-7, 15)]
    latency = prometheus.Histogram("latency", "", registry=prometheus.CollectorRegistry(), buckets=bounds)
    return lambda total, met, timings: latency.observe(total / 1e3)


def of_hdr() -> Way:
    from hdrh.histogram import HdrHistogram

    lock = threading.Lock()
    histograms = {
        stage: HdrHistogram(1, 60_000_000, 2) for stage in ("total", *STAGES)
    }  # microseconds to a minute, 1 %
    counts = [0, 0, 0, 0]

    def way(total: float, met: bool, timings: dict[str, float]) -> None:
        with lock:
            histograms["total"].record_value(max(1, int(total * 1e3)))
            for stage, parts in STAGES.items():
                histograms[stage].record_value(max(1, int(1e3 * sum(timings[part] for part in parts))))
            counts[met] += 1
            counts[2] += 3
            counts[3] += 150_528

    return way


def tried(name: str, make: Callable[[], Way]) -> Way | None:
    try:
        return make()
    except ImportError as error:
        print(f"left out, because {error.name} is not installed: {name}", file=sys.stderr)
        return None


def compare(ways: dict[str, Way], requests: list, rounds: int) -> list[Row]:
    """Every way in turn, several rounds; the first is the baseline."""
    each: dict[str, list[float]] = {name: [] for name in ways}
    together: dict[str, list[float]] = {name: [] for name in ways}
    single: dict[str, list[int]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first one warms up
        for name, way in ways.items():
            gc.collect()
            one, several, calls = block(way, requests), threads(way, requests), singles(way, requests)
            if number:
                each[name].append(one)
                together[name].append(several)
                single[name] += calls
    base = each[next(iter(ways))]
    rows = []
    for name in ways:
        ratio = statistics.median(a / b for a, b in zip(each[name], base, strict=True))
        p50, p999 = (float(v) / 1e3 for v in np.percentile(single[name], [50, 99.9]))
        most = max(single[name]) / 1e3
        rows.append(Row(name, statistics.median(each[name]), ratio, statistics.median(together[name]), p50, p999, most))
    return rows


def block(way: Way, requests: list) -> float:
    """Microseconds a request, less the loop's own."""
    start = perf_counter()
    for total, met, timings in requests:
        way(total, met, timings)
    took = perf_counter() - start
    start = perf_counter()
    for total, met, timings in requests:  # noqa: B007
        pass
    return 1e6 * (took - (perf_counter() - start)) / len(requests)


def threads(way: Way, requests: list) -> float:
    """Microseconds of the wall clock a request, with several callers."""
    started = threading.Barrier(CALLERS + 1)

    def caller() -> None:
        started.wait()
        for total, met, timings in requests[: BLOCK // 4]:
            way(total, met, timings)

    callers = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for one in callers:
        one.start()
    started.wait()
    start = perf_counter()
    for one in callers:
        one.join()
    return 1e6 * (perf_counter() - start) / (CALLERS * (BLOCK // 4))


def singles(way: Way, requests: list) -> list[int]:
    """Nanoseconds of every call; the clock's own 50 or so are in it."""
    taken = []
    for total, met, timings in requests:
        start = perf_counter_ns()
        way(total, met, timings)
        taken.append(perf_counter_ns() - start)
    return taken


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(rows: list[Row], found: dict) -> None:
    print("Counting a request\n  " + ", ".join(f"{key} {value}" for key, value in found.items() if value is not None))
    print(f"\n  {'microseconds':<54} {'each':>7} {'ratio':>7} {'8 callers':>10} {'p50':>7} {'p99.9':>8} {'most':>8}")
    for row in rows:
        print(
            f"  {row.name:<54} {row.each_us:>7.2f} {row.ratio:>7.2f} {row.threads_us:>10.2f} {row.p50_us:>7.2f} "
            f"{row.p999_us:>8.1f} {row.most_us:>8.0f}"
        )


if __name__ == "__main__":
    main()
