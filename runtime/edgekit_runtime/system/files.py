"""Files: written whole, read within bounds, locked, safe from other users; PEM.

    write_durably(Path("bundles/net.ekb"), data)     # the old bytes or the new ones, even after a power cut
    write_cache(file, [data])                        # the old bytes or the new ones, unless power is cut
    data = read_regular(file, 1 << 20)               # a regular file of a bounded size, without blocking
    with in_turn(folder, patience_s=60): ...         # one process at a time
    first_unsafe(Path("/etc/edgekit/trust/root.json"))    # None: only root and this user can change it

Rules:
- bytes are written under a name ending with `.partial`, which then takes the file's name: no reader sees half a file.
  A durable write is flushed before it is renamed, and its folder after;
- a file is opened before it is checked: a pipe or a device, which may never end, is refused before it is read;
- locks are flock's, which end with their process; the caller decides what to do without locks;
- as with sshd's StrictModes, a path, all folders above it, and what its links lead to belong to root or to this user,
  and no one else may write to them, except in sticky folders. A user's own private group counts as the user;
- a PEM file that cannot be used is a PemError; a private key with a passphrase is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from edgekit_runtime.system.records import record

if TYPE_CHECKING:
    import ssl
    from typing import NoReturn

_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | _PLAIN
_AT_ONCE = 1 << 20  # a file of the kernel has no size
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Draft:
    """Writes until all is written: one system call may take less than it was given."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        return len(data)

    def fileno(self) -> int:
        return self._file.fileno()


@contextlib.contextmanager
def draft_in(folder: int, name: str, mode: int = 0o644) -> Iterator[Draft]:
    """A new file in an open folder, flushed to disk at the end; removed on an error.
    Raises OSError."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            yield Draft(file)
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def replace_in(folder: int, draft: str, name: str) -> None:
    """Rename within an open folder, durably. Raises OSError."""
    os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Makes the folder if it is missing. mode: of the file, from the start. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, draft = os.open(path.parent, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)), _draft(path)
    try:
        with draft_in(folder, draft, mode) as file:
            file.write(data)
        try:
            replace_in(folder, draft, path.name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def write_cache(path: Path, parts: Iterable[bytes]) -> None:
    """Write what a power cut may take away. Makes the folder if it is missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(_draft(path))
    try:
        with draft.open("xb") as file:
            for part in parts:
                file.write(part)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _draft(path: Path) -> str:
    """A name that no other process or thread writes to."""
    return f".{path.name[:100]}.{os.getpid()}.{threading.get_ident()}.partial"


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open for reading without blocking. follow: whether it may be a link.
    Raises OSError, with a sentence as its strerror, if it is not a regular file; ValueError for a path with a NUL."""
    flags = _PLAIN if follow else NOFOLLOW
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | flags)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """Read a regular file of at most `most` bytes.
    Raises OSError, with a sentence, and ValueError."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes are more than it may have ({most:,})", str(path))
        return file.read(min(most, max(size, _AT_ONCE)))  # room for all that it asks for is made first


def take(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool | None:
    """True: locked. False: another has it, and `wait` is not set. None: no locks here.
    Raises OSError."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def free(descriptor: int) -> None:
    """Unlock at once: closing is not enough while a forked child has the descriptor, too."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def in_turn(folder: Path, patience_s: float) -> Iterator[bool]:
    """One process at a time in this folder.
    After patience_s, or without file locks, all at once: False."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
    except OSError:
        yield False
        return
    try:
        end = time.monotonic() + patience_s
        while not (taken := take(handle)) and taken is not None and time.monotonic() < end:
            time.sleep(0.02)
        yield bool(taken)
    finally:
        free(handle)
        os.close(handle)


_ROOT = 0


@record(frozen=True)
class Unsafe:
    """where: the file or folder that others could change. do: the command that closes it."""

    where: Path
    what: str
    do: str


def first_unsafe(path: Path, uid: int | None = None, above: Path | None = None) -> Unsafe | None:
    """The first thing by which another user could replace `path`.
    None if safe, and without POSIX modes.

    uid: user who relies on the file, None for this process's.
    above: folder where checking ends, None for /."""
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
    """What this user or root wrote there, at most `most` bytes.
    None if it is missing, irregular, larger, or another user could replace it."""
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


PemPath = str | os.PathLike[str]


class PemError(Exception):
    """A PEM file that cannot be used. where: the file. what: the reason, for a person."""

    def __init__(self, path: PemPath, error: Exception) -> None:
        self.where = os.fspath(path)
        why = (error.strerror if isinstance(error, OSError) else "") or str(error) or "it is not a PEM file"
        self.what = f"it cannot be used for TLS: {why}"
        super().__init__(f"{self.where}: {self.what}")


@contextmanager
def pem_errors(path: PemPath) -> Iterator[None]:
    """Turn what `ssl` raises about this file into a PemError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise PemError(path, error) from error


def load_certificate(context: ssl.SSLContext, certificate: PemPath, key: PemPath | None = None) -> None:
    """key: None if the private key follows the certificate in its file. Raises PemError."""
    with pem_errors(certificate):
        context.load_cert_chain(certificate, key, password=_refuse)


def _refuse() -> NoReturn:
    raise ValueError("its private key has a passphrase")
