"""What is at the other end: asked over ssh with nothing but sh there, and answered by the same code that looks at a board here.

Rules: a fixed list of small files is read and nothing is written; the user land that is really there decides which wheels
are packed, not the image that a profile was written for; a board that cannot take them is refused before a byte is copied.

    board = probe(connection, load_catalogue())
    board.detected.profile.name, board.pythons, board.free_mb
"""

from __future__ import annotations

import importlib.resources
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.shipping.errors import BoardRefusedError
from edgekit.shipping.ssh import Connection
from edgekit_profiles import Catalogue, Profile, runtime_python

if TYPE_CHECKING:
    from edgekit_profiles.detect import Detected
    from edgekit_profiles.facts import Facts

__all__ = ["RemoteBoard", "probe", "script", "suited"]


@dataclass(frozen=True)
class RemoteBoard:
    """detected: as `edgekit profiles detect` would say there. pythons: every CPython, `3.11`. home: where data goes.

    free_mb: where the package would be installed. root: whether the login is root's.
    """

    detected: Detected
    facts: Facts
    pythons: tuple[str, ...]
    free_mb: float
    home: str
    root: bool
    lacks: tuple[str, ...]


def script(name: str) -> str:
    return (importlib.resources.files("edgekit.shipping") / "board" / f"{name}.sh").read_text(encoding="utf-8")


def probe(connection: Connection, catalogue: Catalogue, folder: str = "") -> RemoteBoard:
    """folder: where the package is to go, to learn how much room there is. Raises SshError."""
    from edgekit_profiles.detect import detect
    from edgekit_profiles.facts import read_facts

    lines = [
        line.split(" ", 2) for line in connection.check(script("probe"), *([folder] if folder else [])).splitlines()
    ]
    with tempfile.TemporaryDirectory(prefix="edgekit-board-") as copied:
        _lay_out(Path(copied), lines)
        facts = read_facts(Path(copied))
    told = {words[0]: " ".join(words[1:]) for words in lines if words[0] in ("libc", "uid", "home", "free_kb")}
    libc = told.get("libc", "").removeprefix("glibc ").strip()
    pythons = tuple(dict.fromkeys(words[1] for words in lines if words[0] == "python" and len(words) > 1))
    facts = replace(facts, glibc=libc or facts.glibc, python=pythons[0] if pythons else facts.python)
    free_kb = told.get("free_kb", "")
    return RemoteBoard(
        detect(facts, catalogue),
        facts,
        pythons,
        int(free_kb) / 1024 if free_kb.isdecimal() else 0.0,
        told.get("home", ""),
        told.get("uid") == "0",
        tuple(words[1] for words in lines if words[0] == "lacks"),
    )


def suited(board: RemoteBoard, asked: Profile | None, where: str) -> Profile:
    """The profile to pack for: the one asked for where the board is such a one, else the detected, with its real user land.

    Raises BoardRefusedError: no profile stands for it, another machine, no Python that edgekit runs on, an older glibc.
    """
    facts = board.facts
    if board.lacks:
        raise _refused(where, f"it has no {', '.join(board.lacks)}", "Install what is missing there (coreutils, tar)")
    profile = asked or board.detected.profile
    if profile is None:
        raise _refused(where, board.detected.why, "Say which board it is: --profile, or write one of your own")
    if facts.machine and facts.machine != profile.arch:
        what = f"its user land is {facts.machine}, and {profile.name} is {profile.arch}"
        raise _refused(where, what, "Leave --profile out: what is there then decides")
    wanted = _minor(profile.os.python)
    if asked is not None and wanted not in board.pythons:
        have = ", ".join(board.pythons) or "no Python 3"
        what = f"{profile.name} is packed for Python {wanted}, and it has {have}"
        raise _refused(where, what, "Leave --profile out: what is there then decides")
    python = wanted if wanted in board.pythons else next(iter(sorted(board.pythons, key=_order, reverse=True)), "")
    lowest = runtime_python()
    if not python or _order(python) < _order(lowest):
        what = (
            f"it has {f'Python {python}' if python else 'no Python 3'}, and edgekit's runtime needs {lowest} or later"
        )
        raise _refused(where, what, "Install a newer system image: Debian 12 or Raspberry Pi OS bookworm at least")
    if asked is not None and facts.glibc and _order(facts.glibc) < _order(profile.os.glibc):
        what = f"{profile.name} is packed for glibc {profile.os.glibc}, and it has {facts.glibc}"
        raise _refused(where, what, "Leave --profile out: what is there then decides")
    system = replace(profile.os, python=python, glibc=facts.glibc or profile.os.glibc, debian=facts.codename)
    return profile if asked is not None else replace(profile, os=system)


def _refused(where: str, what: str, do: str) -> BoardRefusedError:
    return BoardRefusedError(what, where=where, do=do)


def _lay_out(top: Path, lines: list[list[str]]) -> None:
    """Files as they stand on the board, below `top`. Paths are the probe's own; any other is passed over."""
    for words in lines:
        if words[0] not in ("file", "head", "link") or len(words) < 3 or ".." in words[1]:
            continue
        place = top / words[1].lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if words[0] == "link":
            if words[2]:
                place.symlink_to(words[2])
        elif not place.exists():
            place.write_bytes(bytes.fromhex(words[2]))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
