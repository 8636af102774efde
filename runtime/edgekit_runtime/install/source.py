"""Where a bundle comes from: a file of this machine or a URL, and what it is called.

    source = source_of("../net.ekb")
    source.told, source.kept            # "../net.ekb", "/home/anna/net.ekb"
    stream = source.opens(0, "")

Rules:
- what is written down is the same from whatever folder an install is asked for, so that the next one knows it again, and
  holds no password;
- what is wrong with a bundle is told of what the owner named;
- a file is a regular one: a pipe or a device may never end.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from edgekit_runtime.bundle.header import Header, header_needs, read_header
from edgekit_runtime.errors import BundleError, DownloadError, EdgekitError, InstallError
from edgekit_runtime.install.http import Limits, get, told_url

__all__ = ["Source", "Stream", "head_of", "source_of"]

_COPY = 1 << 20


class Stream(Protocol):
    """start: the place of the first byte; total: of the whole file, where it is known; validator: see `http`."""

    @property
    def start(self) -> int: ...
    @property
    def total(self) -> int | None: ...
    @property
    def validator(self) -> str: ...
    def read(self) -> bytes: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Source:
    """told: its name for people, as they wrote it. kept: its name for the root, the same from every folder. Neither holds
    credentials. opens: from which byte, with which validator. here: whether it is a file of this machine."""

    told: str
    kept: str
    opens: Callable[[int, str], Stream]
    here: bool = False

    def answers_for(self, error: EdgekitError, stored: Path) -> None:
        """What is wrong with the bundle is told of what was given; `stored`, which it became here, is gone when that is read."""
        if not isinstance(error, InstallError) or error.code == "trial-failed":
            error.where = error.where.replace(str(stored), self.told)


def source_of(name: str | os.PathLike[str], limits: Limits | None = None) -> Source:
    """A URL (http, https, file) or a path. Raises DownloadError for any other scheme, and for what is no URL."""
    text = os.fsdecode(name)
    if "://" not in text:
        return _file(Path(text), text)
    try:
        parts = urlsplit(text)
    except ValueError as error:  # a bracket that is not closed; the text may hold a password
        raise DownloadError(f"no URL: {error}", where=text.partition("://")[0] + "://...", do="Check it") from error
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise DownloadError("a file: URL names a file of this machine", where=text, do="Write file:///PATH")
        path = Path(unquote(parts.path))
        return _file(path, str(path))
    told = told_url(text)
    if parts.scheme in ("http", "https"):
        return Source(told, told, lambda start, validator: get(text, start=start, validator=validator, limits=limits))
    raise DownloadError(f"{parts.scheme}: is not known", where=told, do="Pass a path, or an http, https or file URL")


def _file(path: Path, told: str) -> Source:
    kept = told
    with contextlib.suppress(OSError, ValueError):  # no current folder, a NUL: whoever opens it says so
        kept = str(path.parent.resolve() / path.name)  # the name itself may be a link, to another file tomorrow
    return Source(told, kept, lambda start, validator: _FileStream(path), here=True)


def head_of(source: Source) -> Header:
    """Of what it has now. Raises DownloadError, BundleError, IntegrityError."""
    stream, data = source.opens(0, ""), b""
    with contextlib.closing(stream):
        while len(data) < header_needs(data, source.told):
            chunk = stream.read()
            if not chunk:
                break
            data += chunk
    return read_header(data, source.told)


class _FileStream:
    """A file of this machine, always from its first byte."""

    start, validator = 0, ""

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise BundleError(f"cannot be read: {why}", where=str(path), do="Check the path") from error
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
            os.close(descriptor)
            raise BundleError("not a regular file", where=str(path), do="Pass a file that `edgekit build` wrote")
        self.total: int | None = found.st_size
        self._descriptor, self._path = descriptor, path

    def read(self) -> bytes:
        try:
            return os.read(self._descriptor, _COPY)
        except OSError as error:
            raise BundleError(
                f"cannot be read: {error.strerror}", where=str(self._path), do="Check the disk"
            ) from error

    def close(self) -> None:
        os.close(self._descriptor)
