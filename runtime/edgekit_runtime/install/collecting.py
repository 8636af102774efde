"""Away with what nothing needs: generations, objects, parts of downloads, what a power cut left.

    collected = collect("/var/lib/edgekit/camera")
    collected.removed, collected.in_use

Rules:
- what answers, what answered before, what is on trial or on its way stays, with its object;
- what an unfinished install has fetched stays, for it goes on there, unless its owner gives it up;
- an object that a model has open, in whatever process, stays as well, and is collected another time;
- where what stays cannot say which object it needs, because the disk does not give its record, no object goes;
- links are removed, never followed, and what edgekit did not put there is left alone;
- an install, a rollback and `status` collect by themselves; events.jsonl tells what went, but for what a refused bundle left.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from edgekit_runtime.errors import EdgekitError, InstallError, StorageError
from edgekit_runtime.install.disk import drop_folder, free_bytes, names_in, remove
from edgekit_runtime.install.fetch import drop_part
from edgekit_runtime.install.journal import Journal
from edgekit_runtime.install.layout import Root
from edgekit_runtime.install.lock import alone, in_use
from edgekit_runtime.install.states import Abandoned, react

__all__ = ["Collected", "collect", "collect_and_tell", "make_room", "sweep"]

_SPARE_BYTES = 1 << 20
"""Left free beside a bundle: for the journal, the record, a folder or two."""

_DRAFT = re.compile(r"[1-9][0-9]{0,8}\.new")
_OBJECT = re.compile(r"([0-9a-f]{64})\.ekb")


@dataclass
class Collected:
    """removed: names below the root. bytes: freed. in_use: what a model has open. unfinished: where the install comes from that
    was cut off, and whose download or bundle stays for it."""

    removed: list[str] = field(default_factory=list)
    bytes: int = 0
    in_use: list[str] = field(default_factory=list)
    unfinished: str | None = None


def collect(path: str | os.PathLike[str], *, unfinished: bool = False, wait_s: float = 600.0) -> Collected:
    """unfinished: give up an install that was cut off as well, with what it fetched.

    Raises InstallError (install-root, install-busy), StorageError."""
    root = Root.open(path)
    with alone(root.lock_file, wait_s=wait_s):
        journal = root.journal()
        if unfinished and journal.attempt is not None and journal.on_trial is None:
            journal = react(journal, Abandoned()).journal
            root.write_journal(journal)
        collected = collect_and_tell(root, journal)
        if journal.attempt is not None and journal.on_trial is None:
            collected.unfinished = journal.attempt.source
    return collected


def sweep(root: Root, journal: Journal) -> Collected:
    """Under the lock. Raises StorageError."""
    done = Collected()
    held = {*journal.kept, *filter(None, [root.pointed()])}
    objects, sure = {journal.attempt.object} if journal.attempt else set(), True
    for number in root.numbers():
        wanted = _object_of(root, number)
        if number in held:
            objects.add(wanted)
            sure = sure and bool(wanted)
            _drop_drafts(root.generation(number))
        elif wanted and in_use(root.object(wanted)):
            objects.add(wanted)
            done.in_use.append(f"generations/{number}")
        else:
            _count(done, root, root.generation(number))
            drop_folder(root.generation(number))
    for entry in _entries(root.generations):
        if _DRAFT.fullmatch(entry.name):
            drop_folder(entry)
    _drop_parts(root, journal, done)  # before the objects: a power cut amid a rename leaves one file under both names
    for entry in _entries(root.objects):
        found = _OBJECT.fullmatch(entry.name)
        if found is None or found[1] in objects or not sure:
            continue
        if in_use(entry):
            done.in_use.append(f"objects/{entry.name}")
        else:
            _count(done, root, entry)
            remove(entry)
    for entry in root.drafts():
        remove(entry)
    return done


def collect_and_tell(root: Root, journal: Journal) -> Collected:
    """`sweep`, and an event if something was removed."""
    done = sweep(root, journal)
    if done.removed:
        root.events.tell("collected", removed=len(done.removed), bytes=done.bytes)
    return done


def _drop_drafts(folder: Path) -> None:
    """Of what is written down of a trial."""
    for entry in _entries(folder):
        if entry.suffix == ".new" and (entry.is_symlink() or entry.is_file()):
            remove(entry)


def _drop_parts(root: Root, journal: Journal, done: Collected) -> None:
    keep = root.part(journal.attempt.source) if journal.attempt else None
    for entry in _entries(root.incoming):
        if entry.suffix == ".part" and entry != keep:
            _count(done, root, entry)
            drop_part(entry)
        elif entry.name.endswith((".json", ".new")) and entry.with_suffix(".part") != keep:
            remove(entry)


def make_room(root: Root, journal: Journal, size: int) -> None:
    """For a bundle of so many bytes, under the lock. What nothing needs goes where that is what it takes. Raises StorageError (disk-full)."""
    need = size + _SPARE_BYTES
    if free_bytes(root.path) < need:
        sweep(root, journal)
    free = free_bytes(root.path)
    if free < need:
        raise StorageError(
            f"there is no room: {need:,} bytes are needed, {max(0, free):,} are free",
            where=str(root.path),
            do="Make room, then install again",
            code="disk-full",
        )


def _object_of(root: Root, number: int) -> str:
    with contextlib.suppress(InstallError):
        return root.record(number).object
    return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in names_in(folder)]
    except (OSError, InstallError):
        return []


def _count(done: Collected, root: Root, path: Path) -> None:
    done.removed.append(path.relative_to(root.path).as_posix())
    with contextlib.suppress(OSError, EdgekitError):
        if path.is_file() and not path.is_symlink():
            done.bytes += path.stat().st_size
