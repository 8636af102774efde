"""The figures that the runtime is held to: what was wanted beside what was reached.

Out of the results of the other scripts.

    python benchmarks/runtime/figures.py --docs docs/figures.md

Reads benchmarks/results/runtime_*.json; what was not measured yet is said to be so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from wanted import Figure, show

_Row = Mapping[str, Any]


def figures(results: Path) -> Iterator[Figure]:
    """In the order of the table."""
    yield from _predict(_read(results / "runtime_predict.json"))
    yield from _cache(_read(results / "runtime_cache.json"))
    yield from _batching(_read(results / "runtime_batching.json"))
    yield from _on_a_loop(_read(results / "runtime_on_a_loop.json"))
    yield from _throughput(_read(results / "runtime_cache.json"))
    yield from _meter(_read(results / "runtime_meter.json"))
    yield from _imports(_read(results / "runtime_import_cost.json"))
    yield from _openings(_read(results / "runtime_cold_start.json"))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _named(rows: list[_Row], name: str, key: str = "name") -> _Row:
    return next(row for row in rows if row[key].startswith(name))


def _predict(found: Mapping[str, Any]) -> Iterator[Figure]:
    tables = found.get("tables", {})
    if not tables:
        yield Figure("predict() over the raw engine", "<= 1.02", "", None)
        return
    for name, net, most in (
        ("mobilenet", "MobileNetV2 224 INT8", (1.01, 1.01, 1.02)),
        ("mobilenet-448", "MobileNetV2 448 INT8", (1.01, 1.01, 1.02)),
        ("dense", "dense 1024-4096-4096-1000 INT8", (1.03, 1.03, 1.05)),
    ):
        rows = tables.get(f"{name}: outside the engine")
        if rows is None:
            continue
        engine_ms = _named(tables[f"{name}: one inference, one thread"], "raw")["p50_us"] / 1e3
        for row, wanted in zip(rows, most, strict=True):
            what = f"predict() over its engine, {net} ({engine_ms:.2g} ms), {row['name']}"
            reached = f"{row['ratio']:.3f}x, {row['p50_us']:.0f} us"
            yield Figure(what, f"p50 <= {wanted}x", reached, row["ratio"] <= wanted)
    for row, wanted in zip(tables["tiny: outside the engine"], (5, 7, 10), strict=True):
        what = f"predict() outside the engine, tiny dense net, {row['name']}"
        yield Figure(what, f"p50 <= {wanted} us", f"{row['p50_us']:.1f} us", row["p50_us"] <= wanted)
    if "dense: a lone caller of predict()" in tables:
        alone = tables["dense: a lone caller of predict()"][1]["ratio"]
        yield Figure(
            "single caller of predict(), batching on vs. off, dense INT8",
            "p50 <= 1.05x",
            f"{alone:.2f}x",
            alone <= 1.05,
        )


def _cache(found: Mapping[str, Any]) -> Iterator[Figure]:
    tables = found.get("lookup", {}).get("tables", {})
    if not tables:
        yield Figure("exact hit", "p50 <= 6 us", "", None)
        return
    whole = next(rows for name, rows in tables.items() if name.startswith("a whole request"))[0]["p50_us"]
    yield Figure("exact hit, 224 x 224 x 3 int8, all of predict()", "p50 <= 6 us", f"{whole:.1f} us", whole <= 6)
    rows = next(rows for name, rows in tables.items() if name.startswith("look up"))
    ours = _named(rows, "edgekit: Cache")["p50_us"]
    times, by = _named(rows, "tutorial")["p50_us"] / ours, ours / _named(rows, "the same key")["p50_us"]
    yield Figure("a lookup against the tutorial's `md5(str(x))`", ">= 20x faster", f"{times:.0f}x", times >= 20)
    yield Figure("a lookup against cachetools.TTLCache, same key", "<= 1.3x", f"{by:.2f}x", by <= 1.3)


def _batching(found: Mapping[str, Any]) -> Iterator[Figure]:
    """Of every case the rows by way; a case that was not measured says so."""
    for name, what, rows_of in (
        ("dense", "dense INT8 built with `--batch`, 32 callers of predict()", _dense),
        ("dense-single", "dense INT8 built without `--batch`, 32 callers of predict()", _dense),
        ("tiny", "tiny dense net, 32 callers of predict()", _tiny),
        ("mobilenet", "MobileNetV2 INT8, 16 callers of predict()", _mobilenet),
    ):
        case = found.get("cases", {}).get(name)
        if case is None:
            yield Figure(what, "", "", None)
        else:
            yield from rows_of(what, {row["way"]: row for row in case["rows"]})


def _dense(what: str, rows: Mapping[str, _Row]) -> Iterator[Figure]:
    ours, lock = rows["ours"], rows["lock"]
    others = [row for way, row in rows.items() if way not in ("ours", "lock")]
    best, calmest = max(others, key=lambda row: row["ratio"]), min(others, key=lambda row: row["p99_ms"])
    yield Figure(f"{what}: throughput over a lock", ">= 3x", f"{ours['ratio']:.2f}x", ours["ratio"] >= 3)
    yield Figure(
        f"{what}: over the best peer", ">= 1x", f"{ours['ratio'] / best['ratio']:.2f}x of {_peer(best)}",
        ours["ratio"] >= best["ratio"],
    )  # fmt: skip
    yield Figure(
        f"{what}: p99", f"below every peer's, the least {calmest['p99_ms']:.1f} ms ({_peer(calmest)})",
        f"{ours['p99_ms']:.1f} ms (lock {lock['p99_ms']:.0f} ms)", ours["p99_ms"] <= calmest["p99_ms"],
    )  # fmt: skip


def _tiny(what: str, rows: Mapping[str, _Row]) -> Iterator[Figure]:
    ratio = rows["ours"]["ratio"]
    best = max(row["ratio"] for way, row in rows.items() if way not in ("ours", "lock"))
    yield Figure(
        f"{what}: throughput over a lock", ">= 0.5x", f"{ratio:.2f}x (best peer {best:.2f}x)", ratio >= 0.5
    )  # fmt: skip


def _mobilenet(what: str, rows: Mapping[str, _Row]) -> Iterator[Figure]:
    ours, plain = rows["ours"], rows["lock"]["p99_by_fair_share"]
    fair, lone = ours["p99_by_fair_share"], ours["lone_ratio"]
    yield Figure(f"{what}: throughput over a lock", ">= 0.97x", f"{ours['ratio']:.2f}x", ours["ratio"] >= 0.97)
    yield Figure("the same: p99 by 16 service times", "<= 1.2x", f"{fair:.2f}x (lock {plain:.0f}x)", fair <= 1.2)
    yield Figure(
        "the same: single caller of predict() over the lock", "p50 <= 1.05x", f"{lone:.2f}x", lone <= 1.05
    )  # fmt: skip


def _peer(row: _Row) -> str:
    return {"window": "a 20 ms window", "greedy": "a greedy queue", "litserve": "LitServe", "mlserver": "MLServer"}.get(
        row["way"], row["way"]
    )


def _throughput(found: Mapping[str, Any]) -> Iterator[Figure]:
    for name, net in (("tiny", "tiny dense net"), ("mobilenet", "MobileNetV2 INT8")):
        rows = found.get("throughput", {}).get(name, {}).get("rows")
        if rows:
            share = rows["cache on"]["of_cache_off"]
            yield Figure(f"cache on, never hit, {net}: throughput", ">= 0.97 of off", f"{share:.2f}", share >= 0.97)
    memory = found.get("memory", {})
    if memory:
        spread = max(one["spread"] for one in memory.values())
        yield Figure(
            "2 million distinct requests, bounded cache: resident memory", "flat within 5 %", f"{100 * spread:.1f} %",
            spread <= 0.05,
        )  # fmt: skip


def _on_a_loop(found: Mapping[str, Any]) -> Iterator[Figure]:
    for net, row in found.get("rows", {}).items():
        share, name = row["ratio_of_processor_time"], {"tiny": "tiny dense net", "dense": "dense INT8"}[net]
        what = f"{name}, 32 tasks of an event loop: apredict() over a queue with an executor, by processor time"
        yield Figure(what, ">= 0.9x", f"{share:.2f}x", share >= 0.9)


def _meter(found: Mapping[str, Any]) -> Iterator[Figure]:
    if found:
        cost = found["rows"][0]["each_us"]
        yield Figure("counting a request: sources, budget, stages", "< 2 us", f"{cost:.1f} us", cost < 2)
        late = found["rows"][0]["p999_us"]
        yield Figure("the same: p99.9", "<= 200 us", f"{late:.0f} us", late <= 200)


def _imports(found: Mapping[str, Any]) -> Iterator[Figure]:
    if found:
        name = _named([{"name": key, **row} for key, row in found["rows"].items()], "from edgekit_runtime import open")
        first = _named([{"name": key, **row} for key, row in found["rows"].items()], "what the first")
        yield Figure(
            "`from edgekit_runtime import open_bundle`, over numpy", "<= 20 ms, <= 3 MB",
            f"{name['wall_ms']:.0f} ms, {name['resident_mb']:.1f} MB; opening then imports for "
            f"{first['wall_ms']:.0f} ms, {first['resident_mb']:.0f} MB",
            name["wall_ms"] <= 20 and name["resident_mb"] <= 3,
        )  # fmt: skip


def _openings(found: Mapping[str, Any]) -> Iterator[Figure]:
    for name, rows in found.get("against_raw", {}).items():
        for way, most in (("later open", 1.5), ("first open", 3.0)):
            times = rows[way]["processor, x"]
            yield Figure(f"{way} over raw, {name}, by processor time", f"<= {most}x", f"{times:.1f}x", times <= most)
        more, most_mb = rows["later open"]["MB over raw"], 20 if "onnx" in name else 8
        yield Figure(f"memory over raw, {name}", f"<= {most_mb} MB", f"{more:.0f} MB", more <= most_mb)
        paced = rows["later open"]["request at 10/s"] / rows["raw"]["request at 10/s"]
        yield Figure(
            f"a request at 10 a second over raw, not spinning, {name}", "<= 1.1x", f"{paced:.2f}x", paced <= 1.1
        )


if __name__ == "__main__":
    show(__doc__.split("\n\n")[0], figures, "runtime figures")
