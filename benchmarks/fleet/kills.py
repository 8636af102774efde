"""Is anything lost while brokers, ingestors and boards get `kill -9` and one board is hostile? The long kill matrix.

    .venv/bin/python benchmarks/fleet/kills.py --minutes 10 --crowd 1900 --board-kills 100

`tests/fleet/matrix.py` at the size of a fleet: boards in processes of their own, others with spools on disk, a crowd
that sends a window a second each. Of the crowd, whatever the fleet confirmed must be stored.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/support")]

from fleet.matrix import Matrix, run

from edgekit.bench.conditions import conditions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--crowd", type=int, default=1900)
    parser.add_argument("--board-kills", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    matrix = Matrix(
        boards=10, beside=45, crowd=options.crowd, seconds=60.0 * options.minutes, board_kills=options.board_kills,
        drain_s=240.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        found = run(Path(name), matrix)
    value = {
        "title": "kills of brokers, ingestors and boards beside a hostile board",
        "conditions": conditions(),
        "matrix": asdict(matrix),
        "found": asdict(found),
        "windows_a_second_of_the_crowd": round(found.crowd["windows"] / found.crowd["seconds"]),
    }
    print(json.dumps({key: entry for key, entry in value.items() if key != "conditions"}, indent=2))
    if options.output is not None:
        options.output.write_text(json.dumps(value, indent=2) + "\n")
    ledger = found.ledger
    assert ledger.committed == ledger.stored + ledger.waiting + found.lost, ledger
    assert (ledger.missing, ledger.twice, ledger.unknown) == (0, 0, 0), ledger
    assert found.crowd["confirmed"] <= found.crowd_stored <= found.crowd["windows"], found


if __name__ == "__main__":
    main()
