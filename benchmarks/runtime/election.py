"""Whether the fastest artifact, engine and lane of a bundle is the elected one: every candidate by hand, in one run.

    .venv/bin/python benchmarks/runtime/election.py BUNDLE...

Each bundle is opened as on a board that never saw it. Then every candidate that passed is loaded, and all take turns
with the first golden example. The baseline is the elected one: a ratio below 1 is a candidate with a lower p50. The
last lines compare by what the rule calls time, the geometric mean of p50 and p99. A software device (its name is
printed) proves answers and never speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from math import sqrt
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import Figures, compare, report

from edgekit.bench.conditions import conditions
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.engines.registry import load_with
from edgekit_runtime.loading.candidates import TuningOptions
from edgekit_runtime.loading.tuning import Tuner, tune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_election.json"))
    options = parser.parse_args()
    tables = {path.name: elected(path, options.rounds) for path in options.bundles}
    best = {name: min(map(time_us, rows)) / time_us(rows[0]) for name, rows in tables.items()}
    facts = conditions() | {"cores": os.cpu_count(), "vulkan": device(), "best_by_elected": best}
    report("every candidate against the elected one", tables, facts, options.output)
    for name, ratio in best.items():
        print(f"{name}: the elected one takes {100 / ratio - 100:.1f} % longer than the fastest")


def time_us(row: Figures) -> float:
    return sqrt(row.p50_us * row.p99_us)


def elected(path: Path, rounds: int) -> list[Figures]:
    bundle = read_bundle(path)
    with tempfile.TemporaryDirectory() as state:
        os.environ["EDGEKIT_STATE_DIR"] = state
        verdict = tune(bundle, TuningOptions(), Tuner())
    item = bundle.golden_items(bundle.manifest.golden[0])
    with ExitStack() as stack:
        ways = {}
        for candidate in verdict.in_order():
            entry = next(one for one in bundle.manifest.artifacts if one.blob == candidate.blob)
            engine = stack.enter_context(
                load_with(candidate.engine, entry.format, bundle.blob(entry.blob), candidate.setup)
            )
            tensors = [Adapter(bundle.manifest.contract.input(one.name), one)(item[one.name]) for one in entry.inputs]
            ways[candidate.label] = partial(lambda engine, tensors, number: engine.run(tensors), engine, tensors)
        return compare(ways, rounds=rounds, block=3, warm_up=2)


def device() -> str | None:
    try:
        import ncnn
    except ImportError:
        return None
    return ncnn.get_gpu_info(0).device_name() if ncnn.get_gpu_count() else None


if __name__ == "__main__":
    main()
