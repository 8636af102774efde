"""The layout of an install root, and access to its files.

    ROOT/slot.json            makes the folder a root; its trusted keys and its board
    ROOT/trust/               copies of the public keys that --trust named (`root_objects`)
    ROOT/lock                 held by the process that changes something
    ROOT/journal.json         the active generation, and how far an unfinished install is (`journal`)
    ROOT/events.jsonl         history, one JSON object a line, the last few thousand
    ROOT/incoming/            unfinished downloads
    ROOT/objects/SHA256.ekb   whole bundles, read-only, named by their content
    ROOT/generations/N/       generation.json; bundle.ekb, a link to the object; starts/, during a trial by the app
    ROOT/agent.json           the order in hand, if `edgekit agent` keeps the root up to date
    ROOT/current              a link to generations/N: the active one

    root = Root.open("/var/lib/edgekit/camera")
    lease, generation = root.hold_current()
    root.events.append("refused", code="downgrade", what="its rollout_seq 3 is older than 7, ...")

Rules:
- an object is the whole signed file, so every open checks it as `install` did;
- a reader needs `current`, a generation, its object, and no lock: all are complete before `current` names them;
- files here are opened without following links, and anything else under these names is an error;
- an event is appended after the fact and never prevents it: a full disk loses the line, not the install;
- beyond MOST_BYTES the older half of events.jsonl is dropped;
- no event holds a secret: sources are written without credentials.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit_runtime.install import durable
from edgekit_runtime.install.durable import storage_errors
from edgekit_runtime.install.journal import AcceptedSequence, Journal, parse_journal
from edgekit_runtime.install.lock import Lease, hold
from edgekit_runtime.system.errors import EdgekitError, InstallError, StorageError
from edgekit_runtime.system.files import first_unsafe
from edgekit_runtime.system.strict_json import json_text, read_json, to_json

MOST_BYTES = 256 << 10
_MOST_VALUE = 500
_OWN = frozenset(
    {"slot.json", "lock", "journal.json", "events.jsonl", "incoming", "objects", "generations", "current", "trust"}
)
_OF_AGENT = frozenset({"agent.json", "agent.json.new", "shadow.json", "shadow.json.new", "shadow.ekb"})
DRAFTS = frozenset({"slot.json.new", "journal.json.new", "current.new", "events.jsonl.new"})
_CURRENT = re.compile(r"generations/([1-9][0-9]{0,8})")
_NO_ROOT = "Name the root that `edgekit install --root` made"
_RECREATE = (
    "Write it again: edgekit install BUNDLE --root ROOT, with the same --trust and --profile as before; what "
    "answers may be that BUNDLE"
)
_TRUST_AGAIN = "It names the root's trusted keys. Write it: edgekit install BUNDLE --root ROOT --trust KEY.pub.pem"


class Root:
    """path: absolute."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock_file, self.current = path, path / "lock", path / "current"
        self.incoming, self.objects, self.generations = path / "incoming", path / "objects", path / "generations"
        self.events = Events(path / "events.jsonl")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Root:
        """Raises InstallError (install-root)."""
        root = cls(_absolute(path))
        if not is_root(root.path):
            raise InstallError(
                "no bundle was ever installed here", where=os.fspath(path), do=_NO_ROOT, code="install-root"
            )
        return root

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Root:
        """The existing root, or a new one in an absent or empty folder. Does not take the lock.

        Raises InstallError (install-root, planted), StorageError.
        """
        root = cls(_absolute(path))
        if is_root(root.path):
            return root
        with storage_errors(root.path):
            if root.path.exists() and not root.path.is_dir():
                raise InstallError(
                    "not a folder", where=str(root.path), do="Name a folder, new or empty", code="install-root"
                )
            durable.make_folders(root.path)
            known = _OWN | DRAFTS | _OF_AGENT
            others = sorted(entry.name for entry in root.path.iterdir() if entry.name not in known)
        if others:
            what = f"the folder holds other things ({others[0]:.40})"
            raise InstallError(what, where=str(root.path), do="Name a new or empty folder", code="install-root")
        return root

    def furnish(self) -> None:
        """Create what this root lacks, under the lock; slot.json, which makes it a root, last."""
        for folder in (self.incoming, self.objects, self.generations):
            durable.make_folder(folder)
        if not _has(self.path, "slot.json"):
            self.write_slot(Slot())

    def generation(self, number: int) -> Path:
        return self.generations / str(number)

    def object(self, sha256: str) -> Path:
        return self.objects / f"{sha256}.ekb"

    def part(self, source: str) -> Path:
        """The file for an unfinished download from that source."""
        return self.incoming / f"{hashlib.sha256(source.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.part"

    def slot(self) -> Slot:
        """Raises InstallError (install-root)."""
        file = self.path / "slot.json"
        text = durable.read_text(file)
        if text is None:
            raise InstallError(
                "is missing, and with it the root's trusted keys", where=str(file), do=_RECREATE, code="install-root"
            )
        slot: Slot = parse_record(Slot, file, text, _TRUST_AGAIN)
        return slot

    def write_slot(self, slot: Slot) -> None:
        durable.write_file(self.path / "slot.json", json_text(slot))

    def journal(self) -> Journal:
        """The journal; if absent, one rebuilt from `current` and the generations.

        Raises InstallError (install-root).
        """
        file = self.path / "journal.json"
        text = durable.read_text(file)
        if text is not None:
            return parse_journal(text, str(file))
        numbers, found = self.numbers(), []
        journal = Journal(next=max(numbers, default=0) + 1, current=self.read_current())
        # every rollout_seq of what is still here: a journal that was lost must not open the way for older bundles
        for number in numbers:
            with contextlib.suppress(InstallError):
                record = self.record(number)
                if record.seq is not None:
                    found.append(AcceptedSequence(record.seq, record.bundle, record.signed_by))
        for burned in sorted(found, key=lambda burned: burned.seq):
            journal = journal.with_accepted(burned)
        return journal

    def write_journal(self, journal: Journal) -> None:
        durable.write_file(self.path / "journal.json", journal.text())

    def read_current(self) -> int | None:
        """The generation that `current` points at, None if absent. Raises InstallError (planted)."""
        try:
            target = durable.read_link(self.current)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise durable.foreign_file_error("`current` is not a link", self.current) from error
        found = _CURRENT.fullmatch(target)
        if found is None:
            raise durable.foreign_file_error(f"`current` leads to {target!r:.80}", self.current)
        return int(found[1])

    def switch(self, before: Journal, after: Journal) -> None:
        """Write `after` and point `current` where it says, doing first what may lack room.

        Raises StorageError; then `before` is in force again, as far as the disk takes writes.
        """
        number, ready = after.answering, self.path / "current.new"
        there = number == self.read_current()
        if number is not None and not there:
            durable.put_link(ready, f"generations/{number}")
        else:
            with contextlib.suppress(StorageError):  # a cut left it: it disturbs nothing
                durable.clear_link(ready, "generations")
        try:
            self.write_journal(after)  # may be there, and yet fail: its folder is flushed last
            with storage_errors(self.current):
                if not there and number is not None:
                    durable.move(ready, self.current)
                elif not there:
                    durable.remove(self.current)
        except StorageError:
            with contextlib.suppress(InstallError, OSError):
                self.write_journal(before)
            with contextlib.suppress(InstallError, OSError):
                if before.answering is not None and self.read_current() != before.answering:
                    durable.put_link(ready, f"generations/{before.answering}")
                    durable.move(ready, self.current)
            raise

    def numbers(self) -> list[int]:
        """Complete generations, sorted."""
        with storage_errors(self.generations, reads=True):
            try:
                names = durable.names_in(self.generations)
            except FileNotFoundError:
                return []
        return sorted(int(name) for name in names if _CURRENT.fullmatch(f"generations/{name}"))

    def numbers_text(self) -> str:
        """A sentence that lists the generations and their versions."""
        texts = []
        for number in self.numbers():
            file = self.generation(number) / "generation.json"
            texts.append(str(number))
            with contextlib.suppress(EdgekitError):
                found: Generation = parse_record(Generation, file, durable.read_text(file), "")
                texts[-1] += f" ({found.name} version {found.version})"
        return f"Generations: {', '.join(texts)}" if texts else "There are no generations"

    def record(self, number: int) -> Generation:
        """Raises InstallError (no-generation, install-root).

        And InstallError (planted) if another user could have written that an unsigned bundle is accepted.
        """
        file = self.generation(number) / "generation.json"
        text = durable.read_text(file)
        if text is None:
            there = f"{self.numbers_text()}. See: edgekit status --root {self.path}"
            raise InstallError(f"there is no generation {number}", where=str(self.path), do=there, code="no-generation")
        do = f"Install its bundle again; or another one, or go back: edgekit rollback --root {self.path}"
        found: Generation = parse_record(Generation, file, text, do)
        if found.number != number or not re.fullmatch(r"[0-9a-f]{64}", found.object):
            raise InstallError("the record belongs to another generation", where=str(file), do=do, code="install-root")
        home = self.path.resolve()
        named = home / file.relative_to(self.path)
        if found.unsigned and (unsafe := first_unsafe(named, home.stat().st_uid, home.parent)):
            what = f"{unsafe.what}, and lets a bundle in that no trusted key has signed"
            raise InstallError(what, where=str(unsafe.where), do=unsafe.do, code="planted")
        return found

    def try_record(self, number: int | None) -> Generation | None:
        """The record, or None if it cannot be read."""
        with contextlib.suppress(InstallError):
            return None if number is None else self.record(number)
        return None

    def hold(self, number: int) -> tuple[Lease, Generation]:
        """Hold the object of a generation.

        Raises InstallError (no-generation, install-root, planted), StorageError.
        """
        generation = self.record(number)
        path = self.object(generation.object)
        try:
            return hold(path), generation
        except FileNotFoundError as error:
            what = f"the bundle of generation {number} is gone"
            raise InstallError(what, where=str(path), do="Install it again", code="no-generation") from error
        except OSError as error:
            raise durable.storage_error(error, path, reads=True) from error

    def hold_current(self) -> tuple[Lease, Generation]:
        """Hold the active generation; follows a concurrent switch."""
        for last in (False, False, True):
            number = self.read_current()
            if number is None:
                do = "Run: edgekit install BUNDLE --root ROOT"
                raise InstallError("no bundle is installed here yet", where=str(self.path), do=do, code="no-generation")
            try:
                return self.hold(number)
            except InstallError as error:
                if error.code != "no-generation" or last:
                    raise
        raise AssertionError("the last round returns or raises")


@dataclass(frozen=True)
class Slot:
    """trust: keys (copies in the root) or the root.json (its path); empty for the machine's.
    profile: what this board is; None to detect it at each install.
    """

    format: int = 1
    trust: tuple[str, ...] = ()
    profile: str | None = None


@dataclass(frozen=True)
class Generation:
    """What was installed as generation `number`.

    header, object, bundle, seq: as in `journal.Attempt`.
    at: when it was staged, RFC 3339.
    told: who signed it, or why no trusted key did; reports show `signature_text`.
    unsigned: accepted because of --allow-unsigned.
    """

    number: int
    object: str
    header: str
    bundle: str
    name: str
    version: str
    recipe: str
    profile: str
    size: int
    source: str
    at: str
    told: str
    seq: int | None = None
    signed_by: tuple[str, ...] = ()
    unsigned: bool = False
    format: int = 1

    @property
    def signature_text(self) -> str:
        """Who signed it, as found at the install. Each opening checks the current trusted keys."""
        if self.unsigned:
            return f"UNSIGNED: taken because of --allow-unsigned; what was found then: {self.told}"
        return f"{self.told}, trusted when it was installed"

    def facts(self) -> dict[str, Any]:
        """For events."""
        return {"generation": self.number, "bundle": self.bundle, "what": self.signature_text}

    def as_json(self) -> dict[str, Any]:
        return {**to_json(self), "vouched": self.signature_text}


def parse_record(kind: Any, file: Path, text: str | None, do: str) -> Any:
    """A record from its file's text, None if missing. Raises InstallError (install-root)."""
    try:
        if text is None:
            raise ValueError("it is missing")
        return read_json(kind, text, file.name, format=1)
    except ValueError as error:
        raise InstallError(f"cannot be understood: {error}", where=str(file), do=do, code="install-root") from error


def timestamp(now_s: float) -> str:
    """RFC 3339, UTC, also for seconds beyond the calendar."""
    from edgekit_runtime.bundle.trust_store import tell_time

    return tell_time(now_s)


class Events:
    """path: created with the first event. clock: seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def append(self, event: str, **facts: Any) -> None:
        """Append one event. Facts that are None or empty are left out."""
        line: dict[str, Any] = {"at": timestamp(self._clock()), "event": event}
        for name, value in facts.items():
            if value not in (None, ""):
                line[name] = value[:_MOST_VALUE] if isinstance(value, str) else value
        data = (json.dumps(line) + "\n").encode()
        with contextlib.suppress(OSError, EdgekitError):
            descriptor = durable.open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a power cut tore the last one
                    data = b"\n" + data
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
            if size > MOST_BYTES:
                kept = self._path.read_bytes()
                newer = kept[kept.index(b"\n", len(kept) // 2) + 1 :]
                durable.write_file(self._path, newer.decode("utf-8", errors="replace"))

    def read(self) -> list[dict[str, Any]]:
        """Oldest first, without lines that a power cut tore."""
        found = []
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(read_json(dict[str, Any], line, "an event"))
        return found


def is_root(path: str | os.PathLike[str]) -> bool:
    """Whether `edgekit install` made it, also if it lost its slot.json since."""
    try:
        folder = Path(path)
        return _has(folder, "slot.json") or (_has(folder, "journal.json") and (folder / "generations").is_dir())
    except (OSError, ValueError, TypeError):
        return False


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Resolve the owner's own link to a root; within it none is followed."""
    try:
        found = Path(path).absolute()
        if not found.is_symlink():
            return found
        with contextlib.suppress(RuntimeError):  # links in a circle, before Python 3.13
            found = found.resolve()
        if found.is_symlink():
            raise InstallError("a loop of symbolic links", where=os.fspath(path), do=_NO_ROOT, code="install-root")
        return found
    except (TypeError, ValueError) as error:
        raise InstallError(f"invalid path: {error}", do=_NO_ROOT, code="install-root") from error
    except OSError as error:
        raise InstallError(f"broken link: {error}", where=os.fspath(path), do=_NO_ROOT, code="install-root") from error
