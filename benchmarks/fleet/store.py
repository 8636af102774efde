"""The fleet's store: windows a second through parser and commit, a list of the fleet, and bytes on disk.

    .venv/bin/python benchmarks/fleet/store.py            # some three minutes

Boards send what simulated boards send, a window a minute with some thousand answers and their stages. Times are of the
processor and of the wall clock. Beside other work the processor's, too, are longer: `json_us`, what json.loads takes
for one of these windows in the same run, says by how much.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgekit.bench.conditions import conditions
from edgekit.fleet.simulated import Habits
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.messages import parse_window
from edgekit.fleet.store.records import Arrival, Query
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

EPOCH = "00112233445566aa"
NOW = 1_790_000_000_000 - 1_790_000_000_000 % 86_400_000
MINUTE = 60_000
STAGES = {"prepare": 0.15, "queue": 0.02, "infer": 0.75, "finish": 0.05}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--boards", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--windows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=5000)
    parser.add_argument("--profile", action="store_true", help="where the time goes, by cProfile")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/fleet_store.json"))
    options = parser.parse_args()
    load = os.getloadavg()
    bodies = [body(random.Random(n)) for n in range(40)]
    if options.profile:
        profile(bodies, options)
        return
    found: dict[str, Any] = {}
    for boards in options.boards:
        for batch in sorted({500, options.batch}):
            with tempfile.TemporaryDirectory() as folder:
                store = SqliteStore.open(Path(folder) / "fleet.db")
                found[f"{boards} boards, {batch} a commit"] = through(store, bodies, boards, options.windows, batch)
                if batch == options.batch:
                    found[f"{boards} boards, pages"] = pages(store)
                store.close()
    found["backlog: 100 boards, an hour each, newest first"] = backlog(bodies)
    found["a board's day"] = board_day(bodies)
    for name, figures in found.items():
        print(f"{name:<48}" + "  ".join(f"{key} {value:,.4g}" for key, value in figures.items()))
    value = {
        "title": "the fleet's store on SQLite", "conditions": conditions(),
        "load_before": load, "load_after": os.getloadavg(), "found": found,
    }  # fmt: skip
    options.output.write_text(json.dumps(value, indent=2) + "\n")


def body(draw: random.Random) -> bytes:
    """A minute of one board, without its seal; DEVICE and 1111111111111 are its id and its time."""
    habits = Habits.drawn(draw)
    latency = {"device": Histogram(), "cache": Histogram(), "host": Histogram()}
    stages = {stage: Histogram() for stage in STAGES}
    for _ in range(int(habits.per_s * 60)):
        kind = draw.random()
        if kind < habits.cached:
            latency["cache"].record(draw.uniform(0.01, 0.05))
            continue
        took = draw.lognormvariate(0.0, habits.spread) * habits.median_ms * (3.0 if draw.random() < 0.01 else 1.0)
        if kind < habits.cached + habits.hosted:
            latency["host"].record(took)
            continue
        latency["device"].record(took)
        for stage, share in STAGES.items():
            stages[stage].record(took * share)
    about = About("DEVICE", "efficientnet_lite0", "1", "0" * 12, habits.profile, habits.budget_ms)
    system = System(cpu=31.5, mem=44.0, temp=58.4, thr=0, disk=20111)
    counted = CountedWindow(latency, over_budget=2, stages=stages)
    return encode(Report(about, 1, 1_111_111_111_111, MINUTE, True, counted, system))


def payloads(bodies: list[bytes], boards: int, windows: int) -> Iterator[tuple[str, bytes]]:
    """In the order of time: each board a window a minute."""
    for n in range(windows):
        minute, board = divmod(n, boards)
        yield window(bodies, board, minute)


def window(bodies: list[bytes], board: int, minute: int, floor: int = 1) -> tuple[str, bytes]:
    device = f"board-{board:05}"
    mine = bodies[board % len(bodies)].replace(b"DEVICE", device.encode())
    mine = mine.replace(b"1111111111111", str(NOW + minute * MINUTE).encode())
    return device, sealed_payload(mine, Seal(EPOCH, minute + 1, floor, 0, 1, 400))


def arrive(device: str, payload: bytes) -> Arrival:
    read = parse_window(payload, device)
    received = read.t0_ms + read.dur_ms + 1000
    return Arrival(device, read.seal, received, payload, read)


def through(store: SqliteStore, bodies: list[bytes], boards: int, windows: int, batch: int) -> dict[str, float]:
    waiting = list(payloads(bodies, boards, windows))
    parsing, json_us = 0.0, calibrate(waiting[:1000])
    wall, cpu = time.perf_counter(), time.process_time()
    for start in range(0, windows, batch):
        begun = time.process_time()
        arrivals = [arrive(*one) for one in waiting[start : start + batch]]
        parsing += time.process_time() - begun
        store.commit(arrivals, [])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "windows_per_cpu_s": windows / cpu, "windows_per_s": windows / wall,
        "json_us": json_us, "parse_us": 1e6 * parsing / windows, "commit_us": 1e6 * (cpu - parsing) / windows,
    }  # fmt: skip


def calibrate(some: list[tuple[str, bytes]]) -> float:
    begun = time.process_time()
    for _, payload in some:
        json.loads(payload)
    return 1e6 * (time.process_time() - begun) / len(some)


def pages(store: SqliteStore) -> dict[str, float]:
    """Processor milliseconds, the median of nine."""
    asked = {
        "list_by_p99_ms": lambda: store.devices(Query(sort="p99", descending=True)),
        "list_offline_ms": lambda: store.devices(Query(state="offline")),
        "list_text_ms": lambda: store.devices(Query(text="999", offset=0)),
        "counts_ms": lambda: store.counts(),
        "counts_by_model_ms": lambda: store.counts("model"),
        "totals_ms": lambda: store.totals(),
        "silence_ms": lambda: store.look_for_silence(NOW),
    }
    found = {}
    for name, ask in asked.items():
        took = []
        for _ in range(9):
            begun = time.process_time()
            ask()
            took.append(1e3 * (time.process_time() - begun))
        found[name] = statistics.median(took)
    return found


def backlog(bodies: list[bytes], boards: int = 100, minutes: int = 60) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore.open(Path(folder) / "fleet.db")
        cpu = 0.0
        for high in range(minutes, 0, -20):
            some = [window(bodies, board, minute) for board in range(boards) for minute in range(high - 20, high)]
            arrivals = [arrive(*one) for one in some]
            begun = time.process_time()
            store.commit(arrivals, [])
            cpu += time.process_time() - begun
        assert store.totals().windows == boards * minutes
        store.close()
    return {"commit_us": 1e6 * cpu / (boards * minutes)}


def board_day(bodies: list[bytes], boards: int = 10) -> dict[str, float]:
    """Bytes on disk of the roll-ups of a day, quarters and hours: the file with them less the file without."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.db"
        store = SqliteStore.open(path)
        for minute in range(0, 1440, 10):
            some = [window(bodies, board, at) for board in range(boards) for at in range(minute, minute + 10)]
            store.commit([arrive(*one) for one in some], [])
        for _ in range(boards):
            store.look_for_silence(NOW + 2 * 86_400_000)
        sizes = store.sizes()
        with store.writing():
            store.execute("DELETE FROM win")
        store.execute("VACUUM")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        full = path.stat().st_size
        with store.writing():
            store.execute("DELETE FROM rollup WHERE device > 0")
        store.execute("VACUUM")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        on_disk = (full - path.stat().st_size) / boards
        store.close()
    counted = sizes["r15"][1] + sizes["r1h"][1]
    return {"bytes": on_disk, "rows": (sizes["r15"][0] + sizes["r1h"][0]) / boards, "counted": counted / boards}


def profile(bodies: list[bytes], options: argparse.Namespace) -> None:
    import cProfile
    import pstats

    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore.open(Path(folder) / "fleet.db")
        profiler = cProfile.Profile()
        profiler.runcall(through, store, bodies, options.boards[0], options.windows, options.batch)
        store.close()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
