"""Every moment at which something may go wrong, and what went wrong there.

    for point in points(kit, SCENES["install"], folder, KILLS): print(try_point(kit, point, folder))

Rules:
- the points of a scene are the calls of one run of it that nobody disturbed, traced; `when=` finds each again;
- a run that is disturbed must have come to the very call that was meant, or it proves nothing: that is checked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from install_faults.forks import CHANGING, READING
from install_faults.judging import judge, refused_well
from install_faults.scenes import Kit, Scene
from install_faults.traces import Call, calls_of

KILL = "signal=KILL"
_SHUT = ("EIO", "EMFILE")
_FULL = ("EIO", "ENOSPC")
_FORBIDDEN = ("EIO", "EROFS")


def kills(call: Call) -> list[str]:
    """Killed instead of it: everything before it is done, and nothing of it."""
    return [KILL]


def errors(call: Call) -> list[str]:
    """What a disk answers to this call when it is broken, full, not ours, or read-only."""
    if call.name == "openat":
        names = (*_SHUT, *(("EROFS", "ENOSPC") if call.creates else ("EACCES",)))
    elif call.name in ("write", "pwrite64", "fsync", "fdatasync"):
        names = _FULL
    elif call.name in ("mkdir", "mkdirat", "symlink", "symlinkat"):
        names = ("ENOSPC", "EROFS")
    else:
        names = _FORBIDDEN
    return [f"error={name}" for name in names] if "EEXIST" not in call.result else []


@dataclass(frozen=True)
class Point:
    """what: `signal=KILL`, `error=EIO`; with for_good every call of that name fails from there on. paths: of the whole
    operation, below the root."""

    scene: Scene
    call: Call
    what: str
    for_good: bool
    paths: frozenset[str]

    @property
    def told(self) -> str:
        return (
            f"{self.scene.name}: {self.what}{' for good' if self.for_good else ''} at {self.call.told} ({self.call.at})"
        )

    @property
    def fault(self) -> str:
        return f"{self.call.name}:{self.what}:when={self.call.at}{'+' if self.for_good else ''}"


@dataclass
class Outcome:
    """version: what answered then. refused: whether the command said so."""

    point: Point
    version: str | None
    refused: bool = False
    wrong: list[str] = field(default_factory=list)


def unread(call: Call) -> list[str]:
    """What a disk answers to one that only looks."""
    return [] if call.failed else ["error=EIO"]


def points(
    kit: Kit, scene: Scene, folder: Path, what: Callable[[Call], Sequence[str]], *, for_good: bool = False
) -> list[Point]:
    """In their order. folder: where the undisturbed run happens."""
    root = kit.lay(scene, folder)
    ended = kit.forks.run([scene.operation(kit, root)], faults=[], calls=_calls(what))
    assert ended.note.get("code", 0) == 0, ended.note
    shutil.rmtree(folder)
    calls = calls_of(ended.trace, root)
    named = {path for call in calls for path in call.paths}
    paths = frozenset(named | {str(PurePosixPath(path).parent) for path in named if path != "."})
    return [Point(scene, call, one, for_good, paths) for call in calls for one in what(call)]


def _calls(what: Callable[[Call], Sequence[str]]) -> Sequence[str]:
    return READING if what is unread else CHANGING


def try_point(kit: Kit, point: Point, folder: Path) -> Outcome:
    """One root, one fault, and what is found afterwards. The root is removed where all is well."""
    scene = point.scene
    root = kit.lay(scene, folder)
    ended = kit.forks.run(
        [scene.operation(kit, root)],
        [point.fault],
        READING if point.call.name in READING else CHANGING,
        paths=[root / path for path in sorted(point.paths)],
    )
    wrong = _meant(point, ended.trace, root)
    refused = False
    if point.what == KILL:
        if ended.code != -9:
            wrong.append(f"was not killed: {ended.code}")
    elif ended.code or not ended.notes:
        wrong.append(f"ended with {ended.code}")
    elif refused := ended.note.get("code", 0) != 0 or "error" in ended.note:
        wrong += refused_well(ended.note) if "code" in ended.note else []
    judged = judge(kit, scene, root)
    wrong += judged.wrong
    if point.what != KILL and not point.for_good and judged.version not in (None, scene.also):
        wanted = scene.before if refused else scene.after
        if judged.version != wanted:
            wrong.append(f"it was {'refused' if refused else 'done'}, and version {judged.version} answers")
    if not wrong:
        shutil.rmtree(folder)
    return Outcome(point, judged.version, refused, wrong)


def _meant(point: Point, trace: str, root: Path) -> list[str]:
    """The injection hit the call that the undisturbed run had there."""
    calls = calls_of(trace, root)
    if point.what == KILL:
        if calls and (calls[-1].name, calls[-1].at, calls[-1].paths) == (
            point.call.name,
            point.call.at,
            point.call.paths,
        ):
            return []
        return [f"came to {calls[-1].told if calls else 'nothing'} instead"]
    hit = [call for call in calls if "INJECTED" in call.result]
    if hit and (hit[0].name, hit[0].at, hit[0].paths) == (point.call.name, point.call.at, point.call.paths):
        return []
    return [f"the fault hit {hit[0].told if hit else 'nothing'} instead"]
