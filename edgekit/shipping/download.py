"""Wheel files from an index into a folder, once.
Cached by their SHA-256, resumed after an interruption.

Rules:
- bytes are trusted only when their SHA-256 is the one that the resolution named; no more of them are read than the
  index promised, or 4 GiB where it promised nothing;
- a file is there whole or not at all;
- what has been fetched before is not requested again, so that a second package needs no network for it;
- two processes that fetch the same file write to two drafts.

    fetch(locked.wheel, Path("usb/wheels"), kept=state_dir() / "wheels")
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import netrc
import os
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from edgekit.errors import OutputError
from edgekit.shipping.errors import WheelDownloadError
from edgekit.shipping.resolve import RemoteWheel
from edgekit_runtime.errors import EdgekitError
from edgekit_runtime.install.fetch import source_of
from edgekit_runtime.install.http import DownloadLimits, get
from edgekit_runtime.whole_file import take, write_cache

_TIMEOUT_S = 60.0
_CHUNK = 1 << 20
_MOST_BYTES = 4 << 30
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def fetch(wheel: RemoteWheel, folder: Path, *, kept: Path) -> Path:
    """The file in `folder`, under its own name.
    Raises DownloadError, and then what came so far is kept for the next try, and OutputError where `kept` cannot be
    written."""
    folder.mkdir(parents=True, exist_ok=True)
    place, store = folder / wheel.name, kept / wheel.sha256
    if place.is_file() and sha256_of(place) == wheel.sha256:
        return place
    if not (store.is_file() and sha256_of(store) == wheel.sha256):
        try:
            kept.mkdir(parents=True, exist_ok=True)
            _download(wheel, kept / f"{wheel.sha256}.part", store)
        except OSError as error:
            do = "Make room there, or name another folder with EDGEKIT_STATE_DIR"
            raise OutputError(f"cannot be written: {error.strerror or error}", where=str(kept), do=do) from error
    with store.open("rb") as file:
        write_cache(place, iter(partial(file.read, _CHUNK), b""))
    return place


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(wheel: RemoteWheel, part: Path, store: Path) -> None:
    with _draft(part) as draft:
        try:
            _append(wheel, draft)
        except (OSError, EdgekitError) as error:
            if getattr(error, "errno", None) in _OF_THE_DISK:
                raise
            raise WheelDownloadError(
                f"{wheel.name}: {error.what}"
                if isinstance(error, EdgekitError)
                else f"{wheel.name} cannot be fetched: {error}",
                where=urllib.parse.urlsplit(wheel.url).hostname or wheel.url,
                do="Run it again when the network is back: what has been fetched is kept",
            ) from error
        if sha256_of(draft) != wheel.sha256:
            draft.unlink()
            raise WheelDownloadError(
                f"{wheel.name} is not the file that the index promised: its SHA-256 is another",
                where=wheel.url,
                do="Run it again; if that does not help, something between here and the index changes files",
            )
        draft.replace(store)


@contextlib.contextmanager
def _draft(part: Path) -> Iterator[Path]:
    """`part`, locked, to resume.
    If another process writes it, a file of this process's own, removed at the end."""
    handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:  # still the file of that name: another process may have finished with it just now
            ours = take(handle) is True and os.path.samestat(os.fstat(handle), part.stat())
        except OSError:
            ours = False
        if ours:
            yield part
            return
    finally:
        os.close(handle)
    own, name = tempfile.mkstemp(prefix=f"{part.stem}.", suffix=".own", dir=part.parent)
    os.close(own)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _append(wheel: RemoteWheel, part: Path) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if wheel.bytes is not None and have >= wheel.bytes:
        if have == wheel.bytes:
            return
        have = 0
    url, limits = _with_credentials(wheel.url), DownloadLimits(silence_s=_TIMEOUT_S)
    # An index may be a folder of this machine, which is read from its first byte.
    local = url.startswith("file:")
    opened = source_of(url).opens(0, "") if local else get(url, start=have, limits=limits, by_digest=True)
    with contextlib.closing(opened) as stream:
        left = (_MOST_BYTES if wheel.bytes is None else wheel.bytes) - stream.start
        short = 0 if stream.total is None else stream.total - stream.start
        with part.open("ab" if stream.start else "wb") as file:
            end = time.monotonic() + limits.total_s
            while left > 0 and (piece := stream.read()):
                if time.monotonic() > end:
                    raise ConnectionError(f"it took longer than {limits.total_s / 3600:g} hours")
                file.write(piece[:left])
                left, short = left - len(piece), short - len(piece)
        if left > 0 and short > 0:
            raise ConnectionError("the connection broke off")


def _with_credentials(url: str) -> str:
    """With user and password of a private index, if ~/.netrc has them.
    They are never printed and never stored."""
    parts = urllib.parse.urlsplit(url)
    found = None
    if parts.hostname:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            found = netrc.netrc().authenticators(parts.hostname)
    if not found:
        return url
    user, password = (urllib.parse.quote(part, safe="") for part in (found[0], found[2]))
    return parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}").geturl()
