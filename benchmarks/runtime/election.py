"""Whether the fastest artifact, engine and lane of a bundle is the elected one: every candidate by hand, in one run.

    .venv/bin/python benchmarks/runtime/election.py BUNDLE...

Each bundle is measured as beside a model that answers, on a board that never saw it. Then every candidate that was not
refused is loaded, untried ones too, and all take turns with the first golden example. The baseline is the elected one:
a ratio below 1 is a candidate with a lower p50. The last lines say how far the elected one is from the best, by p50.
Where candidates keep the bundle's budget the rule is another, and so is the line: p99 times processor time, of those
that keep it. Products within a tenth are equal to it. A software device (its name is printed) proves answers and never
speed. A busy machine proves nothing: its verdicts are not settled.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from side_by_side import Figures, compare, report

from edgekit.bench.conditions import conditions
from edgekit_runtime.bundle.reader import Bundle, read_bundle
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.engines.registry import load_with
from edgekit_runtime.engines.vulkan import devices
from edgekit_runtime.loading.candidates import TuningOptions, TuningVerdict
from edgekit_runtime.loading.tuning import BESIDE, BOUND_S, Tuner, tune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/runtime_election.json"))
    options = parser.parse_args()
    tables, best, said = {}, {}, []
    for path in options.bundles:
        bundle = read_bundle(path)
        verdict = tuned(bundle)
        rows = tables[path.name] = by_hand(bundle, verdict, options.rounds)
        best[path.name], words = distance(rows, verdict, bundle.manifest.target.budget_ms)
        said.append(f"{path.name}: {words}\n  {verdict.why}")
    facts = conditions() | {"cores": os.cpu_count(), "vulkan": "; ".join(devices()), "best_by_elected": best}
    report("every candidate against the elected one", tables, facts, options.output)
    print("\n".join(said))


def distance(rows: list[Figures], verdict: TuningVerdict, budget_ms: float | None) -> tuple[float, str]:
    """The best by the elected one, of what the rule counts, and the sentence."""
    cpu_ms = {one.candidate.label: one.cpu_ms for one in verdict.tried if one.cpu_ms is not None}
    keep = [row for row in rows if budget_ms is not None and row.p99_us <= 1e3 * budget_ms and row.name in cpu_ms]
    if rows[0] in keep:
        best = min(row.p99_us * cpu_ms[row.name] for row in keep) / (rows[0].p99_us * cpu_ms[rows[0].name])
        what = f"of {len(keep)} that keep {budget_ms:g} ms, p99 x processor time of the elected one is"
        return best, f"{what} {100 / best - 100:.1f} % above the least"
    best = min(row.ratio for row in rows)
    return best, f"the elected one takes {100 / best - 100:.1f} % longer than the fastest"


def tuned(bundle: Bundle) -> TuningVerdict:
    with tempfile.TemporaryDirectory() as state:
        return tune(bundle, TuningOptions(), Tuner(BESIDE * BOUND_S, folder=Path(state)))


def by_hand(bundle: Bundle, verdict: TuningVerdict, rounds: int) -> list[Figures]:
    item = bundle.golden_items(bundle.manifest.golden[0])
    with ExitStack() as stack:
        ways = {}
        others = [one.candidate for one in verdict.tried if one.refused is None and one.candidate != verdict.chosen]
        for candidate in (verdict.chosen, *others):
            entry = next(one for one in bundle.manifest.artifacts if one.blob == candidate.blob)
            engine = stack.enter_context(
                load_with(candidate.engine, entry.format, bundle.blob(entry.blob), candidate.setup)
            )
            tensors = [Adapter(bundle.manifest.contract.input(one.name), one)(item[one.name]) for one in entry.inputs]
            ways[candidate.label] = partial(lambda engine, tensors, number: engine.run(tensors), engine, tensors)
        return compare(ways, rounds=rounds, block=5, warm_up=2)


if __name__ == "__main__":
    main()
