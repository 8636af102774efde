"""What a fleet of thousands costs its broker and its ingestor, and how one comes back: real mosquitto, three processes.

    .venv/bin/python benchmarks/fleet/board_load.py --devices 10000 --minutes 3                 # a window a minute
    .venv/bin/python benchmarks/fleet/board_load.py --devices 2000 --minutes 10 --backlog 60    # an hour's backlog

Processor time and memory are the kernel's for each process. Boards are `edgekit fleet simulate`'s, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from mosquitto import Mosquitto

from edgekit.bench.conditions import conditions
from edgekit.fleet.store.databases import SqliteStore

TICK = os.sysconf("SC_CLK_TCK")


def seconds_of(process: subprocess.Popen[bytes]) -> float:
    """Processor time so far, user and system."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def megabytes_of(process: subprocess.Popen[bytes]) -> float:
    """The largest resident size so far."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name)) as broker:
        folder, load = Path(name), os.getloadavg()[0]
        script = str(ROOT / "tests/fleet/one_ingestor.py")
        ingestor = subprocess.Popen([sys.executable, script, broker.url, str(folder / "fleet.db")])
        time.sleep(3.0)
        command = ["fleet", "simulate", "--broker", broker.url, "--devices", str(options.devices), "--json"]
        command += ["--minutes", str(options.minutes), "--window-s", str(options.window_s)]
        command += ["--backlog", str(options.backlog)]
        run = "from edgekit.cli import main; main()"
        parts = {"broker": broker.process, "ingestor": ingestor}
        before = {part: seconds_of(process) for part, process in parts.items()}
        began = time.monotonic()
        boards = subprocess.Popen([sys.executable, "-c", run, *command], stdout=subprocess.PIPE)
        out, _ = boards.communicate()
        took = time.monotonic() - began
        time.sleep(1.0)
        used = {part: seconds_of(process) - before[part] for part, process in parts.items()}
        value = {
            "title": "a fleet of simulated boards: what it costs its server",
            "conditions": conditions() | {"load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)},
            "options": {"devices": options.devices, "window_s": options.window_s, "backlog": options.backlog},
            "boards": json.loads(out),
            "seconds": round(took, 1),
            "percent_of_a_core": {part: round(100.0 * s / took, 1) for part, s in used.items()},
            "largest_mb": {part: round(megabytes_of(process), 1) for part, process in parts.items()},
        }
        ingestor.kill()
        ingestor.wait()
        store = SqliteStore.open(folder / "fleet.db")
        totals = store.totals()
        unborn = sum(not row.software for row in store.fleet())
        store.close()
        stored = totals.windows
        value |= {"stored": stored, "devices": totals.devices, "lost": totals.lost, "without_birth": unborn}
        value |= {"ingestor_us_a_window": round(1e6 * used["ingestor"] / max(1, stored))}
    print(json.dumps(value, indent=2))
    if options.output is not None:
        options.output.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main()
