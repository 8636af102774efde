"""A cache of what builds make: bytes under a key of everything that they were made from.

    store = DiskStore(default_folder())
    store.put(key("float-model", "tflite", source.sha256), data)

Rules:
- a key digests the model, the data, the recipe and the plan, and always edgekit's own code and the versions of the
  tools that make artifacts, so that nothing ever becomes stale;
- an entry that another user could have written (`files.read_own`) is ignored, and none is put beside it;
- a store may forget at any time and never fails a build: what cannot be read or written is made again;
- an entry is written beside its name, moved there, and sealed under its key (`sealed`): concurrent builds, a full disk
  or a power cut leave whole entries or none, and an entry under another key is ignored;
- an entry is read as data: what its reader refuses, or what cannot be, such as NaN, is made again;
- the least recently used entries go when the folder exceeds its bound, and so do old leftovers of interrupted builds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from edgekit_runtime.engines.registry import ENGINES
from edgekit_runtime.system.files import first_unsafe, read_own, write_cache
from edgekit_runtime.system.sealed import SEAL_BYTES, is_sealed, seal
from edgekit_runtime.system.strict_json import from_json, to_json

T = TypeVar("T")

_TOOLS = (
    *("tensorflow", "tensorflow-cpu", "keras", "tf-keras", "torch"),
    *("onnx", "onnxslim", "tf2onnx", "onnx2tf", "numpy", "pillow"),
    *(name for kind in ENGINES.values() for name in (kind.distribution, *kind.overwritten_by)),
)
_GIB = 1 << 30
_SUFFIX, _PARTIAL = ".entry", ".partial"
_UNFINISHED = ".unfinished"
_MAGIC = b"edgekit2"
_HEAD = len(_MAGIC) + SEAL_BYTES
_MOST = 1e100  # no square, sum or ratio of what a network computes is larger
_STALE_S = 3600.0  # a partial file older than this belongs to a build that is no more
_ABANDONED_S = 14 * 86_400.0


class StageStore:
    """A store that remembers nothing. Thread-safe."""

    def get(self, key: str) -> bytes | None:
        """Return the entry, or None if it is absent, evicted or damaged."""
        return None

    def put(self, key: str, data: bytes) -> None:
        """Store the data if possible. Never raises for a full or read-only disk."""


NO_STORE = StageStore()


class DiskStore(StageStore):
    """A store with one file per entry, in `folder`, which the first `put` makes.
    max_bytes: of all entries together.
    failure: why the last `put` kept nothing, or ""."""

    def __init__(self, folder: Path, max_bytes: int = 4 * _GIB) -> None:
        self._folder, self._max_bytes = Path(folder), max_bytes
        self._bytes: int | None = None  # in the folder, as far as this process knows; None before the first look
        self._lock = Lock()
        self.failure = ""

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        stored = read_own(path, self._max_bytes)
        if stored is None:
            return None
        data = stored[_HEAD:]
        if stored[: len(_MAGIC)] != _MAGIC or not is_sealed(stored[len(_MAGIC) : _HEAD], key.encode(), data):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):  # used just now: the last to be forgotten
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        size = len(data) + _HEAD
        if size > self._max_bytes:
            return
        if unsafe := first_unsafe(self._folder):
            self.failure = f"{unsafe.where}: {unsafe.what}. {unsafe.do}"
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_cache(path, [_MAGIC + seal(key.encode(), data), data])
        except OSError as error:
            self.failure = f"{self._folder}: {error.strerror or error}"
            return
        self._bound(size)

    def _path(self, key: str) -> Path:
        if not key or not key.isalnum():
            raise ValueError(f"no key of this store: {key!r}")
        return self._folder / f"{key}{_SUFFIX}"

    def _bound(self, added: int) -> None:
        """Evict the least recently used down to nine tenths of the bound."""
        with self._lock:
            if self._bytes is not None:
                self._bytes += added
                if self._bytes <= self._max_bytes:
                    return
            entries = sorted(self._entries())
            self._bytes = sum(size for _, size, _ in entries)
            if self._bytes <= self._max_bytes:
                return
            for _, size, path in entries:
                if self._bytes <= 0.9 * self._max_bytes:
                    break
                with contextlib.suppress(OSError):
                    Path(path).unlink()
                self._bytes -= size

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield (last use, bytes, path) of each entry; another build may remove some meanwhile."""
        newest = 0.0
        partials = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    stat = entry.stat(follow_symlinks=False)
                    newest = max(newest, stat.st_mtime)
                    if entry.name.endswith(_SUFFIX):
                        yield stat.st_mtime, stat.st_size, entry.path
                    elif entry.name.endswith((_PARTIAL, _UNFINISHED)):
                        after = _STALE_S if entry.name.endswith(_PARTIAL) else _ABANDONED_S
                        partials.append((stat.st_mtime + after, entry.path))
        for over, path in partials:
            if over < newest:
                with contextlib.suppress(OSError):
                    Path(path).unlink()


def kept(store: StageStore, name: str, read: Callable[[bytes], T | None]) -> T | None:
    """Read an entry with `read`; None if it is absent or `read` refuses it."""
    stored = store.get(name)
    try:
        return None if stored is None else read(stored)
    except Exception:  # noqa: BLE001 - whatever they are, they are made again
        return None


def remembered(store: StageStore, name: str, read: Callable[[bytes], T | None], make: Callable[[], bytes]) -> T:
    """Read an entry with `read`, or make and store its bytes first."""
    found = kept(store, name, read)
    if found is None:
        data = make()
        store.put(name, data)
        found = read(data)
        assert found is not None
    return found


def get_json(store: StageStore, name: str, kind: type[T], fits: Callable[[T], bool] | None = None) -> T | None:
    """Return the value that `put_json` stored; None if absent, of another kind, or impossible.
    fits: whether the value can have been made here."""

    def read(stored: bytes) -> T | None:
        value = _read(kind, stored, parse_float=_number, parse_constant=_constant)
        return value if fits is None or fits(value) else None

    return kept(store, name, read)


def put_json(store: StageStore, name: str, value: Any) -> bytes:
    """Store a dataclass or other JSON value and return its bytes."""
    data = json.dumps(to_json(value)).encode()  # unlike a manifest's, these numbers may be infinite
    store.put(name, data)
    return data


def cached_json(
    store: StageStore, name: str, kind: type[T], made: Callable[[], T], fits: Callable[[T], bool] | None = None
) -> T:
    """Return the stored value, or make and store it."""
    found = get_json(store, name, kind, fits)
    return _read(kind, put_json(store, name, made())) if found is None else found


def _read(kind: type[T], stored: bytes, **how: Any) -> T:
    return from_json(kind, json.loads(stored, **how), "what was stored", nulls=True)


def _number(text: str) -> float:
    number = float(text)
    if abs(number) > _MOST:
        raise ValueError(f"{text} was never measured")
    return number


def _constant(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN was never measured")
    return float(name)


def unfinished_folder(folder: Path, key: str) -> Path:
    """Return a folder for a long stage's intermediate results."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{key}{_UNFINISHED}"


def default_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return `edgekit/build` in $XDG_CACHE_HOME, or in ~/.cache if that is not absolute."""
    environment = os.environ if environment is None else environment
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "edgekit" / "build"


def key(*parts: Any) -> str:
    """Digest the parts, edgekit's code and the tools' versions.
    Parts are bytes, or what JSON can hold, where a tuple is a list."""
    state = hashlib.sha256(_tool_versions().encode())
    for part in parts:
        binary = isinstance(part, (bytes, bytearray, memoryview))
        data = part if binary else json.dumps(part, sort_keys=True, separators=(",", ":")).encode()
        state.update(b"b" if binary else b"j")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


@cache
def _tool_versions() -> str:
    """Return the tools' versions and a digest of the code that decides the results."""
    import edgekit_runtime
    from edgekit_converters.recipe.artifact import tool_versions

    code = code_digest(Path(__file__).parent.parent, Path(edgekit_runtime.__file__).parent)
    return json.dumps([code, tool_versions(_TOOLS)], sort_keys=True)


def code_digest(*packages: Path) -> str:
    """Digest every Python file and table in these folders."""
    state = hashlib.sha256()
    for root in packages:
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.toml")]):
            state.update(f"{path.relative_to(root)}\0".encode())
            state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()
