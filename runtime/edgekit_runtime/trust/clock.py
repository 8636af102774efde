"""The time by which dates are judged, on boards whose clock may say 1970 or 2100.

    moment = judge(seen_s=root_state.seen_s, issued_s=store.issued_s)
    if moment.at_s > expires_s: refuse(f"expired on {tell_time(expires_s)} {moment.told}")

Rules:
- the time is the latest of four: the system's clock, the last time seen on this board, the day the root.json was issued,
  and the day this code was written. A clock that was set back, or never set, opens nothing that had expired before;
- a clock that is ahead may refuse what is still good, and every such refusal says by which clock. It spoils nothing for
  later: the last time seen never goes beyond what was plausible (`seen_after`), so that setting the clock mends it;
- a board without a clock cannot know that it is late: until it hears of a later time it accepts what has expired since.
"""

from __future__ import annotations

import calendar
import datetime
import re
import time
from dataclasses import dataclass

__all__ = ["EARLIEST_S", "Moment", "judge", "moment_of", "parse_time", "seconds_of", "seen_after", "tell_time"]

EARLIEST_S = calendar.timegm((2026, 11, 1, 0, 0, 0))
"""No board ran this code before."""
_LATEST_S = calendar.timegm((2070, 1, 1, 0, 0, 0))
"""Where nothing says until when a time is plausible: a clock that was never set and runs backwards, or the wrong unit."""


_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclass(frozen=True)
class Moment:
    """at_s: seconds since 1970, UTC, to judge by. told: the words for a refusal, which name the clock it rests on."""

    at_s: float
    told: str


def judge(system_s: float | None = None, *, seen_s: float | None = None, issued_s: float | None = None) -> Moment:
    """The time to judge by. system_s: seconds since 1970, None to ask the system; seen_s: the last time seen on this board;
    issued_s: when the root.json was."""
    system = time.time() if system_s is None else system_s
    others = {
        "the day this runtime was written": float(EARLIEST_S),
        "the day its root.json was issued": issued_s,
        "the last time seen on this board": seen_s,
    }
    latest, why = system, ""
    for name, value in others.items():
        if value is not None and value > latest:
            latest, why = value, name
    says = f"this machine's clock says {tell_time(system)}"
    return Moment(latest, f"({says})" if not why else f"(judged by {why}, {tell_time(latest)}; {says})")


def seen_after(system_s: float, seen_s: float | None, plausible_until_s: float | None = None) -> float:
    """The last time seen, once `system_s` was: never earlier than before, and unmoved by a time beyond what is plausible.

    plausible_until_s: when the root in force expires. After it nothing is accepted anyhow, so nothing is lost by not
    believing such a clock, and a board whose clock said 2100 for a day works again once it is set.
    """
    before = float(EARLIEST_S) if seen_s is None else seen_s
    until = _LATEST_S if plausible_until_s is None else plausible_until_s
    return max(before, system_s) if system_s <= until else before


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


def parse_time(text: str) -> float:
    """`2027-01-31T00:00:00Z` -> seconds since 1970. Raises ValueError for any other form and for days that do not exist."""
    seconds = seconds_of(text)
    if seconds is None:
        raise ValueError(f"{text!r:.40} is no time of the form 2027-01-31T00:00:00Z")
    return seconds


def tell_time(at_s: float) -> str:
    """Seconds since 1970 -> `2027-01-31T00:00:00Z`; what no calendar has is told in seconds."""
    try:
        return moment_of(at_s)
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f} s after 1970"
