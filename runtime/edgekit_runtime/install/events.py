"""What happened in a root, a line of JSON each, the last few thousand of them.

    Events(root / "events.jsonl").tell("refused", code="downgrade", what="its rollout_seq 3 is older than 7, ...")

Rules:
- an event is told after the fact, and never stands in the way of it: a disk that is full loses the line, not the install;
- the file is bounded: beyond MOST_BYTES its older half goes;
- nothing in it is a secret: sources are told without credentials.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit_runtime.bundle.codec import read_json
from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install.disk import open_regular, write_file

__all__ = ["MOST_BYTES", "Events", "told_at"]

MOST_BYTES = 256 << 10
_MOST_VALUE = 500


def told_at(now_s: float) -> str:
    """RFC 3339, UTC; of a clock that no calendar knows the seconds."""
    from edgekit_runtime.trust.clock import tell_time

    return tell_time(now_s)


class Events:
    """path: the file; made when the first event is told. clock: seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def tell(self, event: str, **facts: Any) -> None:
        """Append one. facts: what is None or empty is left out."""
        line: dict[str, Any] = {"at": told_at(self._clock()), "event": event}
        line |= {name: _short(value) for name, value in facts.items() if value not in (None, "")}
        data = (json.dumps(line) + "\n").encode()
        with contextlib.suppress(OSError, EdgekitError):
            descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a power cut tore the last one
                    data = b"\n" + data
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
            if size > MOST_BYTES:
                self._halve()

    def read(self) -> list[dict[str, Any]]:
        """Oldest first. A line that a power cut tore is left out."""
        found = []
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(read_json(dict[str, Any], line, "an event"))
        return found

    def _halve(self) -> None:
        data = self._path.read_bytes()
        newer = data[data.index(b"\n", len(data) // 2) + 1 :]
        write_file(self._path, newer.decode("utf-8", errors="replace"))


def _short(value: Any) -> Any:
    return value[:_MOST_VALUE] if isinstance(value, str) else value
