"""The folder of bundles from which a running server loads, by the names of their manifests.

    folder = Folder(Path("/srv/models"))
    folder.find("digits")                       # the files of every version of that model
    folder.bundles()                            # all of them, and what is wrong with a file that is none

Rules:
- a name from a client is compared with manifests, and never becomes part of a path;
- only plain files NAME.ekb directly in the folder count, and no links;
- a head is read to list, and believed for nothing else: loading verifies the whole bundle.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from edgekit.host.errors import ServeError
from edgekit_runtime.bundle.checks import parse_manifest
from edgekit_runtime.bundle.header import MAX_HEADER_BYTES, read_header
from edgekit_runtime.bundle.manifest import Manifest
from edgekit_runtime.errors import EdgekitError


@dataclass(frozen=True)
class ListedBundle:
    """One file. manifest: None where it has none to read, `reason` says why."""

    path: Path
    manifest: Manifest | None
    reason: str = ""


class Folder:
    """Raises ServeError where the folder is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ServeError("it is no folder", where=str(path), do="Give the folder that holds the bundles")
        self.path = path
        self._seen: dict[Path, tuple[tuple[int, int, int], ListedBundle]] = {}

    def find(self, name: str) -> list[ListedBundle]:
        """The files of one model, in the order of their names."""
        return [one for one in self.bundles() if one.manifest is not None and one.manifest.name == name]

    def bundles(self) -> list[ListedBundle]:
        """Every NAME.ekb there is now. A file that is as it was is not read again."""
        try:
            paths = sorted(self.path.glob("*.ekb"))
        except OSError:
            return []
        seen = {}
        for path in paths:
            try:
                found = path.lstat()
            except OSError:  # gone meanwhile
                continue
            if not stat.S_ISREG(found.st_mode):
                continue
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            before = self._seen.get(path)
            seen[path] = before if before is not None and before[0] == stamp else (stamp, _listed(path))
        self._seen = seen
        return [listed for _, listed in seen.values()]


def _listed(path: Path) -> ListedBundle:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            head = read_header(file.read(MAX_HEADER_BYTES), path.name)
        return ListedBundle(path, parse_manifest(head.manifest_bytes, path.name))
    except EdgekitError as error:
        return ListedBundle(path, None, error.what)
    except OSError as error:
        return ListedBundle(path, None, f"it cannot be read: {error.strerror}")
