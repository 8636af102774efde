"""What it costs predict() to be ready for trouble: telemetry and a host configured, and neither needed.

    .venv/bin/python benchmarks/ready_against_plain.py

MobileNetV2 in full INT8 (Keras' network with seeded random weights; the time does not depend on them) answers uint8
pixels within a budget that it meets. The baseline is the same bundle opened plainly. Broker and host run in processes
of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Figures, compare, report

from edgekit.bench.conditions import conditions
from edgekit_runtime import TelemetryOptions, open_bundle

SIZE = 224
PAIRS = 6
CONTRACT = """
task = "classification"
scores = "probabilities"
[input]
kind = "image"
mean = 127.5
std = 127.5
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/ready_against_plain.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        device, host = bundles(Path(folder))
        url = ends.enter_context(process("host", "serve", str(host), "--listen", "127.0.0.1:0", key="listening"))
        store = f"sqlite:///{folder}/fleet.db"
        broker = ends.enter_context(
            process("fleet", "serve", "--embedded-broker", "--broker-port", "0", "--store", store,
                    "--listen", "127.0.0.1:0", key="broker")
        )  # fmt: skip
        away = {
            "hosts": [url],
            "telemetry": TelemetryOptions(broker, "benchmark-1", 5.0, Path(folder) / "spool.db"),
        }
        pairs = {f"pair {n + 1} of {PAIRS}": pair(device, away, n % 2 == 1, options.rounds) for n in range(PAIRS)}
    ratio = statistics.median(rows[1].ratio for rows in pairs.values())
    report(
        "ready for trouble against plain: MobileNetV2, tflite-int8, one thread, budget 1000 ms, every input new, "
        "cache off",
        pairs,
        conditions() | {"median ratio": round(ratio, 4)},
        options.output,
    )


def pair(bundle: Path, away: dict[str, Any], ready_first: bool, rounds: int) -> list[Figures]:
    """Two models of one bundle side by side. Two interpreters of one file differ by some per cent, whichever is opened
    first, so several pairs are made and the order alternates."""
    with contextlib.ExitStack() as opened:
        if ready_first:
            ready = opened.enter_context(open_bundle(bundle, threads=1, cache=False, settled=True, **away))
        plain = opened.enter_context(open_bundle(bundle, threads=1, cache=False, settled=True))
        if not ready_first:
            ready = opened.enter_context(open_bundle(bundle, threads=1, cache=False, settled=True, **away))
        pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)

        def fresh(number: int) -> np.ndarray:
            pixels.reshape(-1)[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
            return pixels

        rows = compare(
            {
                "predict(), nothing configured": lambda n: plain.predict(fresh(n), budget_ms=1000),
                "predict(), telemetry and a host configured": lambda n: ready.predict(fresh(n), budget_ms=1000),
            },
            rounds=rounds,
            block=30,
        )
        assert ready.describe()["hosts"][0]["p90_ms"] is not None, "the host was never measured"
        assert ready.stats().meter.answers.keys() == {"device"}
    return rows


def bundles(folder: Path) -> tuple[Path, Path]:
    """MobileNetV2 1.0 224 as a bundle for a device and one for a host."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    keras.utils.set_random_seed(0)
    keras.applications.MobileNetV2(weights=None, input_shape=(SIZE, SIZE, 3)).save(folder / "mobilenet_v2.keras")
    (folder / "mobilenet_v2.contract.toml").write_text(CONTRACT)
    rng = np.random.default_rng(0)
    np.savez(folder / "c.npz", x=rng.integers(0, 256, (12, SIZE, SIZE, 3), np.uint8))
    edgekit("build", str(folder / "mobilenet_v2.keras"), "--profile", "raspberry-pi-4", "--profile", "host-cpu",
            "--calibration", str(folder / "c.npz"), "--recipe", "tflite-int8", "-o", str(folder))  # fmt: skip
    return folder / "mobilenet_v2-raspberry-pi-4.ekb", folder / "mobilenet_v2-host-cpu.ekb"


def edgekit(*arguments: str) -> None:
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


@contextlib.contextmanager
def process(*arguments: str, key: str) -> Iterator[str]:
    """A server of ours, until the block ends; what it says under `key` when it is ready."""
    command = [sys.executable, "-c", "from edgekit.cli import main; main()", *arguments, "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())[key]
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    main()
