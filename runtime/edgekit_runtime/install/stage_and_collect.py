"""Settle a root: follow the journal, stage generations, collect what is not needed.

    journal = settle(root)              # under the lock; `current` is then what the journal says
    collected = collect("/var/lib/edgekit/camera")
    adopt(root, part, sha256)                       # a fetched file becomes an object, atomically
    stage(root, generation_of(attempt, bundle))     # and that a generation

Rules:
- the journal decides and `current` follows. What is read is flushed before anything builds on it;
- three failed starts of the application lead back to the previous generation, even if it never starts again;
- the active, previous, trial and unfinished generations stay with their objects. An interrupted install resumes with
  the same bundle, unless its owner gives it up;
- an object that any process has open stays for now. If the record of a generation that stays is unreadable, no object
  is removed, since it may be the one needed;
- links are removed, never followed, and foreign files are left alone;
- install, rollback and `status` collect by themselves; events.jsonl has what was removed, except for refused bundles.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit_runtime.install import durable
from edgekit_runtime.install.durable import storage_errors
from edgekit_runtime.install.journal import MOST_TRIES, Attempt, Journal, Transition
from edgekit_runtime.install.layout import DRAFTS, Generation, Root, timestamp
from edgekit_runtime.install.lock import alone, in_use
from edgekit_runtime.install.trial_verdict import failed_starts
from edgekit_runtime.system.errors import EdgekitError, InstallError, StorageError
from edgekit_runtime.system.strict_json import json_text

if TYPE_CHECKING:
    from edgekit_runtime.bundle.reader import Bundle

_SPARE_BYTES = 1 << 20
"""Kept free besides a bundle, for the journal, the record and folders."""
_DRAFT = re.compile(r"[1-9][0-9]{0,8}\.new")
_OBJECT = re.compile(r"([0-9a-f]{64})\.ekb")


def settle(root: Root, clock: Callable[[], float] = time.time) -> Journal:
    """Raises InstallError (install-root), StorageError, InstallError (planted)."""
    journal = root.journal()
    with storage_errors(root.path):  # its writer may have been killed before its name was flushed
        durable.sync_folder(root.path)
    trial = journal.on_trial
    if trial is None:
        return apply(root, journal, Transition(journal, "point"))
    failed = failed_starts(root, trial)
    after = apply(root, journal, journal.restart(timestamp(clock()), failed))
    if after.failure is not None and failed >= MOST_TRIES:
        root.events.append("rolled-back", code=after.failure.code, what=after.failure.what, generation=trial)
    return after


def apply(root: Root, before: Journal, step: Transition) -> Journal:
    """Write a step's journal and tidy up after it.

    Raises StorageError, InstallError (planted): then `before` is in force.
    """
    after = step.journal
    if step.tidy:
        if after != before or root.read_current() != after.answering or os.path.lexists(root.path / "current.new"):
            root.switch(before, after)
    elif after != before:
        root.write_journal(after)
    if step.tidy == "collect":
        with contextlib.suppress(EdgekitError):  # what is left is collected another time
            (sweep if after.current == before.current else collect_and_report)(root, after)
    return after


@dataclass
class CollectionResult:
    """removed: names below the root.
    bytes: freed.
    in_use: what a model has open.
    unfinished: source of an interrupted install, whose download or bundle stays for it.
    """

    removed: list[str] = field(default_factory=list)
    bytes: int = 0
    in_use: list[str] = field(default_factory=list)
    unfinished: str | None = None


def collect(path: str | os.PathLike[str], *, unfinished: bool = False, wait_s: float = 600.0) -> CollectionResult:
    """unfinished: also give up an interrupted install, with what it fetched.

    Raises InstallError (install-root, install-busy), StorageError.
    """
    root = Root.open(path)
    with alone(root.lock_file, wait_s=wait_s):
        journal = root.journal()
        if unfinished and journal.attempt is not None and journal.on_trial is None:
            journal = journal.abandon().journal
            root.write_journal(journal)
        collected = collect_and_report(root, journal)
        if journal.attempt is not None and journal.on_trial is None:
            collected.unfinished = journal.attempt.source
    return collected


def sweep(root: Root, journal: Journal) -> CollectionResult:
    """Under the lock. Raises StorageError."""
    done = CollectionResult()
    held = {*journal.kept, *filter(None, [root.read_current()])}
    objects, sure = {journal.attempt.object} if journal.attempt else set(), True
    for number in root.numbers():
        record = root.try_record(number)
        wanted = record.object if record is not None else ""
        if number in held:
            objects.add(wanted)
            sure = sure and bool(wanted)
            for entry in _entries(root.generation(number)):  # drafts of what is written down of a trial
                if entry.suffix == ".new" and (entry.is_symlink() or entry.is_file()):
                    durable.remove(entry)
        elif wanted and in_use(root.object(wanted)):
            objects.add(wanted)
            done.in_use.append(f"generations/{number}")
        else:
            _count(done, root, root.generation(number))
            durable.drop_folder(root.generation(number))
    for entry in _entries(root.generations):
        if _DRAFT.fullmatch(entry.name):
            durable.drop_folder(entry)
    # Parts go before the objects: a power cut amid a rename leaves one file under both names.
    keep = root.part(journal.attempt.source) if journal.attempt else None
    for entry in _entries(root.incoming):
        if entry.suffix == ".part" and entry != keep:
            _count(done, root, entry)
            durable.remove(entry)
        elif entry.name.endswith((".json", ".new")) and entry.with_suffix(".part") != keep:
            durable.remove(entry)
    for entry in _entries(root.objects):
        found = _OBJECT.fullmatch(entry.name)
        if found is None or found[1] in objects or not sure:
            continue
        if in_use(entry):
            done.in_use.append(f"objects/{entry.name}")
        else:
            _count(done, root, entry)
            durable.remove(entry)
    for entry in (root.path / name for name in sorted(DRAFTS)):
        if entry.is_symlink() or entry.is_file():
            durable.remove(entry)
    return done


def collect_and_report(root: Root, journal: Journal) -> CollectionResult:
    """`sweep`, and an event if something was removed."""
    done = sweep(root, journal)
    if done.removed:
        root.events.append("collected", removed=len(done.removed), bytes=done.bytes)
    return done


def make_room(root: Root, journal: Journal, size: int) -> None:
    """Make sure that `size` bytes fit, collecting if needed; under the lock.

    Raises StorageError (disk-full).
    """
    need = size + _SPARE_BYTES
    if durable.free_bytes(root.path) < need:
        sweep(root, journal)
    free = durable.free_bytes(root.path)
    if free < need:
        what = f"there is no room: {need:,} bytes are needed, {max(0, free):,} are free"
        raise StorageError(what, where=str(root.path), do="Make room, then install again", code="disk-full")


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in durable.names_in(folder)]
    except (OSError, InstallError):
        return []


def _count(done: CollectionResult, root: Root, path: Path) -> None:
    done.removed.append(path.relative_to(root.path).as_posix())
    with contextlib.suppress(OSError, EdgekitError):
        if path.is_file() and not path.is_symlink():
            done.bytes += path.stat().st_size


_READ_BYTES = 1 << 20


def generation_of(attempt: Attempt, bundle: Bundle) -> Generation:
    manifest, trust_decision = bundle.manifest, bundle.trust_decision
    return Generation(
        number=attempt.generation,
        object=attempt.object,
        header=attempt.header,
        bundle=attempt.bundle,
        name=manifest.name,
        version=manifest.version,
        recipe=bundle.artifact().recipe,
        profile=manifest.target.profile,
        size=bundle.size,
        source=attempt.source,
        at=attempt.began,
        told=trust_decision.lasting_text,
        seq=manifest.rollout_seq,
        signed_by=trust_decision.signers,
        unsigned=not trust_decision.trusted,
    )


def stage(root: Root, generation: Generation) -> None:
    """Create the generation's folder; a complete one is kept, anything else is an error."""
    folder = root.generation(generation.number)
    draft = folder.with_name(f"{folder.name}.new")
    if os.path.lexists(folder):
        try:
            complete = not folder.is_symlink() and root.record(generation.number) == generation
        except InstallError as error:
            if error.code != "no-generation":
                raise
            complete = False
        if complete:
            with storage_errors(folder):
                durable.sync_folder(root.generations)
            return
        what = "a generation that edgekit did not make is in the way"
        raise InstallError(what, where=str(folder), do="Install again, which takes the next number", code="planted")
    durable.drop_folder(draft)
    durable.make_folder(draft)
    durable.write_file(draft / "generation.json", json_text(generation))
    with storage_errors(draft):
        durable.make_link(draft / "bundle.ekb", f"../../objects/{generation.object}.ekb")
        durable.sync_folder(draft)
    durable.move(draft, folder)


def adopt(root: Root, part: Path, sha256: str) -> Path:
    """Turn a fetched file into an object. A sound one stays; a damaged one is replaced."""
    path = root.object(sha256)
    with storage_errors(path):
        durable.drop_twin(part, path)
        if not os.path.lexists(part):  # moved by a run that was killed before that was flushed
            durable.sync_folder(root.objects)
            durable.sync_folder(root.incoming)
            return path
        try:
            if sha256_of(path) == sha256:
                durable.sync_folder(root.objects)
                durable.remove(part)
                return path
        except FileNotFoundError:
            pass
        descriptor = durable.open_regular(part)
        try:
            os.fchmod(descriptor, 0o444)
        finally:
            os.close(descriptor)
        durable.move_between(part, path)
    return path


def is_whole(root: Root, sha256: str) -> bool:
    """Whether the object is present and undamaged."""
    try:
        return sha256_of(root.object(sha256)) == sha256
    except (OSError, InstallError):
        return False


def sha256_of(path: Path) -> str:
    """Raises OSError, InstallError (planted)."""
    digest, descriptor = hashlib.sha256(), durable.open_regular(path)
    try:
        while chunk := os.read(descriptor, _READ_BYTES):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest()
