"""What a board reports of its own work.
Counted by the meter, cut into windows, spooled, and sent where its owner said.

meter -> one window a minute -> spool (SQLite) -> MQTT -> ... the ingestor's acknowledgement -> the spool forgets

Without `telemetry=` nothing but the meter runs, and nothing leaves the board.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit_runtime.lazy import lazily

if TYPE_CHECKING:
    from edgekit_runtime.telemetry.flow import Flow
    from edgekit_runtime.telemetry.histogram import Histogram
    from edgekit_runtime.telemetry.link import Broker, Handlers, Link, Will
    from edgekit_runtime.telemetry.messages import BoardEvent, encode_event, parse_event
    from edgekit_runtime.telemetry.meter import CountedWindow, LatencyStats, Meter, MeterStats
    from edgekit_runtime.telemetry.reporter import ROOT, Reporter, TelemetryOptions, TelemetryStats
    from edgekit_runtime.telemetry.spool import Spool
    from edgekit_runtime.telemetry.window import (
        DEVICE_ID,
        About,
        Report,
        Seal,
        System,
        Window,
        device_id,
        encode,
        origin,
        parse_window,
        sealed_payload,
    )

__all__ = [
    "DEVICE_ID",
    "ROOT",
    "About",
    "BoardEvent",
    "Broker",
    "CountedWindow",
    "Flow",
    "Handlers",
    "Histogram",
    "LatencyStats",
    "Link",
    "Meter",
    "MeterStats",
    "Report",
    "Reporter",
    "Seal",
    "Spool",
    "System",
    "TelemetryOptions",
    "TelemetryStats",
    "Will",
    "Window",
    "device_id",
    "encode",
    "encode_event",
    "origin",
    "parse_event",
    "parse_window",
    "sealed_payload",
]

__getattr__ = lazily(
    __name__,
    {
        "edgekit_runtime.telemetry.flow": ("Flow",),
        "edgekit_runtime.telemetry.histogram": ("Histogram",),
        "edgekit_runtime.telemetry.link": (
            "Broker",
            "Handlers",
            "Link",
            "Will",
        ),
        "edgekit_runtime.telemetry.messages": ("BoardEvent", "encode_event", "parse_event"),
        "edgekit_runtime.telemetry.meter": (
            "CountedWindow",
            "LatencyStats",
            "Meter",
            "MeterStats",
        ),
        "edgekit_runtime.telemetry.reporter": (
            "ROOT",
            "Reporter",
            "TelemetryOptions",
            "TelemetryStats",
        ),
        "edgekit_runtime.telemetry.spool": ("Spool",),
        "edgekit_runtime.telemetry.window": (
            "DEVICE_ID",
            "About",
            "Report",
            "Seal",
            "System",
            "Window",
            "device_id",
            "encode",
            "origin",
            "parse_window",
            "sealed_payload",
        ),
    },
)
