"""Long work: progress on stderr, as bars or plain lines, and its end by a signal.

Rule: a closed terminal or pipe, or a full disk, costs the lines only and never ends the work.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from edgekit_runtime.system.errors import visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


@contextmanager
def until_signalled(then: Callable[[], object] = lambda: None) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal acts as it always does."""
    ended, before = threading.Event(), dict[int, Any]()

    def end(number: int, _frame: object) -> None:
        ended.set()
        signal.signal(number, before[number])
        then()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, end)
    try:
        yield ended
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


class ConsoleProgress(Protocol):
    """A Progress that can also print a line of its own."""

    def __call__(self, stage: str, done: int, total: int | None) -> None: ...
    def say(self, line: str) -> None: ...


@contextmanager
def console_progress(stream: TextIO | None = None) -> Iterator[ConsoleProgress]:
    """Yields a Progress that draws on `stream`, by default on a copy of stderr.

    Conversion tools are silenced by redirecting descriptor 2, which must not silence the progress.
    """
    with contextlib.ExitStack() as opened:
        if stream is None:
            try:
                stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
                opened.callback(_Stream(stream).close)
            except (OSError, ValueError, AttributeError):  # no stderr, or one that is not a file
                stream = sys.stderr or io.StringIO()
        stream = cast(TextIO, _Stream(stream))
        bars = _bars(stream) if stream.isatty() else None
        yield PlainLines(stream) if bars is None else _Bars(opened.enter_context(bars))


class _Stream:
    """A stream whose reader may have gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()


def _bars(stream: TextIO) -> RichProgress | None:
    """None on a board: the base install draws no bars."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    return RichProgress(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[amount]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        console=Console(file=stream),
    )


class PlainLines:
    """A line when a stage starts, every few seconds, and when it ends. Stages may overlap."""

    def __init__(self, stream: TextIO, *, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._every_s, self._clock = stream, every_s, clock
        self._began: dict[str, float] = {}
        self._said: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = self._clock()
        if stage not in self._began:
            self._began[stage] = now
        elif now - self._said[stage] < self._every_s and done != total:
            return
        self._said[stage] = now
        spent = now - self._began[stage]
        if done == total:
            del self._began[stage]  # a stage of the same name may come again
        amount = f" {done}/{total}" if total is not None else f", {done} so far" if done else ""
        counts = done > 1 or done == total  # with the first item, what came before it was timed, too
        rate, pace = _rate(done, spent) if counts else "", ""
        if rate and total is not None:
            left = f"{(total - done) * spent / done:.0f} s left" if done < total else f"{spent:.1f} s"
            pace = f" ({rate}, {left})"
        elif rate:
            pace = f" ({rate})"
        print(f"{stage}{amount}{pace}", file=self._stream, flush=True)

    def say(self, line: str) -> None:
        print(visible(line), file=self._stream, flush=True)


class _Bars:
    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, tuple[TaskID, float]] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = (self._bars.add_task(stage, total=total, rate="", amount=""), time.monotonic())
        task, began = self._tasks[stage]
        amount = f"{done}/{total}" if total is not None else str(done or "")
        self._bars.update(task, completed=done, total=total, amount=amount, rate=_rate(done, time.monotonic() - began))

    def say(self, line: str) -> None:
        """Above the bars."""
        self._bars.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)


def _rate(done: int, spent: float) -> str:
    return f"{done / spent:.1f}/s" if done and spent > 0.05 else ""
