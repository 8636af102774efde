"""Download a bundle: check its head first, and resume a broken download.

    source = source_of("../net.ekb")            # or a file, http or https URL
    source.display, source.canonical           # "../net.ekb", "/home/anna/net.ekb"
    sha256 = fetch(source, root.incoming / "1f00.part", judge)

Rules:
- the head (manifest, signatures) is judged before the rest is fetched; it gives the file's length, and not one byte
  more is accepted;
- a part is kept with the server's validator and resumed only if the server confirms the same file; a wrong combination
  fails its digests later;
- it resumes behind the last flush, every ten seconds and at the end: bytes beyond may be garbage after a power cut;
- too slow for half a minute, or too long in all, is an error: it never waits for ever;
- the recorded source is independent of the current folder and holds no password. Errors name what the owner wrote;
- a local file must be regular: a pipe or a device may never end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edgekit_runtime.bundle.header import Header, header_needs, read_header
from edgekit_runtime.install.durable import open_regular, read_text, remove, storage_errors, sync_folder, write_file
from edgekit_runtime.install.http import DownloadLimits, FinalError, HttpStream, WrongPartError, display_url, get
from edgekit_runtime.install.root_objects import head_from
from edgekit_runtime.system.errors import BundleError, DownloadError, EdgekitError, InstallError
from edgekit_runtime.system.strict_json import json_text, read_json

_COPY = 1 << 20
_FLUSH_S = 10.0
_WAITS_S = (0.5, 2.0, 5.0)
Judge = Callable[[Header], int]
"""Takes the head; raises what refuses the bundle, else returns the bytes of the whole file."""


@dataclass(frozen=True)
class BundleSource:
    """display: its name as the owner wrote it.
    canonical: its name in the root, the same from every folder. Neither holds credentials.
    opens: a stream, from a byte and a validator.
    here: whether it is a local file.
    """

    display: str
    canonical: str
    opens: Callable[[int, str], HttpStream | _FileStream]
    here: bool = False

    def name_source_in(self, error: EdgekitError, stored: Path) -> None:
        """Name the source in an error in place of `stored`, which is gone when the error is read."""
        if not isinstance(error, InstallError) or error.code == "trial-failed":
            error.where = error.where.replace(str(stored), self.display)


def source_of(name: str | os.PathLike[str], limits: DownloadLimits | None = None) -> BundleSource:
    """A URL (http, https, file) or a path. Raises DownloadError for anything else."""
    text = os.fsdecode(name)
    if "://" not in text:
        return _file(Path(text), text)
    try:
        parts = urlsplit(text)
    except ValueError as error:  # a bracket that is not closed; the text may hold a password
        raise DownloadError(
            f"invalid URL: {error}", where=text.partition("://")[0] + "://...", do="Check it"
        ) from error
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise DownloadError("a file: URL must name a local file", where=text, do="Write file:///PATH")
        path = Path(unquote(parts.path))
        return _file(path, str(path))
    display = display_url(text)
    if parts.scheme in ("http", "https"):
        return BundleSource(
            display, display, lambda start, validator: get(text, start=start, validator=validator, limits=limits)
        )
    raise DownloadError(
        f"unsupported URL scheme '{parts.scheme}'", where=display, do="Pass a path, or an http, https or file URL"
    )


def _file(path: Path, display: str) -> BundleSource:
    canonical = display
    with contextlib.suppress(OSError, ValueError):  # no current folder, a NUL: opening it says so
        canonical = str(path.parent.resolve() / path.name)  # the name itself may be a link, to another file tomorrow
    return BundleSource(display, canonical, lambda start, validator: _FileStream(path), here=True)


def head_of(source: BundleSource) -> Header:
    """The head that the source has now. Raises DownloadError, BundleError, IntegrityError."""
    with contextlib.closing(source.opens(0, "")) as stream:
        return head_from(stream.read, source.display)


@dataclass(frozen=True)
class FetchOptions:
    """progress: called with stage, bytes done, bytes in all."""

    limits: DownloadLimits = field(default_factory=DownloadLimits)
    progress: Callable[[str, int, int | None], object] = lambda stage, done, total: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep


def fetch(source: BundleSource, path: Path, judge: Judge, how: FetchOptions | None = None) -> str:
    """Fetch into `path`, resuming what is there. Returns the SHA-256 of the file.

    Raises what `judge` raises, DownloadError, StorageError, BundleError.
    """
    how = how or FetchOptions()
    with storage_errors(path):
        part = _Part(path, source.display, judge, how)
        try:
            return part.fetch(source)
        finally:
            part.close()


class _FileStream:
    """A local file, always from its first byte."""

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


def _facts(path: Path) -> Path:
    return path.with_suffix(".json")


@dataclass(frozen=True)
class _Facts:
    """validator: the server's word for the file.
    flushed: bytes that survive a power cut.
    """

    validator: str
    flushed: int


class _Part:
    """The growing file."""

    def __init__(self, path: Path, display: str, judge: Judge, how: FetchOptions) -> None:
        self._path, self._display, self._judge, self._how = path, display, judge, how
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        self._head = bytearray()
        self._wanted: int | None = None
        self._digest = hashlib.sha256()
        self._size, self._need = 0, 1
        self._began = self._slow_from = how.clock()
        self._slow_bytes = 0
        self._flushed_at = how.clock()

    def close(self) -> None:
        """Keep what arrived, as far as the disk takes it."""
        with contextlib.suppress(OSError, EdgekitError):
            if self._size != self._wanted:
                self._flush()
        os.close(self._descriptor)

    def _flush(self) -> None:
        """Flush, and record how much, if it can be resumed."""
        validator, flushed = self._known()
        if validator and flushed != self._size:
            os.fsync(self._descriptor)
            self._write_facts(validator)
        self._flushed_at = self._how.clock()

    def fetch(self, source: BundleSource) -> str:
        validator, flushed = self._known()  # what an earlier fetch left, if it can be resumed
        if validator:
            while chunk := os.read(self._descriptor, min(_COPY, flushed - self._size)):
                self._take(chunk, write=False)
            os.ftruncate(self._descriptor, self._size)
        else:
            self._restart()
        tries, limits = 0, self._how.limits
        while True:
            before = self._size
            try:
                validator = self._pull(source, validator)
                break
            except FinalError as error:
                raise DownloadError(error.what, where=error.where or self._display, do=error.do) from error
            except WrongPartError:
                validator = ""
                self._restart()
                what = "the server keeps sending different ranges than requested"
                failed: DownloadError = DownloadError(what, do="Use a server that answers range requests correctly")
                tries += 1
            except DownloadError as error:
                if error.code == "download-size":
                    self._restart()
                if error.code != "download":
                    raise
                failed = error
                tries = 1 if self._size > before else tries + 1
                validator, _ = self._known()
            if tries >= limits.tries:
                do = f"{failed.do}; what arrived is kept" if self._size and validator else failed.do
                raise DownloadError(failed.what, where=self._display, do=do) from failed
            self._how.sleep(_WAITS_S[min(tries, len(_WAITS_S)) - 1])
        os.fsync(self._descriptor)
        sync_folder(self._path.parent)
        return self._digest.hexdigest()

    def _known(self) -> tuple[str, int]:
        """The validator of the part, empty if it cannot be resumed, and its flushed bytes."""
        with contextlib.suppress(ValueError):
            found = read_json(_Facts, read_text(_facts(self._path)) or "", "the part")
            return found.validator, max(0, found.flushed)
        return "", 0

    def _restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._wanted, self._size, self._need = None, 0, 1
        self._head.clear()
        self._digest = hashlib.sha256()

    def _pull(self, source: BundleSource, validator: str) -> str:
        """Read one connection to the end of the file. Raises DownloadError if it ends early."""
        if self._size and self._size == self._wanted:
            return validator
        stream = source.opens(self._size if validator else 0, validator)
        with contextlib.closing(stream):
            if stream.start != self._size:
                self._restart()
            if stream.start == 0:
                if stream.validator:
                    self._write_facts(stream.validator)
                else:
                    remove(_facts(self._path))
            self._check_length(stream.total)
            while chunk := stream.read():
                self._take(chunk)
                self._check_length(stream.total)
                self._check_pace()
                if self._how.clock() - self._flushed_at >= _FLUSH_S:
                    self._flush()
        if self._wanted is None:
            if stream.total is not None and self._size < stream.total:
                raise DownloadError("the connection ended early", where=self._display, do="Try again")
            read_header(bytes(self._head), self._display)  # says where the file ends
        if self._size != self._wanted:
            if stream.total is not None and stream.total != self._wanted:
                raise self._wrong_size(stream.total)
            raise DownloadError(f"it ended after {self._size:,} of {self._wanted:,} bytes", do="Try again")
        return stream.validator

    def _write_facts(self, validator: str) -> None:
        write_file(_facts(self._path), json_text(_Facts(validator[:500], self._size)))

    def _take(self, chunk: bytes, *, write: bool = True) -> None:
        if self._wanted is not None and self._size + len(chunk) > self._wanted:
            raise self._wrong_size(None)
        if write:
            left = memoryview(chunk)
            while left:
                left = left[os.write(self._descriptor, left) :]
        self._digest.update(chunk)
        self._size += len(chunk)
        if self._wanted is None:
            self._head += chunk
            self._look_at_head()
        self._how.progress("fetch", self._size, self._wanted)

    def _look_at_head(self) -> None:
        """Judge the head as soon as it is complete."""
        while len(self._head) >= self._need:
            need = header_needs(bytes(self._head), self._display)
            if need > len(self._head):
                self._need = need
                continue
            self._wanted = self._judge(read_header(bytes(self._head), self._display))
            self._head.clear()
            if self._size > self._wanted:
                raise self._wrong_size(None)
            return

    def _check_length(self, total: int | None) -> None:
        if None not in (total, self._wanted) and total != self._wanted:
            raise self._wrong_size(total)

    def _wrong_size(self, total: int | None) -> DownloadError:
        is_ = f"it is {total:,} bytes long" if total is not None else "it does not end where it should"
        what = f"{is_}, and its signed head says {self._wanted:,}"
        return DownloadError(what, where=self._display, do="Copy or build the bundle again", code="download-size")

    def _check_pace(self) -> None:
        limits, now = self._how.limits, self._how.clock()
        if now - self._began > limits.total_s:
            what = f"it took longer than {limits.total_s:,.0f} s"
            raise DownloadError(what, where=self._display, do="Install again: it resumes there", code="download-slow")
        if now - self._slow_from < limits.slow_s:
            return
        came = self._size - self._slow_bytes
        if came < limits.least_rate * (now - self._slow_from):
            what = f"{came:,} bytes came in {now - self._slow_from:.0f} s"
            do = "Install again when the network is better: it resumes there"
            raise DownloadError(what, where=self._display, do=do, code="download-slow")
        self._slow_from, self._slow_bytes = now, self._size
