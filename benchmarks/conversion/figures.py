"""The figures that conversion is held to: what was wanted beside what was reached.

Out of the results of the other scripts.

    python benchmarks/conversion/figures.py --docs benchmarks/results/fidelity.md

Reads benchmarks/results/{fidelity,conversion_speed,memory,build_time}.json; what was not measured yet is said to be so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models import CASES

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wanted import Figure, show

_Cell = Mapping[str, Any]
_LIMIT = 0.005
_LARGE = 2_000_000


def figures(results: Path) -> Iterator[Figure]:
    """In the order of the table; those of what was not run are absent or say so."""
    models: Mapping[str, Mapping[str, _Cell]] = _read(results / "fidelity.json").get("models", {})
    if "efficientnet_lite0" in models:
        yield from _against_peers(models["efficientnet_lite0"])
    for name in CASES if models else ():
        if name != "efficientnet_lite0":
            yield from _kept(name, models.get(name, {}))
    yield from _sizes(models)
    yield from _speed(_read(results / "conversion_speed.json"))
    yield from _memory(_read(results / "memory.json"))
    yield from _build(_read(results / "build_time.json"))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _against_peers(cells: Mapping[str, _Cell]) -> Iterator[Figure]:
    """All in 8 bits against all in 8 bits: dynamic range keeps activations in float and is slower than float here."""
    theirs = {
        row: cell for row, cell in cells.items() if "edgekit" not in row and "dynamic" not in row and "agree" in cell
    }
    best = max(theirs, key=lambda row: theirs[row]["agree"])
    most = theirs[best]["agree"]
    for row in (row for row in cells if "edgekit" in row):
        cell = cells[row]
        what = f"EfficientNet-Lite0 on 500 photos, {row.replace('*', '')}"
        if "agree" not in cell:
            yield Figure(what, f"over {most}", str(cell["reason"])[:80], False)
            continue
        low, high = (100 * share for share in cell["ci95"])
        reached = f"{cell['agree']} ({low:.1f}-{high:.1f} %), {100 * cell['float_macs']:.0f} % of MACs in float"
        yield Figure(what, f"over {most} ({best}, the best in INT8)", reached, cell["agree"] > most)
    ours = max((cell["agree"] for row, cell in cells.items() if "edgekit" in row and "agree" in cell), default=None)
    if ours is not None:
        left = theirs[best]["items"] - ours
        half = (theirs[best]["items"] - most) // 2
        yield Figure("the same: photos answered otherwise, at best", f"moonshot: {half}", str(left), left <= half)


def _kept(name: str, cells: Mapping[str, _Cell]) -> Iterator[Figure]:
    """The limit, by each of edgekit's rows; a repaired one may leave a tenth of the work in float."""
    naive = ", known to collapse" if CASES[name].naive else ""
    for form in ("TFLite", "ONNX"):
        rows = [row for row in cells if "edgekit" in row and form in row]
        reached = [f"{'repaired ' if 'repaired' in row else ''}{_said(cells[row])}" for row in rows]
        labelled = CASES[name].task != "description" and "no labels" not in CASES[name].what
        wanted = "drop <= 0.5 points" if labelled else "cosine >= 0.99"
        met = any(_within(cells[row]) for row in rows) if rows else None
        yield Figure(f"{name}, {form}{naive}", wanted, "; ".join(reached), met)


def _said(cell: _Cell) -> str:
    if "agreement" not in cell:
        return str(cell["reason"])[:100]
    drop = f"{100 * (cell['original'] - cell['artifact']):.2f} points, " if "artifact" in cell else ""
    left = f", {100 * cell['float_macs']:.0f} % of MACs in float" if cell.get("float_macs") else ""
    return f"{drop}agreement {100 * cell['agreement']:.1f} %, cosine {cell['cosine']:.4f}{left}"


def _within(cell: _Cell) -> bool:
    if "agreement" not in cell or (cell.get("float_macs") or 0) > 0.1:
        return False
    if "artifact" in cell:
        return bool(cell["original"] - cell["artifact"] <= _LIMIT + 1e-9)
    return bool(cell["cosine"] >= 0.99)


def _sizes(models: Mapping[str, Mapping[str, _Cell]]) -> Iterator[Figure]:
    for name, cells in models.items():
        shares = [
            (row.replace("*", "").removeprefix("edgekit, "), cell["bytes"] / cell["float_bytes"])
            for row, cell in cells.items()
            if "edgekit" in row and cell.get("float_bytes", 0) > _LARGE
        ]
        if shares:
            reached = "; ".join(f"{row}: {share:.2f}" for row, share in shares)
            met = all(share <= 0.30 for row, share in shares if "repaired" not in row)
            yield Figure(f"size of {name} against float32", "<= 0.30", reached, met)


def _speed(value: Mapping[str, Any]) -> Iterator[Figure]:
    what = "MobileNetV2 224, one thread: float against edgekit's INT8, the best engine"
    found = value.get("conditions", {})
    faster, apart = found.get("float / edgekit's best"), found.get("edgekit's best / their best")
    if faster is None:
        yield Figure(what, ">= 2.0x", "", None)
        return
    yield Figure(what, ">= 2.0x", f"{faster:.2f}x", faster >= 2.0)
    yield Figure(
        "the same: edgekit's best by LiteRT's and ONNX Runtime's own", "<= 1.05", f"{apart:.3f}", apart <= 1.05
    )


def _memory(value: Mapping[str, Any]) -> Iterator[Figure]:
    if not value:
        yield Figure("peak memory of calibration, 10,000 images against 100", "<= 1.1x, <= 1.5 GiB", "", None)
    for row in value.get("rows", ()):
        few, many = row["mib"]
        what = f"peak memory of calibration, {row['format']}, all range methods, {int(many):,} images against {few}"
        most = max(row["mib"].values())
        reached = f"{row['ratio']:.2f}x, {most / 1024:.2f} GiB"
        yield Figure(what, "<= 1.1x, <= 1.5 GiB", reached, row["ratio"] <= 1.1 and most <= 1536)


def _build(value: Mapping[str, Any]) -> Iterator[Figure]:
    what = "build of MobileNetV2, three boards, both formats, 200 images, by the bare calls"
    if not value:
        yield Figure(what, "<= 1.5x", "", None)
        return
    found = value["figures"]
    ratio, again = found["build / bare calls"], found["unchanged rebuild, s"]
    reached = f"{ratio:.2f}x ({found['build, s']:.0f} s by {found['bare calls, s']:.0f} s)"
    yield Figure(what, "<= 1.5x", reached, ratio <= 1.5)
    if processor := found.get("build / bare calls, by processor time"):
        yield Figure(f"{what}: processor time", "<= 1.7x", f"{processor:.2f}x", processor <= 1.7)
    yield Figure("unchanged rebuild", "< 5 s", f"{again:.1f} s", again < 5)


if __name__ == "__main__":
    show(__doc__.split("\n\n")[0], figures, "figures")
