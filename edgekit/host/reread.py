"""Files that are replaced while the server runs: certificates that were renewed, clients that came or went.

    reread = Reread((path,), lambda: load(path))
    reread.check()                              # once a second

Rules:
- what is there at the start was read by the caller, and must have been right;
- a replacement that is wrong changes nothing, and is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekit.host.errors import ServeError

__all__ = ["Reread"]

_LOG = logging.getLogger("edgekit.host")
_Stamp = tuple[int, int, int]


class Reread:
    """load: reads the files; it may raise ServeError."""

    def __init__(self, paths: Sequence[Path], load: Callable[[], None]) -> None:
        self._paths, self._load = paths, load
        self._seen = self._stamps()

    def check(self) -> None:
        """Read the files again if one of them is another than before."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._load()
        except ServeError as error:
            _LOG.error("%s; what was read before stays in use", error)
        else:
            _LOG.info("read again: %s", ", ".join(map(str, self._paths)))

    def _stamps(self) -> list[_Stamp | None]:
        stamps: list[_Stamp | None] = []
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return stamps
