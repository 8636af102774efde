"""The directory of a package: new, empty (a USB stick), or with an earlier package.

    with draft(output) as folder:
        put(made_in(folder), output)

Rules:
- a folder with a file that the earlier package's SHA256SUMS does not list is refused, untouched;
- an existing folder is filled in place (it may be a mount point), SHA256SUMS last: until then no installer takes it;
- a draft is locked while its process lives; the next one removes those of killed processes.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgekit.packaging.output_errors import OutputError
from edgekit_runtime.system.files import take

RECORD, SUMS = "package.json", "SHA256SUMS"
_DRAFT = ".edgekit-package-"
_NAMED = 3
_OF_SYSTEMS = (
    "lost+found", "System Volume Information", "$RECYCLE.BIN", ".Trashes", ".Spotlight-V100", ".fseventsd", ".DS_Store",
)  # fmt: skip
_TRASH = ".Trash-"


def check_free(output: Path) -> None:
    """Raises OutputError, naming foreign files, unless a package may go into `output`."""
    if not output.exists():
        return
    if not output.is_dir():
        raise OutputError("is a file", where=str(output), do="Name a folder")
    listed: set[str] = set()  # by the earlier package; nothing if its lists are not a package's
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = (output / SUMS).read_text(encoding="utf-8").splitlines()
        names = {line.partition("  ")[2] for line in lines} - {""}
        if RECORD in names and (output / RECORD).is_file():
            listed = names | {SUMS}
    folders = {parent.as_posix() for name in listed for parent in Path(name).parents}
    waiting = [entry for entry in output.iterdir() if not _is_ignored(entry.name)]
    foreign = []
    while waiting:
        entry = waiting.pop()
        name = entry.relative_to(output).as_posix()
        if entry.is_symlink() or not entry.is_dir():
            foreign += [name] if name not in listed else []
        elif name in folders:
            waiting.extend(entry.iterdir())
        else:
            foreign.append(f"{name}/")
    if foreign:
        more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
        raise OutputError(
            f"the directory is not empty: {', '.join(sorted(foreign)[:_NAMED])}{more}",
            where=str(output),
            do="Name a new directory, or move these files away",
        )


@contextlib.contextmanager
def draft(output: Path) -> Iterator[Path]:
    """A temporary folder on the same file system; in `output` if that exists."""
    place = output if output.is_dir() else output.parent
    place.mkdir(parents=True, exist_ok=True)
    for folder in place.glob(f"{_DRAFT}*"):
        handle = _lock(folder, wait=False)
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=place))
        handle = _lock(folder, wait=True)
        if folder.is_dir():  # else another process removed it just now
            break
        if handle is not None:
            os.close(handle)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def put(made: Path, output: Path) -> None:
    """Move `made`, in a draft, to `output`; on failure the earlier content comes back."""
    if not output.exists():
        made.rename(output)
        return
    check_free(output)
    before = made.with_name("before")
    before.mkdir()
    old = sorted((one.name for one in output.iterdir() if not _is_ignored(one.name)), key=lambda name: name != SUMS)
    new = sorted((one.name for one in made.iterdir()), key=lambda name: (name == SUMS, name == RECORD, name))
    moved: list[tuple[Path, Path]] = []
    try:
        for source, target in [(output / n, before / n) for n in old] + [(made / n, output / n) for n in new]:
            source.rename(target)
            moved.append((source, target))
    except BaseException:
        for source, target in reversed(moved):
            target.rename(source)
        raise


def board_script(name: str) -> str:
    """A shell script that runs on a board."""
    return (importlib.resources.files("edgekit.shipping") / "board" / f"{name}.sh").read_text(encoding="utf-8")


def _is_ignored(name: str) -> bool:
    """Whether the operating system or a draft made it; it stays."""
    return name in _OF_SYSTEMS or name.startswith((_TRASH, _DRAFT))


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock the folder; None if another process has it, or if it cannot be locked (Windows)."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if take(handle, wait=wait):
            return handle
    os.close(handle)
    return None
