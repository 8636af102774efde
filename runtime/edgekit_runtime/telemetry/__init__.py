"""What a board knows of its own work: the meter and its mergeable histograms. Nothing leaves the board from here."""

from __future__ import annotations

from edgekit_runtime.telemetry.histogram import Histogram
from edgekit_runtime.telemetry.meter import LatencyStats, Meter, MeterStats

__all__ = ["Histogram", "LatencyStats", "Meter", "MeterStats"]
