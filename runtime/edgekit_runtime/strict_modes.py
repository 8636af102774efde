"""Who could put another file in the place of one that decides about trust.
The rule of sshd's StrictModes.

    found = first_unsafe(Path("/etc/edgekit/trust/root.json"))      # None: only root and this user can change it
    found.where, found.what, found.do                            # "/etc/edgekit", "...", "Run: chmod go-w /etc/edgekit"

Rules:
- the file, every folder above it up to /, and each of these as the path names it and as its links lead, is looked at;
- each belongs to root or to this user;
- no group and no other user may write to it. A sticky folder such as /tmp is fine: there no one else can replace an
  entry, and the entry's own owner is looked at. A group that has this user alone, as Ubuntu makes one for each user,
  counts as the user;
- what cannot be looked at is left to the reader's own error.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Unsafe", "first_unsafe"]

_ROOT = 0


@dataclass(frozen=True)
class Unsafe:
    """where: the file or folder that others could change. do: the command that closes it."""

    where: Path
    what: str
    do: str


def first_unsafe(path: Path, uid: int | None = None, above: Path | None = None) -> Unsafe | None:
    """The first thing by which another user could replace `path`.
    None where there is none, and on systems without modes.

    uid: of the user who relies on the file, None for this process's. above: the folder where looking ends, None for /.
    """
    if os.name != "posix":
        return None
    uid = os.geteuid() if uid is None else uid
    ends = () if above is None else _chain(above)
    for one in _chain(path):
        if one in ends:
            continue
        try:
            found = one.lstat()
        except OSError:
            continue
        if found.st_uid not in (_ROOT, uid):
            return Unsafe(
                one,
                f"it belongs to another user ({_user(found.st_uid)}), who could put other keys in its place",
                f"Run: chown {_user(uid)} {shlex.quote(str(one))}; or use a copy in a folder of your own",
            )
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            # a link: its mode says nothing, and what it leads to is looked at too; a device: its reader refuses it
            continue
        open_to = stat.S_IWOTH | (0 if _is_private_group(found.st_gid, found.st_uid) else stat.S_IWGRP)
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_mode & open_to and not sticky:
            return Unsafe(
                one,
                f"other users may write to it (mode {stat.S_IMODE(found.st_mode):04o}), and could put other keys in "
                "its place",
                f"Run: chmod go-w {shlex.quote(str(one))}",
            )
    return None


def _chain(path: Path) -> tuple[Path, ...]:
    """The path and its parents, as named and as its links lead, each once."""
    named = path.absolute()
    seen = [named, *named.parents]
    try:
        real = named.resolve()
        seen += [real, *real.parents]
    except (OSError, RuntimeError):  # links in a circle
        pass
    return tuple(dict.fromkeys(seen))


def _is_private_group(gid: int, uid: int) -> bool:
    """Whether the group is the user's own, with no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except (KeyError, OSError):
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)
