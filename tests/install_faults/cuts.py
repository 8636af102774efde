"""A power cut at every moment of a command, and at every moment every way in which the disk may be found afterwards.

    for cut in cuts(kit, CUT_SCENES["install"], folder): print(try_cut(kit, cut, folder / "1").wrong)

Rules:
- the command runs once, traced; what it came to must be what the calls come to, byte for byte, or nothing is proven;
- a disk that was found the same before is looked at once;
- a command that ended has done what it said, whatever was not flushed: then the new bundle answers, and no other;
- a kill leaves what was not flushed to whoever comes next, and a power cut after that takes it from under them: this is
  tried too.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from install_faults.forks import CHANGING, Ended
from install_faults.judging import judge
from install_faults.points import KILL, Point
from install_faults.scenes import SCENES, Kit, Scene
from install_faults.traces import Call, calls_of
from install_faults.unflushed import Disk, Image, digest, image_of, put

SEEDS = (1, 2, 3)
_ALSO = (
    "truncate", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range", "fallocate", "fsetxattr", "setxattr",
    "utimensat",
)  # fmt: skip
"""Calls that change a disk, too. edgekit makes none of them in a root; if it did, it would be told."""


def _halfway(kit: Kit, root: Path) -> list[Any]:
    """A download whose connection breaks in the middle, once, and which goes on."""
    served = kit.served("2")
    served.ends = [len(served.data) // 2]
    return _download(kit, root)


def _download(kit: Kit, root: Path) -> list[Any]:
    return ["put", kit.served("2").url, str(root), {"trust": str(kit.trust)}]


def _tried_and_decided(kit: Kit, root: Path) -> list[list[Any]]:
    """Also where it was decided before."""
    decided = ["cli", "install", "--commit", "--root", str(root)]
    return [kit.install("2", root, "--trial", "app"), decided, kit.install("2", root)]


CUT_SCENES = SCENES | {
    scene.name: scene
    for scene in (
        replace(SCENES["install on trial"], again=_tried_and_decided),
        replace(SCENES["first install"], name="first install in new folders", where="var/lib/root"),
        Scene(
            "download", "1", "2", SCENES["install on trial"].make, _halfway, lambda kit, root: [_download(kit, root)]
        ),
        Scene(
            "used on trial",
            "2",
            "2",
            SCENES["commit"].make,
            lambda kit, root: ["ask", str(root)],
            lambda kit, root: [["cli", "rollback", "--to", "2", "--root", str(root)]],
        ),
    )
}


@dataclass(frozen=True)
class CountedWindow:
    """told: after which call, and what of the unflushed is there. ended: the command had said that it was done."""

    scene: Scene
    told: str
    image: Image
    ended: bool


@dataclass
class Tried:
    """version: what answered then, None for nothing."""

    cut: CountedWindow
    version: str | None
    wrong: list[str] = field(default_factory=list)


class _States:
    """Every state once, in the order in which they were met."""

    def __init__(self, scene: Scene, seeds: Sequence[int]) -> None:
        self._scene, self._seeds = scene, seeds
        self._found = dict[str, CountedWindow]()

    def add(self, disk: Disk, told: str, at: int = 0, *, ended: bool = False) -> None:
        for variant, image in disk.images(self._seeds, at):
            name = digest(image)
            if name not in self._found:
                self._found[name] = CountedWindow(self._scene, f"{self._scene.name}: {told}: {variant}", image, ended)
            elif ended:
                self._found[name] = replace(self._found[name], ended=True)

    def all(self) -> list[CountedWindow]:
        return list(self._found.values())


def cuts(kit: Kit, scene: Scene, folder: Path, seeds: Sequence[int] = SEEDS) -> list[CountedWindow]:
    """In their order; every state once. folder: where the command runs."""
    root = kit.lay(scene, folder)
    disk, found = Disk(folder), _States(scene, seeds)
    calls = _traced(kit, [scene.operation(kit, root)], folder)
    found.add(disk, "before anything")
    for at, call in enumerate(calls, 1):
        disk.take(call)
        found.add(disk, f"after {call.told} ({call.at})", at, ended=at == len(calls))
    _as_it_came(disk, folder)
    return found.all()


def cuts_after_a_kill(kit: Kit, point: Point, folder: Path, seeds: Sequence[int] = SEEDS[:1]) -> list[CountedWindow]:
    """The command is killed there, the same again runs to its end, and then the power goes.

    Or the power goes before, at one moment.
    """
    scene = point.scene
    root = kit.lay(scene, folder)
    disk, found = Disk(folder), _States(scene, seeds)
    paths = [folder / path for path in sorted(point.paths)]
    killed = kit.forks.run([scene.operation(kit, root)], [point.fault], paths=paths)
    assert killed.code == -9, point.told
    for call in calls_of(killed.trace, folder):
        disk.take(call)
    _as_it_came(disk, folder)
    calls = _traced(kit, scene.again(kit, root), folder)
    looked = {random.Random(point.told).randint(1, len(calls)), len(calls)}
    for at, call in enumerate(calls, 1):
        disk.take(call)
        if at in looked:
            told = f"killed at {point.call.told} ({point.call.at}), then after {call.told} ({call.at})"
            found.add(disk, told, at, ended=at == len(calls))
    _as_it_came(disk, folder)
    return found.all()


def kill_points(kit: Kit, scene: Scene, folder: Path) -> list[Point]:
    """As `points.kills`, and at what is done to the folders that the root lies in as well."""
    root = kit.lay(scene, folder)
    calls = _traced(kit, [scene.operation(kit, root)], folder, CHANGING)
    shutil.rmtree(folder)
    paths = frozenset(path for call in calls for path in call.paths)
    return [Point(scene, call, KILL, False, paths) for call in calls]


def _traced(kit: Kit, steps: list[list[Any]], folder: Path, names: Sequence[str] = (*CHANGING, *_ALSO)) -> list[Call]:
    ended: Ended = kit.forks.run(steps, [], names)
    assert ended.code == 0, ended
    assert ended.note.get("code", 0) == 0, ended.note
    assert "error" not in ended.note, ended.note
    return calls_of(ended.trace, folder)


def _as_it_came(disk: Disk, folder: Path) -> None:
    there, told = image_of(folder), disk.everything
    wrong = sorted(path for path in there.keys() | told.keys() if there.get(path) != told.get(path))
    assert not wrong, f"the calls come to something else than the command did: {wrong}"


def try_cut(kit: Kit, cut: CountedWindow, folder: Path) -> Tried:
    """The board starts again with that disk. Removed where all is well."""
    put(cut.image, folder)
    judged = judge(kit, cut.scene, folder / cut.scene.where)
    wrong = list(judged.wrong)
    if cut.ended and judged.version != cut.scene.after:
        wrong.append(f"it had said that it was done, and version {judged.version} answers")
    if cut.ended and judged.failed_starts:
        wrong.append(f"no start failed, and {judged.failed_starts} are counted")
    if not wrong:
        shutil.rmtree(folder)
    return Tried(cut, judged.version, wrong)
