"""200 boards for two minutes, and the broker killed in the middle: what is stored.

Beside an ingestor that trusts max(seq).

    .venv/bin/python benchmarks/fleet/loss.py            # about four minutes; needs mosquitto

Every board is the real reporter with its spool on disk, its windows cut every two seconds instead of every sixty. The
broker gets `kill -9`, is away for two seconds, and the ingestor comes back three seconds after it. Then the spools' own
ledgers are compared with the store, window by window, and the answers that boards counted with those that roll-ups add
up to.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / name) for name in ("tests", "tests/support")]

from fleet.proof import MaxSeqStore, Outcome, Plan, prove

from edgekit.bench.conditions import conditions
from edgekit.fleet.store.databases import SqliteStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--boards", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/fleet_loss.json"))
    options = parser.parse_args()
    plan = Plan(
        options.boards,
        window_s=2.0,
        kill_s=options.seconds / 3,
        down_s=2.0,
        away_s=3.0,
        run_s=options.seconds,
        drain_s=60,
    )
    found: dict[str, Outcome] = {}
    for name, kind in (("contiguous mark (edgekit)", SqliteStore), ("largest seq (the control)", MaxSeqStore)):
        print(f"running {name}: {plan.boards} boards, {plan.run_s:.0f} s", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = prove(Path(folder), plan, kind)
    print(f"one broker kill -9, {plan.boards} boards, {plan.run_s:.0f} s, a window every {plan.window_s:.0f} s\n")
    print(
        f"{'acknowledged by':<28}{'committed':>10}{'stored':>9}{'missing':>9}"
        f"{'answers':>10}{'counted':>10}{'drained':>9}"
    )
    for name, outcome in found.items():
        print(
            f"{name:<28}{outcome.committed:>10,}{outcome.stored:>9,}{outcome.missing:>9,}{outcome.answered:>10,}"
            f"{outcome.counted:>10,}{outcome.drained_s:>7.1f} s"
        )
    value = {
        "title": "windows lost over one broker kill -9",
        "conditions": conditions(),
        "plan": asdict(plan),
        "outcomes": {name: asdict(outcome) for name, outcome in found.items()},
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main()
