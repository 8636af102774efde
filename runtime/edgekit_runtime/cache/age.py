"""The age of an entry, on boards whose clocks cannot be trusted.
They start in 1970, jump when the network comes up, and sleep.

    born = moment()
    age_s(born, moment())           # seconds, or None where it is unknown

Rules:
- within one boot only the time since boot counts, sleep included: what happens to the wall clock changes nothing;
- across boots there is the wall clock alone: an age is believed where both times are plausible and it is not negative;
- where the age is unknown, the answer is None, and the caller must take the thing for too old.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["PLAUSIBLE_S", "Moment", "age_s", "elapsed_s", "moment"]

PLAUSIBLE_S = 1_704_067_200.0
"""2024-01-01: a wall clock before it has not been set since power came on."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True, slots=True)
class Moment:
    """wall_s: Unix time.
    up_s: `elapsed_s()`.
    boot: a number for this boot of this machine, 0 where it is not known."""

    wall_s: float
    up_s: float
    boot: int


def elapsed_s() -> float:
    """Seconds from a fixed point of this boot.
    Unlike `time.monotonic`, Linux's counts the time asleep."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def moment() -> Moment:
    return Moment(time.time(), elapsed_s(), _boot())


def age_s(born: Moment, now: Moment) -> float | None:
    """Seconds from `born` to `now`, or None where neither clock can say."""
    if born.boot == now.boot != 0 and now.up_s >= born.up_s:
        return now.up_s - born.up_s
    if min(born.wall_s, now.wall_s) < PLAUSIBLE_S or now.wall_s < born.wall_s:
        return None
    return now.wall_s - born.wall_s


@cache
def _boot() -> int:
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return int(name.replace("-", "")[:15], 16)  # 60 bits: SQLite's integers are signed
    except (OSError, ValueError):
        return 0
