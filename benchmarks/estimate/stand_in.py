"""ONNX Runtime's published times over LiteRT's estimate, each board left out of the fit; and the factor that follows.

    judged(Fit(read()))                  # lines of figures, and the last one the factor for all boards

Rules:
- a row of ONNX Runtime counts where its network's operations are known; where nobody said how many threads there were,
  there were as many as cores: that is ONNX Runtime's default;
- LiteRT's estimate is by constants that were fitted without the row's board, for as many threads;
- every board counts alike, however many rows it has; a row is held against the factor of the other boards.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit import Fit
from networks import NETWORKS
from other_networks import OTHERS
from published import HERE, precision_of, where_it_ran

from edgekit_profiles.workload import CoreModel, Workload, constants, predict

KERNELS = "xnnpack"
"""What LiteRT runs, whose estimate stands in."""
OVER_NCNN = {
    "YOLOX-X": 2.87, "YOLOX-L": 2.85, "YOLOX-M": 2.72, "YOLOv9-C": 2.61, "YOLOv9-M": 2.44, "YOLOX-S": 2.26,
    "YOLOv9-S": 2.09, "YOLOX-Tiny": 1.97, "YOLOv9-T": 1.87, "YOLOX-Nano": 1.44, "PicoDet-M": 1.36, "PicoDet-L": 1.33,
    "PicoDet-S": 1.25,
}  # fmt: skip
"""Times of ONNX Runtime over ncnn's on one Raspberry Pi 5, float32: visionanalysis.org, ncnn-fp32-vs-onnx-fp32-rpi5."""


@dataclass(frozen=True)
class Timed:
    site: str
    machine: CoreModel
    network: str
    precision: str
    ms: float
    source: str


def timed(path: Path = HERE / "published_latencies.csv", framework: str = "ONNX Runtime") -> list[Timed]:
    """In the file's order. framework: how its name begins."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for line in csv.DictReader(file) if (row := _row(line, framework)) is not None]


def ncnn_unread() -> list[dict[str, Any]]:
    """ncnn's times of networks that no fit reads, by the constants that edgekit comes with."""
    low, high = _product_band()
    told = []
    for row in timed(framework="ncnn"):
        if row.network in NETWORKS:
            continue
        # its own default computes in 16 bits where the processor can, whatever the file has
        sixteen = "float16" in constants()["cores"][row.machine.core]
        precision = "float16" if sixteen and row.precision == "float32" else row.precision
        expected = sum(predict(row.machine, _workload(row), precision, "ncnn").values())
        told.append(
            {
                "board": row.site, "network": row.network, "published": row.precision, "computed": precision,
                "published_ms": row.ms, "estimated_ms": round(expected, 1), "ratio": round(row.ms / expected, 2),
                "inside": bool(low <= row.ms / expected <= high),
            }
        )  # fmt: skip
    return told


def spread() -> tuple[float, float]:
    """How far the ratio to ncnn is from its median, at the least and at the most."""
    ratios = sorted(OVER_NCNN.values())
    median = ratios[len(ratios) // 2]
    return ratios[0] / median, ratios[-1] / median


def factor(log_ratios: Mapping[str, Sequence[float]]) -> float:
    """log_ratios: by board."""
    return math.exp(float(np.mean([np.mean(board) for board in log_ratios.values()])))


def judged(fit: Fit, band: tuple[float, float] | None = None) -> list[dict[str, Any]]:
    """band: of LiteRT's estimate, as a factor; default: the product's for the roofline alone."""
    low, high = _joined(_product_band() if band is None else band, spread())
    rows, start = timed(), fit.solve(fit.all)
    expected: dict[Timed, float] = {}
    for site in sorted({row.site for row in rows}):
        train = [i for i in fit.all if fit.rows[i].site != site]
        constants = fit.constants(fit.solve(np.array(train), start))
        for row in rows:
            if row.site == site:
                work = _workload(row)
                terms = predict(row.machine, work, row.precision, KERNELS, constants)
                expected[row] = float(sum(terms.values()))
    logs: dict[str, list[float]] = {}
    for row, litert in expected.items():
        logs.setdefault(row.site, []).append(math.log(row.ms / litert))
    told = []
    for row, litert in expected.items():
        by_others = factor({site: found for site, found in logs.items() if site != row.site})
        ratio = row.ms / litert
        told.append(
            {
                "board": row.site, "network": row.network, "precision": row.precision, "published_ms": row.ms,
                "litert_ms": round(litert, 1), "ratio": round(ratio, 2), "factor of the others": round(by_others, 2),
                "inside": bool(low <= ratio / by_others <= high),
            }
        )  # fmt: skip
    return [*told, {"factor": round(factor(logs), 2), "low": round(low, 2), "high": round(high, 2)}]


def _row(line: Mapping[str, str], framework: str) -> Timed | None:
    if (
        not line["framework"].startswith(framework)
        or "Vulkan" in line["framework"]
        or line["model"] not in {**NETWORKS, **OTHERS}
    ):
        return None
    found = where_it_ran(line, int(line["threads"]) or int(line["core"].split("x")[0]))
    if found is None:
        return None
    site, machine = found
    precision = precision_of(line)
    return Timed(site, machine, line["model"], precision, float(line["latency_ms"]), line["source"])


def _workload(row: Timed) -> Workload:
    return Workload(row.precision, tuple({**NETWORKS, **OTHERS}[row.network]().ops))  # type: ignore[arg-type]


def _product_band() -> tuple[float, float]:
    table = HERE.parents[1] / "device_profiles" / "edgekit_profiles" / "roofline.toml"
    low, high = tomllib.loads(table.read_text(encoding="utf-8"))["bands"]["estimated"]
    return low, high


def _joined(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """As two errors that know nothing of each other."""
    low, high = (math.hypot(math.log(a), math.log(b)) for a, b in zip(one, other, strict=True))
    return math.exp(-low), math.exp(high)
