"""Timing a bundle the way an application uses it: through `predict`, one request after another, the cache off."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from edgekit_converters.progress import Progress, silent
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle import Bundle, read_bundle
from edgekit_runtime.errors import BundleError

__all__ = ["golden_inputs", "measure"]


def measure(
    path: Path, *, runs: int = 200, engine: str | None = None, threads: int | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """The object that `edgekit bench --json` prints. Milliseconds; percentiles over `runs` requests after the warm-up."""
    items = golden_inputs(read_bundle(path))
    start = perf_counter()
    with open_bundle(path, cache_mb=0, engine=engine, threads=threads) as model:
        ready = perf_counter()
        first = model.predict(items[0])
        timings = []
        for i in range(runs):
            timings.append(model.predict(items[i % len(items)]).timings)
            if i % max(1, runs // 50) == 0 or i == runs - 1:  # rarely: drawing costs more than a small network
                progress("timing", i + 1, runs)
        described = model.describe()
    total = np.array([taken["total"] for taken in timings])
    stages = [stage for stage in timings[0] if stage != "total"]
    p50, p95, p99 = (float(v) for v in np.percentile(total, [50, 95, 99]))
    return {
        "bundle": str(path),
        "recipe": described["recipe"],
        "engine": described["engine"]["name"],
        "engine_version": described["engine"]["version"],
        "threads": described["engine"]["threads"],
        "n": runs,
        "min_ms": float(total.min()),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "throughput_per_s": runs / (float(total.sum()) / 1e3),
        "first_ms": first.timings["total"],
        "ready_ms": (ready - start) * 1e3,
        "peak_rss_mb": _peak_rss_mb(),
        "stages_ms": {s: float(np.median([taken[s] for taken in timings])) for s in stages},
        "conditions": conditions(),
    }


def golden_inputs(bundle: Bundle) -> list[dict[str, np.ndarray[Any, Any]]]:
    """The canonical inputs that travel in the bundle. Raises BundleError when there are none."""
    if not bundle.manifest.golden:
        raise BundleError("it holds no golden example to time it with", where=str(bundle.path), do="Build it again")
    return [bundle.golden_items(golden) for golden in bundle.manifest.golden]


def conditions() -> dict[str, Any]:
    """What a reader must know to compare two runs: the processor, its load and clock, the versions."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "governor": _first_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu_name() -> str:
    lines = (_text(Path("/proc/cpuinfo")) or "").splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.split("\t")[0].strip() in ("model name", "Model")]
    return named[-1] if named else platform.processor() or platform.machine()


def _peak_rss_mb() -> float | None:
    """Of this process since it began, megabytes (1e6 bytes); None where the system does not tell."""
    # Linux's getrusage also counts the process that started this one; its own high-water mark does not.
    for line in (_text(Path("/proc/self/status")) or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def _first_line(path: Path) -> str | None:
    text = _text(path)
    return text.splitlines()[0] if text else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
