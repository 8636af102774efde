"""Hand a list of tasks to the emulated board and read what it answers, in one start of its Python.

    told = ask(machine, [{"kind": "replay", "bundle": path, "recipe": "tflite-int8", "engine": "litert"}])
    told.system.packages, told.answers[0]

Rules: an answer that is missing belongs to the task during which the program ended; `finished` says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.emulation.errors import EmulationError
from edgekit.emulation.machine import Finished, Machine
from edgekit_runtime.bundle.secrets import Secret

__all__ = ["Package", "System", "Told", "ask"]


@dataclass(frozen=True)
class Package:
    """One installed distribution. source: `wheel`, from the wheelhouse, or `debian`, from the system's packages."""

    name: str
    version: str
    source: str


@dataclass(frozen=True)
class System:
    """What the emulated board says of itself: `3.11.2`, `aarch64`, `glibc 2.36`. broken: packages that do not import."""

    python: str
    machine: str
    libc: str
    packages: tuple[Package, ...]
    broken: dict[str, str]


@dataclass(frozen=True)
class Told:
    """answers: as many as tasks were done, in their order."""

    system: System
    answers: tuple[dict[str, Any], ...]
    finished: Finished


def ask(
    machine: Machine,
    tasks: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float = 300.0,
    options: Sequence[str] = (),
    secret: Secret | None = None,
) -> Told:
    """options: QEMU's own. secret: of an encrypted bundle. Raises EmulationError where not even Python came up."""
    given, results = machine.root / "tmp/tasks.json", machine.root / "tmp/results.jsonl"
    given.write_text(json.dumps(list(tasks)), encoding="utf-8")
    script = Path(__file__).with_name("guest.py")
    key = json.dumps(secret.handed() if secret is not None else None)
    finished = machine.python(["-P", script, given, results], timeout_s=timeout_s, options=options, said=key)
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    if not lines:
        raise EmulationError(
            f"the emulated board's Python {finished.ended or 'answered nothing'}: {finished.tail}",
            where=f"{machine.land.image}, {machine.cpu.name}",
            do=f"Remove {machine.land.root} and run it again",
        )
    first, *answers = map(json.loads, lines)
    packages = tuple(Package(**one) for one in first.pop("packages"))
    return Told(System(**first, packages=packages), tuple(answers), finished)
