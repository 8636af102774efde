"""Every point of every scene, not a sample of them: `make kill`, some minutes.

    .venv/bin/python tests/install_faults/all_points.py benchmarks/results/install_kill_points.json

Writes how many points there were, what answered after each, and how long it took. Exits 1 where anything does not hold, and
keeps the roots in which it did not.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from install_faults.forks import Forks
from install_faults.points import errors, kills, points, try_point, unread
from install_faults.scenes import SCENES, make_kit

KINDS = {"kill": (kills, False), "error": (errors, False), "error for good": (errors, True), "read": (unread, False)}
WORKERS = 2


def work(job: tuple[int, Path]) -> list[dict[str, Any]]:
    """A worker's share: each takes every WORKERS-th point of every scene."""
    share, folder = job
    told = []
    with Forks(folder / "forks") as forks:
        kit = make_kit(folder / "kit", forks)
        for kind, (what, for_good) in KINDS.items():
            for scene in SCENES.values():
                found = points(kit, scene, folder / "p00000", what, for_good=for_good)
                for at, point in list(enumerate(found, 1))[share::WORKERS]:
                    one = try_point(kit, point, folder / f"p{at:05}")
                    if one.wrong:
                        print(f"{point.told}: {'; '.join(one.wrong)}", flush=True)
                        (folder / f"p{at:05}").rename(folder / f"kept-{kind}-{scene.name}-{at}")
                    answers = "old" if one.version == scene.before else "new" if one.version == scene.after else "other"
                    if scene.before == scene.after:
                        answers = "the one there is" if answers == "old" else answers
                    told.append(
                        {
                            "kind": kind,
                            "scene": scene.name,
                            "answers": answers,
                            "refused": one.refused,
                            "wrong": bool(one.wrong),
                        }
                    )
    return told


def main(out: Path) -> int:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="edgekit-points-"))
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        told = [one for share in pool.map(work, [(n, folder / str(n)) for n in range(WORKERS)]) for one in share]
    wrong = sum(one["wrong"] for one in told)
    found = {
        "what": "an install, activate, rollback, gc and a trial, disturbed at every system call that touches the root",
        "on": datetime.date.today().isoformat(),
        "seconds": round(time.monotonic() - began),
        "points": len(told),
        "wrong": wrong,
        "kinds": {
            kind: {
                "points": sum(one["kind"] == kind for one in told),
                "answers": dict(Counter(one["answers"] for one in told if one["kind"] == kind)),
                "refused": sum(one["refused"] for one in told if one["kind"] == kind),
                "scenes": dict(Counter(one["scene"] for one in told if one["kind"] == kind)),
            }
            for kind in KINDS
        },
    }
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("points", "wrong", "seconds")}))
    if wrong:
        print(f"kept: {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
