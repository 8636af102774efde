"""Every point of every scene, not a sample of them: `make kill`, an hour or two.

    .venv/bin/python tests/install_faults/all_points.py benchmarks/results/install_kill_points.json [KIND ...]

Writes how many points there were of each kind, what answered after them, and how long it took; what an earlier run
found of other kinds stays. Of a power cut (`power cut`, `power cut after a kill`) the points are the states of a disk
that it may leave. Exits 1 where anything does not hold, and keeps the roots in which it did not.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS), str(TESTS.parent)]

from install_faults.cuts import CUT_SCENES, CountedWindow, cuts, cuts_after_a_kill, kill_points, try_cut
from install_faults.forks import Forks
from install_faults.points import errors, kills, points, try_point, unread
from install_faults.scenes import SCENES, Kit, Scene, make_kit

POWER = ("power cut", "power cut after a kill")
KINDS = {"kill": (kills, False), "error": (errors, False), "error for good": (errors, True), "read": (unread, False)}
WHAT = "an install, a rollback, status and a trial, disturbed at every system call that touches the root"
WORKERS = 2


def work(job: tuple[int, str, Path]) -> list[dict[str, Any]]:
    """A worker's share: each takes every WORKERS-th point of every scene."""
    share, kind, folder = job
    what, for_good = KINDS[kind]
    told = []
    with Forks(folder / "forks") as forks:
        kit = make_kit(folder / "kit", forks)
        for scene in SCENES.values():
            found = points(kit, scene, folder / "p00000", what, for_good=for_good)
            for at, point in list(enumerate(found, 1))[share::WORKERS]:
                one = try_point(kit, point, folder / f"p{at:05}")
                if one.wrong:
                    print(f"{point.told}: {'; '.join(one.wrong)}", flush=True)
                    (folder / f"p{at:05}").rename(folder / f"kept-{scene.name}-{at}")
                told.append(_told(scene, one.version, one.refused, one.wrong))
    return told


def _told(scene: Scene, version: str | None, refused: bool, wrong: list[str]) -> dict[str, Any]:
    answers = "new" if version == scene.after else "old" if version == scene.before else "other"
    if scene.before == scene.after and answers == "new":
        answers = "the one there is"
    return {"scene": scene.name, "answers": answers, "refused": refused, "wrong": bool(wrong)}


def work_cuts(job: tuple[str, str, Path]) -> list[dict[str, Any]]:
    """Of one scene: what a run finds to be the same state, another one does too, but for the time that is written
    there.
    """
    name, kind, folder = job
    told = []
    with Forks(folder / "forks") as forks:
        kit = make_kit(folder / "kit", forks)
        for at, cut in enumerate(_states(kit, CUT_SCENES[name], kind, folder)):
            one = try_cut(kit, cut, folder / f"c{at:05}")
            if one.wrong:
                print(f"{cut.told}: {'; '.join(one.wrong)}", flush=True)
            told.append(_told(cut.scene, one.version, False, one.wrong))
    return told


def _states(kit: Kit, scene: Scene, kind: str, folder: Path) -> Iterator[CountedWindow]:
    if kind == "power cut":
        yield from cuts(kit, scene, folder / "traced")
        return
    for at, point in enumerate(kill_points(kit, scene, folder / "traced")):
        yield from cuts_after_a_kill(kit, point, folder / f"traced-{at:05}")
        shutil.rmtree(folder / f"traced-{at:05}")


def run(kind: str, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        if kind in POWER:
            jobs = [(name, kind, folder / f"{kind}-{name}") for name in CUT_SCENES]
            shares = pool.map(work_cuts, jobs, chunksize=1)
        else:
            shares = pool.map(work, [(n, kind, folder / f"{kind}-{n}") for n in range(WORKERS)])
    told = [one for share in shares for one in share]
    return {
        "points": len(told),
        "wrong": sum(one["wrong"] for one in told),
        "answers": dict(Counter(one["answers"] for one in told)),
        "refused": sum(one["refused"] for one in told),
        "scenes": dict(Counter(one["scene"] for one in told)),
        "seconds": round(time.monotonic() - began),
        "on": datetime.date.today().isoformat(),
    }


def main(out: Path, wanted: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="edgekit-points-"))
    found = json.loads(out.read_text())["kinds"] if out.exists() else {}
    for kind in wanted:
        found[kind] = run(kind, folder)
        told = {**(json.loads(out.read_text()) if out.exists() else {}), "what": WHAT, "kinds": found}
        out.write_text(json.dumps(told, indent=1) + "\n")
        print(kind, json.dumps({name: found[kind][name] for name in ("points", "wrong", "answers", "seconds")}))
    wrong = sum(found[kind]["wrong"] for kind in wanted)
    if wrong:
        print(f"kept: {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or [*KINDS, *POWER]))
