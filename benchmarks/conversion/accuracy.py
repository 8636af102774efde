"""How faithful INT8 is: edgekit beside the other tools.

On the same models, calibration inputs and test items, in one run.

    python benchmarks/conversion/accuracy.py --cache FOLDER --docs benchmarks/results/fidelity.md

Everything is cached per cell in FOLDER; what is missing is made first, for at most --minutes of it. Prints the tables
and writes them as JSON; with --docs also into that file, between its markers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from cells import OURS, Bench
from models import CASES
from peers import COLUMNS, PEERS
from tables import collapses, markdown, printed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wanted import put_between

from edgekit.bench.conditions import conditions

TOOLS = {"peers": tuple(PEERS), "ours": tuple(OURS)}
ROWS: dict[str, tuple[str, ...]] = COLUMNS | {
    "**edgekit**, TFLite INT8": ("edgekit-tflite",),
    "**edgekit**, ONNX INT8": ("edgekit-onnx",),
    "**edgekit**, TFLite, repaired": ("edgekit-tflite-repaired",),
    "**edgekit**, ONNX, repaired": ("edgekit-onnx-repaired",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="models, by comma")
    parser.add_argument("--tools", default="", help="peers, ours, or names by comma")
    parser.add_argument("--again", action="store_true", help="make the chosen cells anew")
    parser.add_argument("--ours", type=Path, default=Path(sys.executable), help="Python with edgekit[onnx-tflite]")
    parser.add_argument("--minutes", type=float, default=120, help="stop making cells after so long")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/fidelity.json"))
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    bench = Bench(options.cache, options.ours)
    names = options.only.split(",") if options.only else list(CASES)
    tools = TOOLS.get(options.tools) or (
        tuple(options.tools.split(",")) if options.tools else TOOLS["peers"] + TOOLS["ours"]
    )
    if options.again:
        for name in names:
            for tool in tools:
                (options.cache / "cells" / name / f"{tool}.json").unlink(missing_ok=True)
    end = time.monotonic() + 60 * options.minutes
    for name in names:
        for tool in tools:
            if time.monotonic() < end:
                bench.cell(CASES[name], tool)
    found = {name: rows(options.cache, name) for name in CASES}
    found = {name: cells for name, cells in found.items() if cells}
    print(printed(found))
    value = {"title": "fidelity of INT8", "conditions": conditions(), "models": found}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(value, indent=1) + "\n")
    if options.docs:
        put_between(options.docs, "fidelity", markdown(found, conditions()))
        put_between(options.docs, "collapses", collapses(found))


def rows(cache: Path, name: str) -> dict[str, dict[str, Any]]:
    """Row -> its cell, of several tools the one that agrees most; rows that were not made yet are absent."""
    found = {}
    for row, tools in ROWS.items():
        paths = [(tool, cache / "cells" / name / f"{tool}.json") for tool in tools]
        cells = [json.loads(path.read_text()) | {"tool": tool} for tool, path in paths if path.exists()]
        if cells:
            found[row] = max(cells, key=lambda cell: cell.get("agreement", -1.0))
    return found


if __name__ == "__main__":
    main()
