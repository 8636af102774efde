"""What must hold after a fault, whatever it was: something answers, the status is clean, and the same again succeeds.

    judged = judge(kit, scene, root)
    judged.version, judged.wrong        # "2", []

Rule: nothing here looks into a root's files to say who answers: it is asked, as an application asks.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from install_faults.scenes import Kit, Scene, tree

_LEFT = re.compile(r"\.new$|\.part$|^incoming/")


@dataclass(frozen=True)
class Judged:
    """version: what answered right after the fault, None for nothing. wrong: what does not hold, a sentence each.

    failed_starts: of a trial by the application, as the status counts them.
    """

    version: str | None
    wrong: list[str]
    failed_starts: int = 0


def judge(kit: Kit, scene: Scene, root: Path) -> Judged:
    """Ask, look at the status, do it again, ask, collect, look: one process, one after the other."""
    status = ["cli", "status", "--root", str(root), "--json"]
    ask = ["ask", str(root)]
    again = scene.again(kit, root)
    ended = kit.forks.run([ask, status, *again, ask, ["cli", "status", "--root", str(root)], status])
    if ended.code or len(ended.notes) != 5 + len(again):
        return Judged(None, [f"whoever asked ended with {ended.code} after {ended.notes}"])
    (first, settled), (done, third, collected, last) = ended.notes[:2], ended.notes[-4:]
    version, wrong = first.get("version"), []
    if version is None and scene.before is not None:
        wrong.append(f"nothing answers: {first}")
    if version not in (scene.before, scene.after, scene.also):
        wrong.append(f"version {version} answers")
    if version is None:
        wrong += _nothing_yet(settled)
    else:
        wrong += _clean(settled, version)
        wrong += [f"it answers {first['label']} to what is red"] if first["label"] != "red" else []
    if done.get("code", 0) != 0 or "error" in done:
        wrong.append(f"the same again: {done}")
    if third.get("version") != scene.after:
        wrong.append(f"after the same again {third} answers")
    if collected["code"] != 0:
        wrong.append(f"status, which collects: {collected}")
    if scene.after is not None:
        wrong += _clean(last, scene.after)
    wrong += what_remains(root, last)
    return Judged(version, wrong, _failed_starts(settled))


def _nothing_yet(status: dict[str, Any]) -> list[str]:
    """No root, or an empty one, and no other trouble."""
    if status["code"] == 0 and json.loads(status["out"])["state"] == "empty":
        return []
    if status["code"] == 1 and "no bundle was ever installed here" in status["out"] + status["err"]:
        return []
    return [f"nothing answers, and the status says {status}"]


def _failed_starts(status: dict[str, Any]) -> int:
    told = json.loads(status["out"]) if status["code"] == 0 else {}
    return int(told.get("trial", {}).get("failed_starts", 0))


def _clean(status: dict[str, Any], version: str) -> list[str]:
    if status["code"] != 0 or status["err"]:
        return [f"status: {status}"]
    told = json.loads(status["out"])
    if told["busy"] or told["current"] is None or told["current"]["version"] != version:
        return [f"version {version} answers, and the status says {told}"]
    return []


def what_remains(root: Path, status: dict[str, Any]) -> list[str]:
    """After a collection: two generations at most and their objects, no draft, no part of a download."""
    names = tree(root)
    wrong = [f"left: {name}" for name in names if _LEFT.search(name)]
    told = json.loads(status["out"])
    kept = {told[which]["object"] for which in ("current", "previous") if told[which]}
    for name in names:
        if name.startswith("objects/") and name[8:-4] not in kept:
            wrong.append(f"left: {name}, which is neither what answers nor what answered before")
    return wrong


def refused_well(note: dict[str, Any]) -> list[str]:
    """One typed error, one line, exit code 1."""
    if note["code"] != 1:
        return [f"exit code {note['code']}: {note['err']}"]
    said = [line for line in note["err"].splitlines() if line.startswith("error: ")]
    stages = ("fetch", "verifying", "self-test", "trial")
    other = [line for line in note["err"].splitlines() if not line.startswith(("error: ", *stages))]
    wrong = []
    if len(said) != 1 or other or note["out"]:
        wrong.append(f"not one line: {note}")
    return wrong
