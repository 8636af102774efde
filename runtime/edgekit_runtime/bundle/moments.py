"""Moments as a manifest writes them: RFC 3339 in UTC, to the second, one spelling each.

seconds_of("2027-01-31T00:00:00Z")      # 1801353600, as time.time() counts; None for any other spelling
moment_of(1801353600)                   # "2027-01-31T00:00:00Z"
"""

from __future__ import annotations

import datetime
import re

__all__ = ["moment_of", "seconds_of"]

_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def seconds_of(moment: str) -> int | None:
    """Seconds since 1970, without leap seconds; None for what is not written so, or is no day and time."""
    if not _MOMENT.fullmatch(moment):
        return None
    try:
        return int(datetime.datetime.fromisoformat(f"{moment[:-1]}+00:00").timestamp())
    except ValueError:  # the 31st of April, 24:00:00, the year 0
        return None


def moment_of(seconds: float) -> str:
    """The second that `seconds` since 1970 lies in."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
