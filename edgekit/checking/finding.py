"""One thing that a check has to say: a code, a sentence, the reason, and the next command.

finding("op-version", "FULLY_CONNECTED version 12 is newer than ...", artifact="tflite-dynamic")
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgekit.checking.catalogue import entry

__all__ = ["Finding", "Level", "finding"]

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """what: of this bundle. why: in general. do: the next command. artifact: the recipe it is about, "" for the bundle.
    runtime: the engine and version it was found for, "" where it is about none."""

    code: str
    level: Level
    what: str
    why: str
    do: str
    artifact: str = ""
    runtime: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def finding(
    code: str, what: str, *, do: str = "", level: Level | None = None, artifact: str = "", runtime: str = ""
) -> Finding:
    """The reason, and what to do and the level where they are not given, are the catalogue's."""
    found = entry(code)
    return Finding(code, level or found.level, what, found.why, do or found.do, artifact, runtime)
