"""How far off the latency estimate is, on boards that it has not seen; and the constants that it is made of.

    python benchmarks/estimate                  # the tables, and benchmarks/results/estimate.json: half a minute
    python benchmarks/estimate --check          # exits 1 where roofline.toml is not what the fit gives
    python benchmarks/estimate --write          # writes roofline.toml

The rows are published latencies with their sources. Everything is predicted by the functions that `edgekit estimate`
uses.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices this small lose by being shared between threads

import numpy as np
from baselines import by_mac_count, same_core
from fit import Fit
from held_out import ANCHORING, TARGETS, WAYS, Predicted, apart, band, held_out, never_fitted, tested
from inferred import inferred_rates
from later import later_cores, one_board
from published import NEVER_FITTED, Row, read
from stand_in import judged as onnx_runtime
from stand_in import ncnn_unread
from table import differences, rounded, written
from unseen import both_unseen

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "device_profiles" / "edgekit_profiles" / "roofline.toml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/estimate", description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare roofline.toml with what the fit gives")
    parser.add_argument("--write", action="store_true", help="write roofline.toml")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "estimate.json")
    options = parser.parse_args()
    rows = read()
    found = held_out(rows, lambda line: print(f"\r{line}  ", end="", file=sys.stderr, flush=True))
    print(file=sys.stderr)
    fit = Fit(rows)
    rates = inferred_rates(fit)
    judged = {"anchoring": ANCHORING, "tested": tested(rows), "bands": bands(rows, found, rates), "apart": apart(fit)}
    judged["bands"]["one_board"] = list(one_board(fit))
    x = fit.solve(fit.all)
    later = later_cores(fit, x)
    fitted = fit.constants(x) | judged
    fitted = rounded(fitted | {"cores": fitted["cores"] | later.tables()})
    if options.check or options.write:
        return _settle(fitted, options.write)
    tables = report(rows, found) | {"inferred float32 over fitted float32 rate": rates}
    tables["board and network both unseen"] = [figures("estimated, in the same bands", both_unseen(fit, found))]
    others = never_fitted(read(NEVER_FITTED), tomllib.loads(TABLE.read_text(encoding="utf-8")))
    tables["published rows that no fit reads"] = [figures(way, others[way]) for way in WAYS]
    tables["ncnn's times of networks that no fit reads"] = ncnn_unread()
    tables["cores of one published board, before any of their rows"] = figures_of(later.unseen())
    tables["cores of one published board, a network at a time on that board"] = figures_of(later.new_network())
    tables["ONNX Runtime by LiteRT's estimate, each board left out"] = onnx_runtime(fit)
    print_tables(tables)
    options.output.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    return 0


def bands(rows: list[Row], found: dict[str, Predicted], rates: dict[str, float]) -> dict[str, list[float]]:
    """From the errors on all boards, each left out."""
    told: dict[str, list[float]] = {}
    for way, one in found.items():
        own = np.array([_own(rows[i]) for i in one.rows])
        told[way] = list(band(one.log_error, own))
    off = max(1 / min(rates.values()), *rates.values())
    return told | {"derived_anchor": [0.75, 1.25], "inferred_rate": [1 / off, off], "untested_size": [0.5, 2.0]}


def report(rows: list[Row], found: dict[str, Predicted]) -> dict[str, Any]:
    """Title -> lines of figures."""
    estimated = found["estimated"]
    told: dict[str, Any] = {
        "rows": {
            "rows": len(rows),
            "boards": len({row.site for row in rows}),
            "cores": len({r.machine.core for r in rows}),
        },
        "by way of estimating": [
            line
            for way in WAYS
            for line in (
                figures(way, found[way]),
                figures(f"{way}, TFLite and XNNPACK rows", only(found[way], rows, _own)),
            )
            if line["rows"]
        ],
        "for comparison": [
            figures("multiply-accumulates times a constant", by_mac_count(rows)),
            figures("the same network on another board with the same core, by clock", same_core(rows)),
            figures("estimated, where there is such a row", within(estimated, same_core(rows))),
        ],
    }
    for title, key in (
        ("core", lambda row: row.machine.core),
        ("precision", lambda row: row.precision),
        ("framework", lambda row: row.framework),
        ("threads", lambda row: row.machine.threads),
        ("network", lambda row: row.network),
    ):
        values = sorted({key(row) for row in rows})
        told[f"estimated, by {title}"] = [
            figures(str(value), only(estimated, rows, lambda row, v=value, k=key: k(row) == v)) for value in values
        ]
    told["anchored by roofline and workstation, row by row"] = [
        {
            "board": rows[i].board, "network": rows[i].network, "precision": rows[i].precision,
            "threads": rows[i].machine.threads, "published_ms": rows[i].ms,
            "predicted_ms": round(float(rows[i].ms / np.exp(off)), 2),
        }
        for i, off in zip(found["blended"].rows, found["blended"].log_error, strict=True)
    ]  # fmt: skip
    return told


def _own(row: Row) -> bool:
    return row.framework in TARGETS


def only(found: Predicted, rows: list[Row], wanted: Any) -> Predicted:
    keep = np.array([bool(wanted(rows[i])) for i in found.rows], bool)
    return Predicted(found.rows[keep], found.log_error[keep], found.bands[keep])


def within(found: Predicted, other: Predicted) -> Predicted:
    keep = np.isin(found.rows, other.rows)
    return Predicted(found.rows[keep], found.log_error[keep], found.bands[keep])


def figures(name: str, found: Predicted) -> dict[str, Any]:
    """Per cent; bias: the median of predicted over published; inside_band: None where there is no band."""
    if not len(found.rows):
        return {"name": name, "rows": 0}
    off = found.error()
    has_band = not np.isnan(found.bands).any()
    return {
        "name": name,
        "rows": len(off),
        "median": round(float(np.median(off)), 1),
        "p90": round(float(np.percentile(off, 90)), 1),
        "within_20": round(float(100 * (off <= 20).mean()), 1),
        "within_50": round(float(100 * (off <= 50).mean()), 1),
        "bias": round(float(np.exp(-np.median(found.log_error))), 3),
        "inside_band": round(float(100 * found.inside().mean()), 1) if has_band else None,
        "band": [round(float(side), 2) for side in np.median(found.bands, axis=0)] if has_band else None,
    }


def figures_of(found: dict[str, Predicted]) -> list[dict[str, Any]]:
    return [figures(name, one) for name, one in found.items()]


def print_tables(tables: dict[str, Any]) -> None:
    for title, lines in tables.items():
        print(f"\n{title}")
        for line in lines if isinstance(lines, list) else [lines]:
            if "median" not in line:
                print("  " + ", ".join(f"{key} {value}" for key, value in line.items()))
                continue
            held = f"{line['inside_band']:5.1f} % inside x{line['band'][0]}-{line['band'][1]}" if line["band"] else ""
            print(
                f"  {line['name']:<64} n {line['rows']:>4}  median {line['median']:>5} %  p90 {line['p90']:>5} %  "
                f"within 20 %: {line['within_20']:>5}  within 50 %: {line['within_50']:>5}  bias {line['bias']:.2f}  "
                f"{held}"
            )


def _settle(fitted: dict[str, Any], write: bool) -> int:
    if write:
        TABLE.write_text(written(fitted), encoding="utf-8")
        return 0
    apart = list(differences(tomllib.loads(TABLE.read_text(encoding="utf-8")), fitted))
    for line in apart:
        print(line)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
