"""From a source to a file of ours, judged as soon as its head is here, and resumed where it stopped.

    fetched = fetch(source_of("https://models.example/net.ekb"), root.incoming / "1f00.part", judge)

Rules:
- the head (manifest, signatures) is judged before the rest is asked for; it says how long the file is, and not one byte
  more is taken;
- what a broken connection left is kept with the server's validator, and goes on only where the server says that it is still
  the same file; whatever was put together wrongly all the same fails its digests later;
- it goes on behind what was flushed, every ten seconds and at the end: what a power cut leaves beyond may have the length of
  what came, and other bytes;
- too slow for half a minute, or too long in all, is an error: it never waits for ever;
- the file is flushed to the disk before anybody is told that it is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edgekit_runtime.bundle.codec import json_text, read_json
from edgekit_runtime.bundle.header import Header, header_needs, read_header
from edgekit_runtime.errors import DownloadError, EdgekitError
from edgekit_runtime.install.disk import open_regular, read_text, remove, storing, sync_folder, write_file
from edgekit_runtime.install.http import Limits, WrongPartError
from edgekit_runtime.install.proxy import FinalError
from edgekit_runtime.install.source import Source, Stream

__all__ = ["Fetched", "Fetching", "Judge", "drop_part", "fetch"]

_COPY = 1 << 20
_FLUSH_S = 10.0
_WAITS_S = (0.5, 2.0, 5.0)

Judge = Callable[[Header], int]
"""Told the head; raises what refuses the bundle, else returns how many bytes the whole file has."""


@dataclass(frozen=True)
class Fetching:
    """How: the limits, whom to tell (stage, bytes done, bytes in all), and the clock and the waiting, for tests."""

    limits: Limits = field(default_factory=Limits)
    progress: Callable[[str, int, int | None], object] = lambda stage, done, total: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep


@dataclass(frozen=True)
class Fetched:
    """sha256: of the whole file."""

    path: Path
    sha256: str
    size: int
    header: Header


def fetch(source: Source, path: Path, judge: Judge, how: Fetching | None = None) -> Fetched:
    """path: the part; what is there is gone on with. Raises what `judge` raises, DownloadError, StorageError, BundleError."""
    how = how or Fetching()
    with storing(path):
        part = _Part(path, source.told, judge, how)
        try:
            return part.fetch(source)
        finally:
            part.close()


def drop_part(path: Path) -> None:
    """Away with a part and what is known of it."""
    remove(path)
    remove(_facts(path))


def _facts(path: Path) -> Path:
    return path.with_suffix(".json")


@dataclass(frozen=True)
class _Facts:
    """Of a part. validator: the server's word for the file. flushed: bytes that a power cut leaves as they are."""

    validator: str
    flushed: int


class _Part:
    """The file that grows. size: bytes that are here. wanted: of the whole file, None until its head is here."""

    def __init__(self, path: Path, told: str, judge: Judge, how: Fetching) -> None:
        self._path, self._told, self._judge, self._how = path, told, judge, how
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        self._header: Header | None = None
        self._head = bytearray()
        self._wanted: int | None = None
        self._digest = hashlib.sha256()
        self._size, self._need = 0, 1
        self._began = self._slow_from = how.clock()
        self._slow_bytes = 0
        self._flushed_at = how.clock()

    def close(self) -> None:
        """What arrived is kept, as far as the disk takes it."""
        with contextlib.suppress(OSError, EdgekitError):
            if self._size != self._wanted:
                self._flush()
        os.close(self._descriptor)

    def _flush(self) -> None:
        """And say how much it is, where it can be gone on with."""
        validator, flushed = self._known()
        if validator and flushed != self._size:
            os.fsync(self._descriptor)
            self._write_facts(validator)
        self._flushed_at = self._how.clock()

    def fetch(self, source: Source) -> Fetched:
        validator = self._recover()
        tries, limits = 0, self._how.limits
        while True:
            before = self._size
            try:
                validator = self._pull(source, validator)
                break
            except FinalError as error:
                raise DownloadError(error.what, where=error.where or self._told, do=error.do) from error
            except WrongPartError:
                validator = ""
                self._restart()
                what = "the server keeps sending other parts than are asked for"
                failed: DownloadError = DownloadError(what, do="Offer the file on a server that is right about ranges")
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
                raise DownloadError(failed.what, where=self._told, do=do) from failed
            self._how.sleep(_WAITS_S[min(tries, len(_WAITS_S)) - 1])
        os.fsync(self._descriptor)
        sync_folder(self._path.parent)
        assert self._header is not None
        return Fetched(self._path, self._digest.hexdigest(), self._size, self._header)

    def _recover(self) -> str:
        """Take over what an earlier fetch left, where it can be gone on with."""
        validator, flushed = self._known()
        if not validator:
            self._restart()
            return ""
        while chunk := os.read(self._descriptor, min(_COPY, flushed - self._size)):
            self._take(chunk, write=False)
        os.ftruncate(self._descriptor, self._size)
        return validator

    def _known(self) -> tuple[str, int]:
        """The validator of what is here, empty where there is none, and how much of it was flushed."""
        with contextlib.suppress(ValueError):
            found = read_json(_Facts, read_text(_facts(self._path)) or "", "the part")
            return found.validator, max(0, found.flushed)
        return "", 0

    def _restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._header, self._wanted, self._size, self._need = None, None, 0, 1
        self._head.clear()
        self._digest = hashlib.sha256()

    def _pull(self, source: Source, validator: str) -> str:
        """One connection, to the end of the file. Raises DownloadError where it ends early."""
        if self._size and self._size == self._wanted:
            return validator
        stream = source.opens(self._size if validator else 0, validator)
        with contextlib.closing(stream):
            if stream.start != self._size:
                self._restart()
            if stream.start == 0:
                self._remember(stream.validator)
            self._check_length(stream.total)
            while chunk := stream.read():
                self._take(chunk)
                self._check_length(stream.total)
                self._check_pace()
                if self._how.clock() - self._flushed_at >= _FLUSH_S:
                    self._flush()
        if self._wanted is None:
            if stream.total is not None and self._size < stream.total:
                raise DownloadError("the connection ended early", where=self._told, do="Try again")
            read_header(bytes(self._head), self._told)  # says where the file ends
        if self._size != self._wanted:
            raise self._short(stream)
        return stream.validator

    def _short(self, stream: Stream) -> DownloadError:
        if stream.total is None or stream.total == self._wanted:
            return DownloadError(f"it ended after {self._size:,} of {self._wanted:,} bytes", do="Try again")
        return self._wrong_size(stream.total)

    def _remember(self, validator: str) -> None:
        if validator:
            self._write_facts(validator)
        else:
            remove(_facts(self._path))

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
        if self._header is None:
            self._head += chunk
            self._look_at_head()
        self._how.progress("fetch", self._size, self._wanted)

    def _look_at_head(self) -> None:
        """Judge it as soon as all of it is here."""
        while len(self._head) >= self._need:
            need = header_needs(bytes(self._head), self._told)
            if need > len(self._head):
                self._need = need
                continue
            self._header = read_header(bytes(self._head), self._told)
            self._wanted = self._judge(self._header)
            self._head.clear()
            if self._size > self._wanted:
                raise self._wrong_size(None)
            return

    def _check_length(self, total: int | None) -> None:
        if total is None or self._wanted is None or total == self._wanted:
            return
        raise self._wrong_size(total)

    def _wrong_size(self, total: int | None) -> DownloadError:
        is_ = f"it is {total:,} bytes long" if total is not None else "it does not end where it should"
        return DownloadError(
            f"{is_}, and its signed head says {self._wanted:,}",
            where=self._told,
            do="Copy or build the bundle again",
            code="download-size",
        )

    def _check_pace(self) -> None:
        limits, now = self._how.limits, self._how.clock()
        if now - self._began > limits.total_s:
            raise DownloadError(
                f"it took longer than {limits.total_s:,.0f} s",
                where=self._told,
                do="Install again: it goes on there",
                code="download-slow",
            )
        if now - self._slow_from < limits.slow_s:
            return
        came = self._size - self._slow_bytes
        if came < limits.least_rate * (now - self._slow_from):
            raise DownloadError(
                f"{came:,} bytes came in {now - self._slow_from:.0f} s",
                where=self._told,
                do="Install again when the network is better: it goes on there",
                code="download-slow",
            )
        self._slow_from, self._slow_bytes = now, self._size
