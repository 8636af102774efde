"""Independent work side by side: in threads, because the engines and converters leave Python alone while they compute.

Rules: results come in the order of the tasks; the first error ends the rest and is raised; the caller's thread only
waits, so that Ctrl-C is answered at once, and what is still running stops at its next sign of progress.

    with Workers(2, progress) as workers:
        found = workers.run([partial(make, recipe, workers.progress) for recipe in recipes])
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from edgekit_converters.progress import Progress

__all__ = ["Task", "Workers"]

T = TypeVar("T")
Task = Callable[[], T]


class _StoppedError(BaseException):
    """Raised in a worker that nobody waits for any more. No Exception, so that no converter takes it for a failure."""


class Workers:
    """jobs: how many tasks run at once. Threads are daemons: one that a tool keeps busy does not keep the process
    alive.
    """

    def __init__(self, jobs: int, progress: Progress) -> None:
        if jobs < 1:
            raise ValueError(f"{jobs} jobs")
        self._jobs, self._progress = jobs, progress
        self._stop, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def run(self, tasks: Sequence[Task[T]]) -> list[T]:
        """Raises what the first failing task raised; the others stop."""
        waiting = queue.SimpleQueue[tuple[int, Task[T]]]()
        done = queue.SimpleQueue[tuple[int, Any, BaseException | None]]()
        for entry in enumerate(tasks):
            waiting.put(entry)
        for _ in range(min(self._jobs, len(tasks))):
            threading.Thread(target=self._work, args=(waiting, done), name="edgekit-build", daemon=True).start()
        results: dict[int, T] = {}
        while len(results) < len(tasks):
            index, value, error = done.get()
            if error is not None:
                self._stop.set()
                raise error
            results[index] = value
        return [results[index] for index in range(len(tasks))]

    def _work(self, waiting: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any]) -> None:
        while not self._stop.is_set():
            try:
                index, task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, task(), None))
            except _StoppedError:
                return
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                self._stop.set()
                done.put((index, None, error))

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """A Progress that any thread may call. In a worker that nobody waits for it ends the task."""
        if self._stop.is_set():
            raise _StoppedError
        with self._lock:
            self._progress(stage, done, total)
