"""Open files: each board's connection is one of the broker, each viewer's one of the server.

raise_limit()               # 524288: what this process may open from now on
bearing()                   # [FileLimit("mosquitto 812", 1024)], whose `boards` is 1000
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

_BROKERS = ("mosquitto", "nanomq", "beam.smp")
"""Names of brokers' processes; EMQX and VerneMQ run in beam.smp."""
_OWN = 24
"""Files that a broker needs besides its boards."""
_ENDLESS = 1 << 20


@dataclass(frozen=True)
class FileLimit:
    """process: name and number."""

    process: str
    limit: int

    @property
    def boards(self) -> int:
        """Connections of boards; one with an agent has two."""
        return max(0, self.limit - _OWN)


def raise_limit() -> int:
    """Raise this process's limit to the hard one; returns the limit."""
    try:
        import resource
    except ImportError:  # Windows has none
        return _ENDLESS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # above the kernel's own limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft


def bearing(processes: Path = Path("/proc")) -> list[FileLimit]:
    """Limits of the brokers on this machine; without one, of a broker that is started from here."""
    found = []
    for folder in sorted(processes.glob("[0-9]*")):
        with contextlib.suppress(OSError):  # it has ended
            name = (folder / "comm").read_text().strip()
            if name in _BROKERS and (limit := _limit_in((folder / "limits").read_text())):
                found.append(FileLimit(f"{name} {folder.name}", limit))
    with contextlib.suppress(OSError):
        if not found and (limit := _limit_in((processes / "self" / "limits").read_text())):
            found.append(FileLimit("a broker started from here", limit))
    return found


def _limit_in(text: str) -> int | None:
    """The soft limit in a process's `limits`."""
    said = re.search(r"^Max open files +(\d+|unlimited)", text, re.MULTILINE)
    return None if said is None else _ENDLESS if said[1] == "unlimited" else int(said[1])
