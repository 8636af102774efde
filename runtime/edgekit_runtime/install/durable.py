"""Writes that survive a power cut, and opens that follow no links.

    write_file(root / "journal.json", text)      # the old text or the new one, whenever the power goes
    with open_regular(path) as file: ...         # InstallError (planted) for a link, a pipe, a file with a second name

Rules:
- a file is written as NAME.new, flushed, renamed, and its folder flushed: a name never stands for half a file;
- nothing is opened through a symbolic link, and a file with a second name (hard link) is foreign;
- names are created, moved and removed within an open folder, and each folder is opened by name in the one above it: a
  link that replaces a folder meanwhile redirects nothing;
- what the system refuses is one typed error: no room, read-only, or the disk itself;
- the suggested command for a foreign file is complete and touches the name alone, never its target. A folder may hold
  somebody's data, so it is moved aside; a file with a second name becomes a copy. The message says what is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from edgekit_runtime.system.errors import InstallError, StorageError
from edgekit_runtime.system.files import NOFOLLOW, draft_in, replace_in

_LOSSES = {
    "journal.json": "the active bundle stays active; where a rollback leads is forgotten",
    "slot.json": "say again what you said before: edgekit install --trust and --profile",
    "generation.json": "the generation is lost with it: install its bundle again",
    "trial.json": "the trial is counted from its beginning",
    "objects": "if a bundle was there before, install it again",
    "trust": "name the key again: edgekit install --trust",
    "incoming": "an incomplete download starts over",
}
"""File, or folder of a file -> what its loss means."""
_FOLDERS = frozenset({"incoming", "objects", "generations", "trust"})
_GENERATION = re.compile(r"[1-9][0-9]{0,8}(?:\.new)?")
_MOST_TEXT = 1 << 20
"""Longest text that edgekit keeps in a root."""


def foreign_file_error(what: str, path: Path) -> InstallError:
    """InstallError (planted). what: why the file is foreign. path: where edgekit keeps its own."""
    return InstallError(what, where=str(path), do=_removal(path), code="planted")


def move_aside(path: Path) -> str:
    """The shell command that moves `path` to an unused name."""
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.aside')}"


def _removal(path: Path) -> str:
    try:
        found = path.lstat()
    except OSError:
        return "Find out what else writes there"
    name = shlex.quote(str(path))
    if stat.S_ISDIR(found.st_mode):
        return f"Run: {move_aside(path)}; {_after_removal(path)}"
    if path.name in ("objects", "generations"):
        return "Put the folder itself there again: only the root folder itself may be a link"
    kept = (path.suffix == ".json" and path.name in _LOSSES) or path.parent.name in ("objects", "trust")
    if stat.S_ISREG(found.st_mode) and kept:
        copy = shlex.quote(f"{path}.copy")
        return f"Run: cp -p {name} {copy} && mv {copy} {name}; that makes it a file of its own, and nothing is lost"
    return f"Run: rm -f {name}; {_after_removal(path)}"


def _after_removal(path: Path) -> str:
    if path.name == "current":
        return f"then: edgekit status --root {shlex.quote(str(path.parent))}, which points it at the active generation"
    return _LOSSES.get(path.name) or _LOSSES.get(path.parent.name) or "nothing is lost"


@contextlib.contextmanager
def storage_errors(path: Path, *, reads: bool = False) -> Iterator[None]:
    """Turn an OSError inside into a StorageError that names `path`.

    reads: the code inside only reads."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, reads=reads) from error


def storage_error(error: OSError, path: Path, *, reads: bool = False) -> InstallError:
    where, why = str(path), error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"there is no room: {why}", where=where, do="Make room, then try again", code="disk-full")
    if error.errno == errno.EROFS:
        return StorageError(
            "the file system is read-only", where=where, do="Mount it for writing, then try again", code="read-only"
        )
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return foreign_file_error("a symbolic link in place of edgekit's own file", path)
    if error.errno in (errno.EACCES, errno.EPERM):
        if reads:
            do = "Run this as a user who may read the root"
            return StorageError(f"this user may not read it: {error.strerror}", where=where, do=do)
        return StorageError(f"cannot be written: {why}", where=where, do="Run this as the user who owns the root")
    return StorageError(f"the disk refused: {why}", where=where, do="Check the disk, then try again")


def open_folder(folder: Path) -> int:
    """A descriptor of the root folder or of one inside.

    Raises OSError if it is absent, InstallError (planted) for a link.
    """
    below = _below_root(folder)
    base = folder.parents[below - 1] if below else folder
    descriptor = _open_folder_at(base, base, None)
    for name in folder.parts[len(folder.parts) - below :]:
        base /= name
        above = descriptor
        try:
            descriptor = _open_folder_at(name, base, above)
        finally:
            os.close(above)
    return descriptor


def _open_folder_at(name: str | Path, folder: Path, above: int | None) -> int:
    try:
        return os.open(name, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) or (error.errno == errno.ENOTDIR and folder.is_symlink()):
            raise _no_folder(folder) from error
        raise


def _no_folder(folder: Path) -> InstallError:
    what = "a symbolic link" if folder.is_symlink() else "something that is not a folder"
    return foreign_file_error(f"{what} in place of edgekit's own folder", folder)


def _below_root(folder: Path) -> int:
    """How many levels below its root a folder lies, by the names in a root (`layout`)."""
    name, number, all_of_them = (*folder.parts[:-4:-1], "", "", "")[:3]
    if name == "starts" and _GENERATION.fullmatch(number) and all_of_them == "generations":
        return 3
    if _GENERATION.fullmatch(name) and number == "generations":
        return 2
    return 1 if name in _FOLDERS else 0


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[int, str]]:
    """The open parent folder, and the name in it. Raises as `open_folder`."""
    folder = open_folder(path.parent)
    try:
        yield folder, path.name
    finally:
        os.close(folder)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file with one name.

    Raises OSError if it is absent, InstallError (planted) for anything else.
    """
    try:
        with _beside(path) as (folder, name):
            flags |= NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(name, flags, 0o644, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise storage_error(error, path) from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise foreign_file_error("something that is not a file in place of edgekit's own", path)
        if found.st_nlink > 1:
            raise foreign_file_error(
                "the file has a second name (a hard link), through which others could change it", path
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_text(path: Path) -> str | None:
    """Text of a file of ours, None if absent. Raises StorageError, InstallError (planted)."""
    with storage_errors(path, reads=True):
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MOST_TEXT).decode("utf-8", errors="replace")


def write_file(path: Path, text: str) -> None:
    """Replace the file's text durably. Raises StorageError, InstallError (planted)."""
    draft = path.with_name(f"{path.name}.new")
    with storage_errors(draft), _beside(draft) as (folder, name):
        _clear(draft, folder)
        with draft_in(folder, name) as file:
            file.write(text.encode("utf-8"))
    move(draft, path)


def create_empty(path: Path) -> None:
    """Create an empty file. Raises OSError, FileExistsError if the name is taken."""
    with _beside(path) as (folder, name):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o644, dir_fd=folder))


def _clear(path: Path, folder: int) -> None:
    """Remove a draft that a cut left. Raises InstallError (planted) for anything else."""
    try:
        found = os.lstat(path.name, dir_fd=folder)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise foreign_file_error("a file that edgekit did not write is in the way", path)
    os.unlink(path.name, dir_fd=folder)


def move(draft: Path, path: Path) -> None:
    """Rename within one folder, durably."""
    with storage_errors(path), _beside(path) as (folder, name):
        replace_in(folder, draft.name, name)


def move_between(old: Path, new: Path) -> None:
    """Rename between folders of a root, durably. Raises OSError, InstallError (planted)."""
    with _beside(old) as (source, name), _beside(new) as (target, other):
        os.replace(name, other, src_dir_fd=source, dst_dir_fd=target)
        os.fsync(target)
        os.fsync(source)


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to the disk. Raises OSError, InstallError (planted)."""
    if os.name == "nt":
        return
    descriptor = open_folder(folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents durably, from the top. Raises OSError.

    They are the owner's, so one of them may be a link. A killed run may have left the last existing one unflushed.
    """
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()] or [folder]
    with contextlib.suppress(PermissionError):
        sync_folder(missing[-1].parent.parent.resolve())
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_folder(one.parent.resolve())


def make_folder(folder: Path) -> None:
    """Create a folder of a root durably. Raises InstallError (planted) for a link or a file."""
    with storage_errors(folder), _beside(folder) as (above, name):
        try:
            os.mkdir(name, dir_fd=above)
            os.fsync(above)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=above).st_mode):
                raise _no_folder(folder) from None


def drop_folder(folder: Path) -> None:
    """Remove a generation's folder, if present; links in it are removed, never followed."""
    with storage_errors(folder), _beside(folder) as (above, name):
        try:
            found = os.lstat(name, dir_fd=above)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            raise _no_folder(folder)
        _drop(name, above)
        os.fsync(above)


def _drop(name: str, above: int) -> None:
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | NOFOLLOW, dir_fd=above)
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        for inside, is_folder in found:
            if is_folder:
                _drop(inside, folder)
            else:
                os.unlink(inside, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


def names_in(folder: Path) -> list[str]:
    """Sorted names in a folder of a root. Raises OSError, InstallError (planted)."""
    descriptor = open_folder(folder)
    try:
        return sorted(os.listdir(descriptor))  # noqa: PTH208 - of a descriptor
    finally:
        os.close(descriptor)


def read_link(link: Path) -> str:
    """The target of a link in a root. Raises OSError, InstallError (planted)."""
    with _beside(link) as (folder, name):
        return os.readlink(name, dir_fd=folder)


def make_link(link: Path, target: str) -> None:
    """Create a link under a free name, not flushed. Raises OSError, InstallError (planted)."""
    with _beside(link) as (folder, name):
        os.symlink(target, name, dir_fd=folder)


def clear_link(link: Path, folder: str) -> None:
    """Remove a link into `folder` that a cut left.

    Raises InstallError (planted) for anything else under that name.
    """
    with storage_errors(link), _beside(link) as (above, name):
        try:
            found = Path(os.readlink(name, dir_fd=above))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise foreign_file_error("something that is not edgekit's link is in the way", link) from None
        if found.parent != Path(folder):
            raise foreign_file_error(f"a link to {str(found)!r:.80}, which edgekit did not make", link)
        os.unlink(name, dir_fd=above)


def put_link(link: Path, target: str) -> None:
    """Create a link, replacing one that a cut left. Not flushed."""
    clear_link(link, str(Path(target).parent))
    with storage_errors(link):
        make_link(link, target)


def remove(path: Path) -> None:
    """Remove a file or a link durably, if present."""
    with storage_errors(path), _beside(path) as (folder, name):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        os.fsync(folder)


def drop_twin(name: Path, other: Path) -> None:
    """Remove the old name of a file that a power cut left under both names of a rename."""
    with storage_errors(name), contextlib.suppress(FileNotFoundError):
        if os.path.samestat(name.lstat(), other.lstat()):
            remove(name)


def free_bytes(folder: Path) -> int:
    with storage_errors(folder):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
