"""What lies in a root and is not edgekit's: which command takes it away, and what goes with it.

    raise planted("a symbolic link stands where edgekit keeps a file", root / "journal.json.new")
    # ... Run: rm -f /var/lib/edgekit/camera/journal.json.new; nothing is lost

Rules:
- the command is whole, and takes away the name alone, never what it leads to: a folder may hold somebody's things, so it is
  moved aside, and a file with a second name becomes one of its own;
- what is lost is said, and where nothing is, that.
"""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

from edgekit_runtime.errors import InstallError

__all__ = ["aside", "planted"]

_KEPT = {
    "journal.json": "what answers goes on; where a rollback leads is forgotten",
    "slot.json": "say again with --trust and --profile what you said before",
    "generation.json": "the generation is lost with it: install its bundle again",
    "trial.json": "what was seen of the trial is counted anew",
}


def planted(what: str, path: Path) -> InstallError:
    """what: that it is not ours. path: where edgekit keeps something."""
    return InstallError(what, where=str(path), do=_away(path), code="planted")


def aside(path: Path) -> str:
    """The command that moves it out of the way, under a name that nothing asks for."""
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.aside')}"


def _away(path: Path) -> str:
    try:
        found = path.lstat()
    except OSError:
        return "Look for what somebody else does there"
    name = shlex.quote(str(path))
    if stat.S_ISDIR(found.st_mode):
        return f"Run: {aside(path)}; {_lost(path)}"
    if path.name in ("objects", "generations"):
        return "Put the folder itself there again: only the root folder itself may be a link"
    if stat.S_ISREG(found.st_mode) and (path.name in _KEPT or path.parent.name in ("objects", "trust")):
        copy = shlex.quote(f"{path}.copy")
        return f"Run: cp -p {name} {copy} && mv {copy} {name}; that makes it a file of its own, and nothing is lost"
    return f"Run: rm -f {name}; {_lost(path)}"


def _lost(path: Path) -> str:
    if path.name == "current":
        return f"then: edgekit status --root {shlex.quote(str(path.parent))}, which points it at what answers"
    if path.name in _KEPT:
        return _KEPT[path.name]
    if path.parent.name == "objects":
        return "if a bundle was there before, install it again"
    if path.parent.name == "trust" or path.name == "trust":
        return "name the key again with --trust"
    if path.parent.name == "incoming" or path.name == "incoming":
        return "a download that was not whole begins anew"
    return "nothing is lost"
