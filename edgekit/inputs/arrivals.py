"""Files as they come into a folder.

    arrivals = Arrivals(Path("inbox"))
    for file in arrivals.until(ended):          # ended: an Event
        ...

Rules:
- what lies there when it begins is not new; a file that is written again is;
- a file is reported once it has stopped changing: size, time and inode were the same for SETTLED_S. One that is moved
  in whole settles as fast; one whose writer pauses for longer is reported as it is, and again when it has grown;
- empty files, hidden files and what is neither a picture nor an array are left alone; folders are not entered;
- looking takes at most a twentieth of the time, however many files there are.

There is no system call in the standard library that waits for a file, so the folder is looked at ten times a second.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic

from edgekit.inputs.files import InputsError, is_input

EVERY_S = 0.1
SETTLED_S = 0.25

Sign = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, inode: another one means that the file changed."""


def settled_names(
    seen: Mapping[str, tuple[Sign, float]], reported: Mapping[str, Sign], now_s: float, settled_s: float = SETTLED_S
) -> list[str]:
    """Names that are due, in the order in which they settled.
    seen: sign, and since when the file has had it."""
    due = [
        (since, name)
        for name, (sign, since) in seen.items()
        if reported.get(name) != sign and now_s - since >= settled_s
    ]
    return [name for _, name in sorted(due)]


class Arrivals:
    """look: name -> sign of what lies there; for tests."""

    def __init__(
        self,
        folder: Path,
        look: Callable[[Path], dict[str, Sign]] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._folder, self._look, self._clock = folder, look or signs, clock
        self._reported = self._look(folder)
        self._seen: dict[str, tuple[Sign, float]] = {}

    def next(self) -> list[Path]:
        """What has arrived since the last call. Raises InputsError when the folder is gone."""
        now, lies = self._clock(), self._look(self._folder)
        self._reported = {name: sign for name, sign in self._reported.items() if name in lies}
        self._seen = {
            name: (sign, self._seen[name][1] if name in self._seen and self._seen[name][0] == sign else now)
            for name, sign in lies.items()
        }
        names = settled_names(self._seen, self._reported, now)
        self._reported |= {name: lies[name] for name in names}
        return [self._folder / name for name in names]

    def until(self, ended: threading.Event) -> Iterator[Path]:
        """One file after another, as they come, until the event is set."""
        while not ended.is_set():
            began = self._clock()
            for file in self.next():
                if ended.is_set():
                    return
                yield file
                began = self._clock()
            ended.wait(max(EVERY_S, 20 * (self._clock() - began)))


def signs(folder: Path) -> dict[str, Sign]:
    """What lies in a folder and can be asked about. Raises InputsError."""
    found: dict[str, Sign] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_input(entry.name):
                    with contextlib.suppress(OSError):  # gone again
                        now = entry.stat()
                        if stat.S_ISREG(now.st_mode) and now.st_size:
                            found[entry.name] = (now.st_size, now.st_mtime_ns, now.st_ino)
    except OSError as error:
        do = "Pass a folder that exists and may be read, to which your files are copied"
        raise InputsError(f"cannot be watched: {error.strerror or error}", where=str(folder), do=do) from error
    return found
