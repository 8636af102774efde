"""A generation on trial: promise, measurements, starts, and the verdict as a pure function.

    start = begin_start(root, 4)          # before the bundle is opened
    start.end()                     # the model was closed properly
    failed_starts(root, 4)          # processes that ended without `end`
    seen = read_counts(root, 4).plus(TrialCounts(answers=240, late=1, failures=0, seconds=61.0))
    judge(seen, terms)              # TrialVerdict("keep", "240 answers ...")

Rules:
- only the device's answers count: neither a cache nor a host says anything about it;
- the promise is of one inference: p99 within it means that at most one in a hundred took longer;
- a dead engine decides at once; everything else once enough was seen;
- a start is a file that its process holds locked: the kernel releases it however the process ends. A running one is not
  failed, so several processes may open one root;
- if a start cannot be recorded (read-only file system) nothing is tried out: the committed generation is opened;
- unreadable counts are empty counts: the trial only takes longer.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgekit_runtime.install import durable
from edgekit_runtime.install.durable import storage_errors
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import Lease, hold, in_use
from edgekit_runtime.system.errors import EdgekitError, InstallError
from edgekit_runtime.system.strict_json import json_text, read_json

if TYPE_CHECKING:
    from edgekit_runtime.bundle.manifest import Manifest

LATE_SHARE = 0.01
"""Share of answers that may be later than a p99."""
FAILED_SHARE = 0.01
"""Share of inferences that may fail."""
ANOTHER = "Do not use this bundle here: another engine or version may run it"
_NAME = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class TrialTerms:
    """answers, seconds: how much must be seen.
    p99_ms, peak_mb: what was promised, or None.
    """

    answers: int = 200
    seconds: float = 60.0
    p99_ms: float | None = None
    peak_mb: float | None = None


@dataclass(frozen=True)
class TrialCounts:
    """answers: of the device.
    late: of those, longer than the promise.
    failures: of the engine.
    seconds: since it began.
    p99_ms: shown to users.
    peak_mb: of a process that does nothing else, else None.
    dead: why the engine died, else empty.
    """

    answers: int = 0
    late: int = 0
    failures: int = 0
    seconds: float = 0.0
    p99_ms: float | None = None
    peak_mb: float | None = None
    dead: str = ""

    def plus(self, other: TrialCounts) -> TrialCounts:
        """Add up two runs of one trial; the p99 shown is the later one's."""
        return replace(
            other,
            answers=self.answers + other.answers,
            late=self.late + other.late,
            failures=self.failures + other.failures,
            seconds=self.seconds + other.seconds,
            p99_ms=self.p99_ms if other.p99_ms is None else other.p99_ms,
        )


@dataclass(frozen=True)
class TrialVerdict:
    """do: the remedy, for `back`."""

    says: Literal["wait", "keep", "back"]
    why: str = ""
    do: str = ""


def terms_of(manifest: Manifest, answers: int = 200, seconds: float = 60.0) -> TrialTerms:
    """Without memory, whose promise depends on artifact and engine (`memory_promised`)."""
    return TrialTerms(answers, seconds, manifest.promise.p99_ms if manifest.promise is not None else None)


def memory_promised(manifest: Manifest, recipe: str, engine: str) -> float | None:
    """Promised MB of the process that runs this artifact on this engine, None if not promised.

    A bundle that promises one figure for all artifacts is held to that one.
    """
    entry = next((one for one in manifest.artifacts if one.recipe == recipe and one.role != "batch"), None)
    if entry is not None and entry.memory_mb is not None:
        return entry.memory_mb.get(engine)
    return manifest.promise.peak_mb if manifest.promise is not None else None


def judge(seen: TrialCounts, terms: TrialTerms) -> TrialVerdict:
    """`back` names the broken promise, `wait` what is still missing."""
    if seen.dead:
        return TrialVerdict("back", f"its engine died: {seen.dead}", ANOTHER)
    inferences = seen.answers + seen.failures
    if inferences < terms.answers or seen.seconds < terms.seconds:
        return TrialVerdict(
            "wait", f"{seen.answers} of {terms.answers} answers, {seen.seconds:.0f} of {terms.seconds:.0f} s"
        )
    if seen.failures > FAILED_SHARE * inferences:
        return TrialVerdict("back", f"{seen.failures} of {inferences} inferences failed", ANOTHER)
    if terms.p99_ms is not None and seen.late > LATE_SHARE * seen.answers:
        p99 = f" (p99 {seen.p99_ms:.3g} ms)" if seen.p99_ms is not None else ""
        return TrialVerdict(
            "back",
            f"{seen.late} of {seen.answers} inferences took longer than the {terms.p99_ms:.3g} ms promised{p99}",
            "Build it with a larger budget (edgekit build --budget-ms), or for the profile of this board (--profile)",
        )
    if terms.peak_mb is not None and seen.peak_mb is not None and seen.peak_mb > terms.peak_mb:
        return TrialVerdict(
            "back",
            f"it took {seen.peak_mb:.0f} MB, and {terms.peak_mb:.0f} were promised",
            "Build it again with this version of the engine, which measures its memory; or without runners-up: "
            "edgekit build --alternates 0",
        )
    p99 = "" if seen.p99_ms is None else f", p99 {seen.p99_ms:.3g} ms"
    within = f" within the {terms.p99_ms:.3g} promised" if terms.p99_ms is not None else " (none was promised)"
    memory = "" if seen.peak_mb is None else f", {seen.peak_mb:.0f} MB"
    return TrialVerdict("keep", f"{seen.answers} answers{p99}{within if p99 else ''}{memory}")


class TrialStart:
    """One process's trial of a generation."""

    def __init__(self, path: Path, lease: Lease) -> None:
        self._path, self._lease = path, lease

    def end(self) -> None:
        """The process closed the model properly: the start no longer counts."""
        with contextlib.suppress(InstallError):
            durable.remove(self._path)  # durably: else a power cut brings it back, as one that failed
        self._lease.release()

    def fail(self) -> None:
        """The start failed, and this process still runs."""
        self._lease.release()


def begin_start(root: Root, number: int) -> TrialStart:
    """Under the lock of the root. Raises StorageError, InstallError (planted)."""
    folder = _folder(root, number)
    durable.make_folder(folder)
    taken = [int(name) for name in _names(folder)]
    path = folder / str(max(taken, default=0) + 1)
    with storage_errors(path):
        durable.create_empty(path)
        lease = hold(path)
        durable.sync_folder(folder)
    return TrialStart(path, lease)


def failed_starts(root: Root, number: int) -> int:
    folder = _folder(root, number)
    return sum(not in_use(folder / name) for name in _names(folder))


def _folder(root: Root, number: int) -> Path:
    return root.generation(number) / "starts"


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in durable.names_in(folder) if _NAME.fullmatch(name)]
    except (OSError, InstallError):
        return []


def read_counts(root: Root, number: int) -> TrialCounts:
    try:
        text = durable.read_text(root.generation(number) / "trial.json")
        return TrialCounts() if text is None else read_json(TrialCounts, text, "trial.json")
    except (ValueError, EdgekitError):
        return TrialCounts()


def write_counts(root: Root, number: int, seen: TrialCounts) -> None:
    """Under the lock. Raises StorageError."""
    durable.write_file(root.generation(number) / "trial.json", json_text(seen))
