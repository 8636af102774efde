"""Our server at ten times what it can answer: goodput beside its capacity, how soon it refuses, its memory.

    .venv/bin/python benchmarks/fallback/host_overload.py --seconds 60 --times 10 10 10

Capacity is what 16 callers in a closed loop get of the same generator, measured before and after each overload in the
same run. Then requests arrive by themselves (Poisson) at ten times that rate, each with a budget; an answer counts
where it is with its caller within the budget. The generator is a process of its own and shares the machine with the
server: `generator cores` is the processor time that it takes a second, ten times as often as for the capacity.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from host_load import arrivals, closed, encoded
from host_model import SHAPE, bundle, network

from edgekit.bench.conditions import conditions
from edgekit_runtime.remote.oip import encode_request

SERVE = [sys.executable, "-c", "from edgekit.cli import main; main()", "host", "serve", "--listen", "127.0.0.1:0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--budget-ms", type=float, default=100)
    parser.add_argument("--threads", type=int, default=1, help="of the engine; the event loop takes another core")
    parser.add_argument("--times", type=float, nargs="+", default=[0.9, 10])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/fallback/host_overload.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = bundle(Path(folder), network())
        server = subprocess.Popen(
            [*SERVE, "--json", path, "--cache-mb", "0", "--threads", str(options.threads)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert server.stdout is not None
            port = int(json.loads(server.stdout.readline())["listening"].rsplit(":", 1)[1])
            value = measure(("127.0.0.1", port), server.pid, options)
        finally:
            server.terminate()
            server.wait(20)
    print(json.dumps(value, indent=2))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")


def measure(address: tuple[str, int], pid: int, options: argparse.Namespace) -> dict[str, object]:
    before = conditions()
    capacities = [capacity(address)]
    rows: list[dict[str, Any]] = []
    for times in options.times:
        with Memory(pid) as memory:
            rate, begin = times * capacities[-1], time.process_time()
            outcome = arrivals(address, request(options.budget_ms), rate=rate, seconds=options.seconds)
        generator = (time.process_time() - begin) / options.seconds
        capacities.append(capacity(address))
        around = statistics.mean(capacities[-2:])
        sent = sum(map(len, outcome.latencies_ms.values()))
        goodput = outcome.rate(200, options.budget_ms)
        rows.append(
            {
                "times capacity": times,
                "arrivals a second": rate,
                "capacity around it": around,
                "goodput": goodput,
                "goodput of capacity": goodput / min(around, rate),
                "late of answered": 1 - goodput / max(outcome.rate(200), 1e-9),
                "refused": len(outcome.latencies_ms.get(503, ())) / max(1, sent),
                "503 p50 ms": outcome.quantile(503, 0.5),
                "503 p99 ms": outcome.quantile(503, 0.99),
                "200 p99 ms": outcome.quantile(200, 0.99),
                "generator cores": generator,
                "unsent": outcome.unsent,
                "broken": dict(outcome.broken),
                "statuses": {status: len(ms) for status, ms in outcome.latencies_ms.items()},
                "memory MiB": memory.seen,
                "load": os.getloadavg()[0],
            }
        )
    middle = {
        f"{times:g} times": {key: statistics.median(row[key] for row in rows if row["times capacity"] == times)
                             for key in ("goodput of capacity", "late of answered", "503 p50 ms", "503 p99 ms")}
        for times in dict.fromkeys(options.times)
    }  # fmt: skip
    said = {
        "seconds": options.seconds,
        "engine threads": options.threads,
        "budget_ms": options.budget_ms,
        "capacity": capacities,
    }
    return {"conditions": before, "medians": middle, **said, "rows": rows}


def request(budget_ms: float | None) -> bytes:
    x = np.random.default_rng(1).normal(size=(1, *SHAPE)).astype(np.float32)
    wire = encode_request({"x": x}, timeout_us=None if budget_ms is None else int(budget_ms * 1e3))
    return encoded("/v2/models/net/infer", wire.headers, wire.body())


def capacity(address: tuple[str, int]) -> float:
    return closed(address, request(None), callers=16, seconds=4).rate()


class Memory:
    """Resident MiB of a process, once a second: the first, the highest and the last."""

    def __init__(self, pid: int) -> None:
        self._file, self._over, self._seen = Path(f"/proc/{pid}/statm"), threading.Event(), [0.0]

    @property
    def seen(self) -> dict[str, float]:
        return {"first": self._seen[0], "highest": max(self._seen), "last": self._seen[-1]}

    def __enter__(self) -> Memory:
        self._seen = [self._now()]
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _now(self) -> float:
        return int(self._file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            self._seen.append(self._now())
        time.sleep(0)


if __name__ == "__main__":
    main()
