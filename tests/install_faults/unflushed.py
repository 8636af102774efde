"""A disk as it may be after a power cut: what was flushed is there, and of the rest whatever happened to be written.

    disk = Disk(folder)                    # all that is there now lies on the disk
    for call in calls_of(trace, folder): disk.take(call)
    for told, image in disk.images(seeds=(1, 2)): put(image, other_folder)

Rules:
- bytes and mode of a file are flushed by fsync of that file, names by fsync of the folder that they stand in, and by
  nothing else: what some file systems do beside that is not counted on;
- what was not flushed has no order, neither between folders nor within one. A rename within one folder is one change;
  from one folder to another it is two, each its own folder's;
- a link is made with what it says, as there is no way to flush that;
- a call that changes something and is not understood here is an error: nothing is left out in silence.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from install_faults.traces import Call

Image = dict[str, tuple[str, bytes, int]]
"""Path -> what stands there (folder, file, link, or the same file as another path), its bytes or where it leads, its
mode.
"""


@dataclass(eq=False)
class Link:
    target: str


@dataclass(eq=False)
class File:
    """data, mode: on the disk.
    after: as every process sees them.
    cut: whether it was cut short since it was flushed.
    """

    data: bytes = b""
    mode: int = 0o644
    after: bytes = b""
    mode_after: int = 0o644
    cut: bool = False

    def flush(self) -> None:
        self.data, self.mode, self.cut = self.after, self.mode_after, False

    def grown(self, filled: Callable[[bytes], bytes]) -> bytes:
        """What was flushed, and what was added since, changed by `filled`."""
        kept = self.data if self.after.startswith(self.data) and not self.cut else b""
        return kept + filled(self.after[len(kept) :])


@dataclass(eq=False)
class Folder:
    """names: on the disk. pending: changes of names since, in their order; None for a name that goes."""

    names: dict[str, Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def flush(self) -> None:
        self.names, self.pending = self.with_changes(lambda change: True), []

    def with_changes(self, chosen: Callable[[Change], bool]) -> dict[str, Node]:
        found: dict[str, Node | None] = {**self.names}
        for change in self.pending:
            if chosen(change):
                found |= change
        return {name: node for name, node in found.items() if node is not None}

    @property
    def after(self) -> dict[str, Node]:
        return self.with_changes(lambda change: True)


Node = Link | File | Folder
Change = dict[str, Node | None]
Names = Callable[[Folder], dict[str, Node]]
Bytes = Callable[[File], tuple[bytes, int]]


def _on_disk(folder: Folder) -> dict[str, Node]:
    return folder.names


def _seen(folder: Folder) -> dict[str, Node]:
    return folder.after


def _come(folder: Folder) -> dict[str, Node]:
    return folder.with_changes(lambda change: any(change.values()))


def _gone(folder: Folder) -> dict[str, Node]:
    return folder.with_changes(lambda change: not any(change.values()))


_DATA: dict[str, Bytes] = {
    "none": lambda file: (file.data, file.mode),
    "all": lambda file: (file.after, file.mode_after),
    "half": lambda file: (file.grown(lambda new: new[: len(new) // 2]), file.mode_after),
    "zeros": lambda file: (file.grown(lambda new: bytes(len(new))), file.mode_after),
    "cut": lambda file: (b"" if file.cut else file.data, file.mode),
}
"""What a file may hold, and its mode: zeros are a length that was written, and bytes that were not."""

_VARIANTS: dict[str, tuple[Names, Bytes]] = {
    "nothing": (_on_disk, _DATA["none"]),
    "everything": (_seen, _DATA["all"]),
    "names alone": (_seen, _DATA["none"]),
    "names and half of the bytes": (_seen, _DATA["half"]),
    "names and zeros": (_seen, _DATA["zeros"]),
    "bytes alone": (_on_disk, _DATA["all"]),
    "names that come": (_come, _DATA["all"]),
    "names that go": (_gone, _DATA["all"]),
}


def _some(seed: str) -> tuple[Names, Bytes]:
    """Of each change of a name whether it is there, and of each file how much: by chance, the same at every run."""
    chance, told = random.Random(seed), dict[int, Bytes]()

    def data(file: File) -> tuple[bytes, int]:
        return told.setdefault(id(file), _DATA[chance.choice(list(_DATA))])(file)

    return (lambda folder: folder.with_changes(lambda change: chance.random() < 0.5)), data


class Disk:
    def __init__(self, folder: Path) -> None:
        self.top = _read(folder)

    def take(self, call: Call) -> None:
        """One call of a trace, of paths below the folder."""
        if call.failed:
            return
        act = _ACTS.get(call.act)
        if act is None:
            raise AssertionError(f"{call.told}: what it does to a disk is not known here")
        act(self, call)

    def images(self, seeds: Sequence[int], at: int = 0) -> Iterator[tuple[str, Image]]:
        """Every way that it may be found now, with a name for each. at: makes the chance of this point its own."""
        for told, (names, data) in _VARIANTS.items():
            yield told, _image(self.top, names, data)
        for seed in seeds:
            yield f"seed {seed}", _image(self.top, *_some(f"{seed} {at}"))

    @property
    def everything(self) -> Image:
        return _image(self.top, *_VARIANTS["everything"])

    def node(self, path: str) -> Node:
        """As it is seen now. Links are not followed: nothing of ours goes through one."""
        found: Node = self.top
        for name in PurePosixPath(path).parts:
            assert isinstance(found, Folder), path
            found = found.after[name]
        return found

    def _folder(self, path: str) -> tuple[Folder, str]:
        """Where a name stands, and the name."""
        folder = self.node(str(PurePosixPath(path).parent))
        assert isinstance(folder, Folder), path
        return folder, PurePosixPath(path).name

    def _file(self, path: str) -> File:
        found = self.node(path)
        assert isinstance(found, File), path
        return found

    def _change(self, path: str, node: Node | None) -> None:
        folder, name = self._folder(path)
        folder.pending.append({name: node})

    def _open(self, call: Call) -> None:
        path = call.paths[0]
        if call.creates:
            folder, name = self._folder(path)
            if name not in folder.after:
                folder.pending.append({name: File()})
        if "O_TRUNC" in call.flags:
            self._shorten(self._file(path), 0)

    def _write(self, call: Call) -> None:
        """At its end, as edgekit writes; that this is so shows in what it comes to."""
        file = self._file(call.paths[0])
        file.after += call.data[: int(call.result)]

    def _truncate(self, call: Call) -> None:
        self._shorten(self._file(call.paths[0]), int(call.flags.rpartition(",")[2]))

    @staticmethod
    def _shorten(file: File, length: int) -> None:
        assert length <= len(file.after)
        file.cut = file.cut or length < len(file.data)
        file.after = file.after[:length]

    def _flush(self, call: Call) -> None:
        found = self.node(call.paths[0])
        assert not isinstance(found, Link)
        found.flush()

    def _rename(self, call: Call) -> None:
        old, new = call.paths
        node, (here, name), (there, other) = self.node(old), self._folder(old), self._folder(new)
        if here is there:
            here.pending.append({name: None, other: node})
        else:
            there.pending.append({other: node})
            here.pending.append({name: None})

    def _mode(self, call: Call) -> None:
        found = re.search(r"0[0-7]{3}", call.flags)
        assert found is not None, call
        self._file(call.paths[0]).mode_after = int(found[0], 8)


_ACTS: dict[str, Callable[[Disk, Call], None]] = {
    "openat": Disk._open,
    "write": Disk._write,
    "ftruncate": Disk._truncate,
    "rename": Disk._rename,
    "fsync": Disk._flush,
    "fdatasync": Disk._flush,
    "chmod": Disk._mode,
    "fchmod": Disk._mode,
    "mkdir": lambda disk, call: disk._change(call.paths[0], Folder()),
    "symlink": lambda disk, call: disk._change(call.paths[1], Link(call.paths[0])),
    "unlink": lambda disk, call: disk._change(call.paths[0], None),
    "rmdir": lambda disk, call: disk._change(call.paths[0], None),
}


def _read(path: Path) -> Folder:
    """A folder that is there, as flushed."""
    found = Folder()
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_symlink():
            found.names[entry.name] = Link(str(Path(entry.path).readlink()))
        elif entry.is_dir():
            found.names[entry.name] = _read(Path(entry.path))
        else:
            data, mode = Path(entry.path).read_bytes(), entry.stat().st_mode & 0o777
            found.names[entry.name] = File(data, mode, data, mode)
    return found


def image_of(path: Path) -> Image:
    """Of a folder that is there."""
    return _image(_read(path), *_VARIANTS["everything"])


def _image(top: Folder, names: Names, data: Bytes) -> Image:
    image, met = Image(), dict[int, str]()

    def look(folder: Folder, prefix: str) -> None:
        for name, node in sorted(names(folder).items()):
            path = f"{prefix}{name}"
            if isinstance(node, Link):
                image[path] = ("link", node.target.encode(), 0)
            elif isinstance(node, Folder):
                image[path] = ("folder", b"", 0)
                look(node, f"{path}/")
            elif id(node) in met:
                image[path] = ("same", met[id(node)].encode(), 0)
            else:
                met[id(node)] = path
                image[path] = ("file", *data(node))

    look(top, "")
    return image


def digest(image: Image) -> str:
    return hashlib.sha256(repr(sorted(image.items())).encode()).hexdigest()


def put(image: Image, folder: Path) -> None:
    """Make it. Folders come before what is in them, as their names do."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, (kind, data, mode) in sorted(image.items()):
        place = folder / path
        if kind == "folder":
            place.mkdir()
        elif kind == "link":
            place.symlink_to(data.decode())
        elif kind == "same":
            place.hardlink_to(folder / data.decode())
        else:
            place.write_bytes(data)
            place.chmod(mode)
