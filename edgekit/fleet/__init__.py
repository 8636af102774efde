"""The fleet: what boards report, stored, and shown.

broker -> ingest -> store commits -> acknowledgement -> the boards forget
                    store -> device rows and roll-ups -> pages
"""

from __future__ import annotations

from edgekit.fleet.errors import FleetError, StoreError
from edgekit.fleet.ingest import Ingest, Pace
from edgekit.fleet.sqlite import SqliteStore
from edgekit.fleet.store import (
    Arrival,
    Birth,
    Change,
    Event,
    FleetDevice,
    GroupCount,
    Mark,
    Query,
    Rollup,
    State,
    Store,
    Totals,
    parse_state,
)

__all__ = [
    "Arrival",
    "Birth",
    "Change",
    "Event",
    "FleetDevice",
    "FleetError",
    "GroupCount",
    "Ingest",
    "Mark",
    "Pace",
    "Query",
    "Rollup",
    "SqliteStore",
    "State",
    "Store",
    "StoreError",
    "Totals",
    "parse_state",
]
