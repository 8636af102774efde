"""What importing the runtime costs an application that has NumPy already.

    python benchmarks/runtime/import_cost.py

Each figure is the median over fresh interpreters, in turn, and NumPy alone is measured among them. Processor time is
what a board pays; wall time on a busy machine holds its neighbours' work too. What opening needs is imported when the
first bundle is opened, and has a row of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from edgekit.bench.conditions import conditions

WAYS = {
    "numpy alone": "pass",
    "import edgekit_runtime": "import edgekit_runtime",
    "from edgekit_runtime import open_bundle": "from edgekit_runtime import open_bundle",
    "what the first open_bundle(...) imports, besides an "
    "engine": "import edgekit_runtime.serving.model, edgekit_runtime.loading.readiness",
    "from edgekit_runtime import * (every public name)": "from edgekit_runtime import *",
}
LIMIT_MS, LIMIT_MB = 20.0, 3.0
_PROGRAM = """
import numpy, time, sys
def resident():
    try:
        line = next(line for line in open("/proc/self/status") if line.startswith("VmRSS:"))
    except OSError:
        return float("nan")
    return int(line.split()[1]) * 1024 / 1e6
before, wall, own = resident(), time.perf_counter(), time.process_time()
{statement}
print(repr([(time.perf_counter() - wall) * 1e3, (time.process_time() - own) * 1e3, resident() - before]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_import_cost.json"))
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for round_number in range(options.rounds + 1):
        for name, statement in WAYS.items():
            figures = measured(statement)
            if round_number:  # the first writes .pyc files
                found[name].append(figures)
    rows = {name: row(figures) for name, figures in found.items()}
    print(f"{'':<66} {'wall ms':>8} {'cpu ms':>8} {'MB':>7}")
    for name, one in rows.items():
        print(f"{name:<66} {one['wall_ms']:>8.1f} {one['cpu_ms']:>8.1f} {one['resident_mb']:>7.2f}")
    ours = rows["from edgekit_runtime import open_bundle"]
    holds = ours["wall_ms"] <= LIMIT_MS and ours["resident_mb"] <= LIMIT_MB
    print(
        f"importing edgekit_runtime: at most {LIMIT_MS:.0f} ms and {LIMIT_MB:.0f} MB: {'holds' if holds else 'MISSED'}"
    )
    value = {"conditions": conditions(), "rounds": options.rounds, "rows": rows, "holds": holds}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")
    print(f"written to {options.output}", file=sys.stderr)


def measured(statement: str) -> list[float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    figures: list[float] = json.loads(done.stdout.replace("nan", "NaN"))
    return figures


def row(figures: list[list[float]]) -> dict[str, Any]:
    wall, own, resident = (statistics.median(column) for column in zip(*figures, strict=True))
    return {"wall_ms": wall, "cpu_ms": own, "resident_mb": resident}


if __name__ == "__main__":
    main()
