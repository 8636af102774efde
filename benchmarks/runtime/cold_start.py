"""Where a cold start goes: from nothing to a model that is ready, stage by stage, in fresh processes.

    .venv/bin/python benchmarks/runtime/cold_start.py demo/bundles/efficientnet_lite0-raspberry-pi-4.ekb

- first open: nothing is known of the bundle on this machine, so a child process tests and measures the candidates;
- first, untuned: the same with EDGEKIT_TUNE=off, where the child only tests;
- later opens: the verdict is read.

Each figure is the median over the rounds. `python` is the interpreter's own start, seen from outside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from edgekit.bench.conditions import conditions

STAGES = ("python", "numpy", "runtime", "verify", "choose", "load", "warm", "rest", "first request", "total")
_PROGRAM = """
import sys, json
from time import perf_counter
at = [perf_counter()]
def lap():
    at.append(perf_counter())
    return (at[-1] - at[-2]) * 1e3
took = {}
import numpy
took["numpy"] = lap()
from edgekit_runtime import open_bundle
took["runtime"] = lap()
from edgekit_runtime.bundle.reader import read_bundle
lap()
bundle = read_bundle(sys.argv[1])
took["verify"] = lap()
model = open_bundle(sys.argv[1])
opened = lap()
ready = model.describe()["ready"]
took |= {"choose": ready["choose_ms"], "load": ready["load_ms"], "warm": ready["warm_ms"]}
took["rest"] = max(0.0, opened - took["verify"] - took["choose"] - took["load"] - took["warm"])
inputs = bundle.golden_items(bundle.manifest.golden[0])
lap()
model.predict(inputs)
took["first request"] = lap()
lines = open("/proc/self/status").read().splitlines() if sys.platform == "linux" else []
took["rss_mb"] = next((int(l.split()[1]) * 1024 / 1e6 for l in lines if l.startswith("VmRSS:")), None)
model.close()
print(json.dumps(took))
"""
WAYS: dict[str, dict[str, Any]] = {
    "first open": {"fresh": True},
    "first, untuned": {"fresh": True, "EDGEKIT_TUNE": "off"},
    "later opens": {"fresh": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_cold_start.json"))
    options = parser.parse_args()
    tables = {path.name: table(path.absolute(), options.rounds) for path in options.bundles}
    for name, ways in tables.items():
        print(f"\n{name}, ms\n  {'':<16}" + "".join(f"{stage:>14}" for stage in (*STAGES, "rss MB")))
        for way, row in ways.items():
            print(f"  {way:<16}" + "".join(f"{row[stage]:>14.1f}" for stage in (*STAGES, "rss_mb")))
    value = {"conditions": conditions(), "rounds": options.rounds, "tables": tables}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"\nwritten to {options.output}", file=sys.stderr)


def table(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as known:
        start(path, Path(known), {})  # now the verdict is there, and so are .pyc files
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, how in WAYS.items():
                settings = {name: value for name, value in how.items() if name != "fresh"}
                if how["fresh"]:
                    with tempfile.TemporaryDirectory() as unknown:
                        found[way].append(start(path, Path(unknown), settings))
                else:
                    found[way].append(start(path, Path(known), settings))
    return {way: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for way, rows in found.items()}


def start(path: Path, state: Path, settings: dict[str, str]) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"EDGEKIT_STATE_DIR": str(state), **settings}
    bare, begun = perf_counter(), 0.0
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    begun = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    took: dict[str, float] = json.loads(done.stdout)
    took["python"] = (begun - bare) * 1e3
    took["total"] = sum(took[stage] for stage in STAGES if stage not in ("total", "first request"))
    return took


if __name__ == "__main__":
    main()
