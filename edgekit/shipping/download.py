"""Wheel files from an index into a folder, once: kept by their SHA-256, gone on with where it was interrupted.

Rules: bytes are believed only when their SHA-256 is the one that the resolution named, and no more of them are read than the
index promised, or 4 GiB where it promised nothing; a file is there whole or not at all;
what has been fetched before is not asked for again, so that a second package needs no network for it; two processes that fetch
the same file write to two drafts.

    fetch(locked.wheel, Path("usb/wheels"), kept=state_dir() / "wheels")
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import netrc
import os
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgekit.errors import OutputError
from edgekit.shipping.errors import DownloadError
from edgekit.shipping.resolve import RemoteWheel

__all__ = ["fetch", "sha256_of"]

_TIMEOUT_S = 60.0
_CHUNK = 1 << 20
_MOST_BYTES = 4 << 30
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
Open = Callable[..., Any]


def fetch(wheel: RemoteWheel, folder: Path, *, kept: Path, open_url: Open = urllib.request.urlopen) -> Path:
    """The file in `folder`, under its own name. Raises DownloadError, and then what came so far is kept for the next try,
    and OutputError where `kept` cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    place, store = folder / wheel.name, kept / wheel.sha256
    if place.is_file() and sha256_of(place) == wheel.sha256:
        return place
    if not (store.is_file() and sha256_of(store) == wheel.sha256):
        try:
            kept.mkdir(parents=True, exist_ok=True)
            _download(wheel, kept / f"{wheel.sha256}.part", store, open_url)
        except OSError as error:
            do = "Make room there, or name another folder with EDGEKIT_STATE_DIR"
            raise OutputError(f"cannot be written: {error.strerror or error}", where=str(kept), do=do) from error
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.copyfile(store, draft)
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)
    return place


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(wheel: RemoteWheel, part: Path, store: Path, open_url: Open) -> None:
    with _draft(part) as draft:
        try:
            _append(wheel, draft, open_url)
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "errno", None) in _OF_THE_DISK:
                raise
            raise DownloadError(
                f"{wheel.name} cannot be fetched: {getattr(error, 'reason', None) or error}",
                where=urllib.parse.urlsplit(wheel.url).hostname or wheel.url,
                do="Run it again when the network is back: what has been fetched is kept",
            ) from error
        if sha256_of(draft) != wheel.sha256:
            draft.unlink()
            raise DownloadError(
                f"{wheel.name} is not the file that the index promised: its SHA-256 is another",
                where=wheel.url,
                do="Run it again; if that does not help, something between here and the index changes files",
            )
        draft.replace(store)


@contextlib.contextmanager
def _draft(part: Path) -> Iterator[Path]:
    """`part`, locked, to go on with what came before; where another is at it, a file of this one's own, gone at the end."""
    handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if _is_ours(handle, part):
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


def _is_ours(handle: int, part: Path) -> bool:
    """Whether nobody else writes it, and it is still the file of that name: another may have finished with it just now."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), part.stat())
    except OSError:
        return False


def _append(wheel: RemoteWheel, part: Path, open_url: Open) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if wheel.bytes is not None and have >= wheel.bytes:
        if have == wheel.bytes:
            return
        have = 0
    request = urllib.request.Request(wheel.url, headers=_headers(wheel.url, have))
    with open_url(request, timeout=_TIMEOUT_S) as answer:
        goes_on = have > 0 and getattr(answer, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        left = (_MOST_BYTES if wheel.bytes is None else wheel.bytes) - (have if goes_on else 0)
        with part.open("ab" if goes_on else "wb") as stream:
            while left > 0 and (piece := answer.read(min(_CHUNK, left))):
                stream.write(piece)
                left -= len(piece)
        if left > 0 and getattr(answer, "length", None):  # what http.client still waits for
            raise ConnectionError("the connection broke off")


def _headers(url: str, have: int) -> dict[str, str]:
    headers = {"User-Agent": "edgekit", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    if told := _credentials(url):
        headers["Authorization"] = f"Basic {b64encode(told.encode()).decode()}"
    return headers


def _credentials(url: str) -> str | None:
    """user:password for a private index, from ~/.netrc as other clients have it; never printed, never stored."""
    host = urllib.parse.urlsplit(url).hostname
    if not host:
        return None
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc().authenticators(host)
        if found:
            return f"{found[0]}:{found[2]}"
    return None
