"""The rows of published_latencies.csv that the roofline can be held against, each with its source.

    rows = read()                    # 1,514 rows of 50 boards
    rows[0].board, rows[0].ms, rows[0].source

A row is used where its framework runs convolutions on the processor in a way that is known, its network is one whose
operations are known, and its cores are of one type that others have too; the rest of the file is kept for what comes
next.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from networks import NETWORKS, workload

from edgekit_profiles.workload import CoreModel, predict

HERE = Path(__file__).parent
NEVER_FITTED = HERE / "never_fitted_latencies.csv"
"""Rows that came after the fit: they only judge it."""
ANCHOR = "mobilenet_v1_1.0_224"
CORES = ("a7", "a53", "a55", "a57", "a72", "a73", "a75", "a76", "a77", "a78ae")
LATER = ("a720", "x3", "x4")
"""Cores of phones, and of one board, that are fitted after all others: a board each was published."""
_PRECISIONS = {"fp32": "float32", "fp16": "float16", "int8": "int8"}
_CORE = re.compile(r"(\d+)x (Cortex-[A-Z0-9]+) @([\d.]+)GHz")
# One physical kind of board is left out at once: a Pi 4 at another clock or on another system is the same board.
_VARIANT = re.compile(r" \((OC|32-bit|fan|issue|1\.5GHz).*")
_TFLITE = ("tflite 2020", "tflite (pre-xnnpack", "tflite hosted", "tflite c++ 64")


@dataclass(frozen=True)
class Row:
    """board: with its variant; site: without. machine: the cores that ran, at their mean clock. framework: as the
    roofline calls its kernels. soc: as the file says."""

    board: str
    site: str
    machine: CoreModel
    network: str
    precision: str
    framework: str
    ms: float
    source: str
    soc: str = ""

    @property
    def cell(self) -> tuple[str, CoreModel, str, str]:
        """What an anchor must share."""
        return (self.board, self.machine, self.precision, self.framework)


def read(path: Path = HERE / "published_latencies.csv", cores: Sequence[str] = CORES) -> list[Row]:
    """In the file's order."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for line in csv.DictReader(file) if (row := _row(line, cores)) is not None]


def terms(row: Row, fitted: Mapping[str, Any]) -> dict[str, float]:
    """What the product's own roofline says of the row."""
    return predict(row.machine, workload(row.network), row.precision, row.framework, fitted)


@cache
def host_times() -> dict[str, dict[str, float]]:
    """Precision -> network -> milliseconds on one x86 core."""
    return tomllib.loads((HERE / "host_times.toml").read_text(encoding="utf-8"))


def where_it_ran(line: Mapping[str, str], threads: int, known: Sequence[str] = CORES) -> tuple[str, CoreModel] | None:
    """The kind of board, and the cores that ran at their mean clock; None where no roofline describes those."""
    cores = _CORE.findall(line["core"])
    types = {core.lower() for _, core, _ in cores}
    clocks = [float(clock) for count, _, clock in cores for _ in range(int(count))]
    if not 1 <= threads <= len(clocks) or len(types) != 1:
        return None  # threads are 0 where nobody said how many; big and little cores at once are not modelled
    (core,) = types
    if core.removeprefix("cortex-") not in known:
        return None
    site = _VARIANT.sub("", line["board"])
    return site, CoreModel(core, sum(clocks[:threads]) / threads, _bandwidth(line["board"], site), threads)


def precision_of(line: Mapping[str, str]) -> str:
    return _PRECISIONS[line["precision"]]


def _row(line: dict[str, str], cores: Sequence[str]) -> Row | None:
    framework = _framework(line["framework"].lower())
    if framework is None or line["model"] not in NETWORKS:
        return None
    found = where_it_ran(line, int(line["threads"]), cores)
    if found is None:
        return None
    site, machine = found
    return Row(
        line["board"],
        site,
        machine,
        line["model"],
        precision_of(line),
        framework,
        float(line["latency_ms"]),
        line["source"],
        line["soc"],
    )


def _framework(name: str) -> str | None:
    """Which kernels ran; None where that is not known, or where they are those of another time."""
    for kernels, start in (("ncnn", "ncnn"), ("paddle", "paddle-lite"), ("tengine", "tengine")):
        if name.startswith(start):
            return kernels
    if "xnnpack" in name and "pre-xnnpack" not in name and "slow outlier" not in name:
        return "xnnpack"
    return "tflite" if name.startswith(_TFLITE) else None


def _bandwidth(board: str, site: str) -> float:
    table = _bandwidths()
    return float(table["boards"].get(board, table["boards"].get(site, table["other"])))


@cache
def _bandwidths() -> dict[str, Any]:
    return tomllib.loads((HERE / "memory_bandwidth.toml").read_text(encoding="utf-8"))
