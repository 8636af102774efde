"""Counts every answer: how many, from where, how long, how often over budget.

meter.record("device", 4.2, met_budget=True)
meter.stats().latency_ms.p99
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from edgekit_runtime.telemetry.histogram import Histogram

__all__ = ["LatencyStats", "Meter", "MeterStats"]


@dataclass(frozen=True)
class LatencyStats:
    """Milliseconds, from the caller's call to the caller's answer; None before the first answer."""

    p50: float | None
    p90: float | None
    p99: float | None
    maximum: float | None
    mean: float | None


@dataclass(frozen=True)
class MeterStats:
    """answers: by source. errors: by error code. latency_ms: over all answers; device_ms: the device's alone."""

    requests: int
    answers: dict[str, int]
    errors: dict[str, int]
    over_budget: int
    latency_ms: LatencyStats
    device_ms: LatencyStats


class Meter:
    """Thread-safe; `record` takes about a microsecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latency: dict[str, Histogram] = {}
        self._errors: dict[str, int] = {}
        self._over_budget = 0

    def record(self, source: str, latency_ms: float, met_budget: bool | None) -> None:
        """One answer. met_budget: None when the caller gave no budget."""
        with self._lock:
            histogram = self._latency.get(source)
            if histogram is None:
                histogram = self._latency[source] = Histogram()
            histogram.record(latency_ms)
            if met_budget is False:
                self._over_budget += 1

    def error(self, code: str) -> None:
        """One request that got no answer."""
        with self._lock:
            self._errors[code] = self._errors.get(code, 0) + 1

    def stats(self) -> MeterStats:
        with self._lock:
            whole = Histogram()
            for histogram in self._latency.values():
                whole.merge(histogram)
            answers = {source: histogram.count for source, histogram in self._latency.items()}
            errors = dict(self._errors)
            device = _summary(self._latency.get("device", Histogram()))
            return MeterStats(
                whole.count + sum(errors.values()), answers, errors, self._over_budget, _summary(whole), device
            )


def _summary(histogram: Histogram) -> LatencyStats:
    if not histogram.count:
        return LatencyStats(None, None, None, None, None)
    return LatencyStats(
        histogram.quantile(0.5),
        histogram.quantile(0.9),
        histogram.quantile(0.99),
        histogram.maximum,
        histogram.total / histogram.count,
    )
