"""Who could put another file in the place of one that decides: keys, verdicts, answers.
The rule of sshd's StrictModes.

    found = first_unsafe(Path("/etc/edgekit/trust/root.json"))      # None: only root and this user can change it
    found.where, found.what, found.do                            # "/etc/edgekit", "...", "Run: chmod go-w /etc/edgekit"
    verdict = read_own(file, 1 << 20)                            # None: there is none, or others could have written it

Rules:
- the file, every folder above it up to /, and each of these as the path names it and as its links lead, is looked at;
- each belongs to root or to this user;
- no group and no other user may write to it. A sticky folder such as /tmp is fine: there no one else can replace an
  entry, and the entry's own owner is looked at. A group that has this user alone, as Ubuntu makes one for each user,
  counts as the user;
- what cannot be looked at is left to the reader's own error;
- what this machine made for itself is read as a regular file, not through a link, and only up to a bound.
"""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path

from edgekit_runtime.whole_file import read_regular

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
                f"it belongs to another user ({_user(found.st_uid)}), who could replace it",
                f"Run: chown {_user(uid)} {shlex.quote(str(one))}; or use a copy in a folder of your own",
            )
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            # a link: its mode says nothing, and what it leads to is looked at too; a device: its reader refuses it
            continue
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        group = found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid)
        if (group or found.st_mode & stat.S_IWOTH) and not sticky:
            return Unsafe(
                one,
                f"other users may write to it (mode {stat.S_IMODE(found.st_mode):04o}), and could replace it",
                f"Run: chmod go-w {shlex.quote(str(one))}",
            )
    return None


def read_own(path: Path, most: int) -> bytes | None:
    """What this user, or root, has written there; at most `most` bytes.
    None for no such file, and for one that is not regular, is larger, or that another user could replace."""
    try:
        data = read_regular(path, most, follow=False)
    except (OSError, ValueError):
        return None
    return data if first_unsafe(path) is None else None


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
