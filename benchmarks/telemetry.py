"""What telemetry costs: counting on the hot path, a window's bytes and error, and predict() with it against without.

    make demo                                       # makes the bundle that this times
    .venv/bin/python benchmarks/telemetry.py        # needs mosquitto, and an ingestor that it runs itself

predict() is timed in one process on two models from one bundle, in turn, with every input new; the one that reports
cuts a window every half second instead of every minute, to a real broker and a store that acknowledges.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import compare, report

from edgekit.bench.conditions import conditions
from edgekit.bench.measure import golden_inputs
from edgekit.fleet.ingest import Ingest
from edgekit.fleet.store.databases import SqliteStore
from edgekit.fleet.store.messages import parse_window
from edgekit.fleet.store.records import quantiles
from edgekit_runtime import TelemetryOptions, open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.telemetry.histogram import CountedWindow, Histogram
from edgekit_runtime.telemetry.link import Broker
from edgekit_runtime.telemetry.meter import Meter
from edgekit_runtime.telemetry.window import About, Report, Seal, System, encode, sealed_payload

RANKS = (0.5, 0.9, 0.95, 0.99, 0.999)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bundle", type=Path, default=Path("demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb"))
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/telemetry.json"))
    options = parser.parse_args()
    tables = {"counting one answer": counting(), "a window": making()}
    if options.bundle.exists():
        tables["predict(), one thread, every input new"] = predicting(options.bundle, options.rounds)
    report("what telemetry costs", tables, conditions(), options.output)
    size, errors = window_of_three()
    print(f"\na window of 6,060 answers in 3 histograms: {size} bytes of JSON")
    print("worst error of a percentile read at the host against the exact one, 20 draws of 6,060 with a slow tail")
    for q, error in errors.items():
        print(f"  p{100 * q:<5g} {100 * error:.2f} %")
    value = json.loads(options.output.read_text())
    value["window"] = {"bytes": size, "worst_relative_error": {str(q): error for q, error in errors.items()}}
    options.output.write_text(json.dumps(value, indent=2) + "\n")


def draws(rng: random.Random) -> list[float]:
    """6,060 latencies in milliseconds with a slow tail of one in a hundred, as throttling makes."""
    return [rng.lognormvariate(3.0, 0.25) for _ in range(6000)] + [rng.uniform(60, 900) for _ in range(60)]


def counting() -> list:
    """The baseline is the least that counts anything under a lock."""
    import threading

    values = draws(random.Random(0))
    meter, lock, counts, histogram = Meter(), threading.Lock(), {"device": 0}, Histogram()

    def count(number: int) -> None:
        with lock:
            counts["device"] += 1

    return compare(
        {
            "a lock and a counter": count,
            "Histogram.record": lambda n: histogram.record(values[n % 6060]),
            "Meter.record": lambda n: meter.record("device", values[n % 6060], True),
        },
        block=2000,
    )


def a_report(rng: random.Random) -> Report:
    latency = {"device": Histogram(), "cache": Histogram(), "host": Histogram()}
    for value in draws(rng)[1500:]:
        latency["device"].record(value)
    for _ in range(1000):
        latency["cache"].record(rng.lognormvariate(-4.0, 0.3))
    for _ in range(500):
        latency["host"].record(rng.lognormvariate(2.5, 0.4))
    about = About("press-line-3", "efficientnet_lite0", "1.4.2", "9f3c01ab77de", "raspberry-pi-4", 100.0)
    return Report(
        about,
        12,
        1_790_000_000_000,
        60_001,
        True,
        CountedWindow(latency, {"engine": 2}, 31),
        System(41.5, 63.2, 71.3, 0, 12_345),
    )


SEAL = Seal("0123456789abcdef", 41_000, 40_998, 3, 12, 11_000)


def making() -> list:
    """On the reporter's own thread, once a minute."""
    made = a_report(random.Random(1))
    payload = sealed_payload(encode(made), SEAL)
    return compare(
        {
            "json.dumps of as many bytes of text": lambda _: json.dumps("x" * len(payload)),
            "encode and seal": lambda _: sealed_payload(encode(made), SEAL),
            "read and check, at the host": lambda _: parse_window(payload, "press-line-3"),
        }
    )


def window_of_three() -> tuple[int, dict[float, float]]:
    size = max(len(sealed_payload(encode(a_report(random.Random(seed))), SEAL)) for seed in range(20))
    worst = dict.fromkeys(RANKS, 0.0)
    for seed in range(20):
        values, histogram = sorted(draws(random.Random(seed))), Histogram()
        for value in values:
            histogram.record(value)
        read = quantiles({"device": Histogram.from_wire(histogram.wire())}, RANKS)
        for q, found in zip(RANKS, read, strict=True):
            exact = values[math.ceil(q * len(values)) - 1]
            worst[q] = max(worst[q], abs(found - exact) / exact)
    return size, worst


def predicting(bundle: Path, rounds: int) -> list:
    """Two models of one bundle; one reports. Stops every process and thread that it starts."""
    mosquitto = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/opt/homebrew/sbin")
    if mosquitto is None:
        raise SystemExit("mosquitto is missing: sudo apt-get install mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        broker = subprocess.Popen([mosquitto, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        url = f"mqtt://127.0.0.1:{port}"
        store = SqliteStore.open(Path(folder) / "fleet.db")
        ingest = Ingest(Broker.parse(url), store)
        ingest.start()
        try:
            return timed(bundle, url, Path(folder) / "spool.db", rounds)
        finally:
            ingest.close()
            print(f"(meanwhile {store.totals().windows} windows were stored)")
            store.close()
            broker.kill()
            broker.wait()


def timed(bundle: Path, url: str, spool: Path, rounds: int) -> list:
    pixels = next(iter(golden_inputs(read_bundle(bundle))[0].values())).copy()

    def fresh(number: int) -> np.ndarray:
        pixels.reshape(-1)[:4].view(np.uint8)[:] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
        return pixels

    with (
        open_bundle(bundle, threads=1, cache=False, settled=True) as quiet,
        open_bundle(
            bundle,
            threads=1,
            cache=False,
            settled=True,
            telemetry=TelemetryOptions(url, device="benchmark-1", window_s=0.5, spool=spool),
        ) as reporting,
    ):
        return compare(
            {
                "without telemetry": lambda n: quiet.predict(fresh(n)),
                "with telemetry, a window every 0.5 s": lambda n: reporting.predict(fresh(n)),
            },
            rounds=rounds,
            block=30,
        )


if __name__ == "__main__":
    main()
