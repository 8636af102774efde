"""Filling the disk cache before an application needs the answers.

    found = fill(Path("net.ekb"), ["catalogue/"], Path("answers.db"))
    found["made"], found["there"], found["not_kept"], found["unreadable"]

Rules:
- an answer is found again for the same path or bytes, and for .npy for the same array;
- answers belong to the bundle and the artifact: fill on the board, or for the artifact that the board will take
  (--engine, --pin);
- answers that are there are not computed again, so that an interrupted run resumes;
- made is what is on disk at the end;
- the run ends when the set begins to evict itself, or the disk is full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from edgekit.bench.inputs import InputsError, list_files, load
from edgekit.packaging.output_errors import OutputError
from edgekit_converters.recipe.progress import Progress, silent
from edgekit_runtime import Model, open_bundle
from edgekit_runtime.cache.disk import DiskCache
from edgekit_runtime.cache.identity import identify
from edgekit_runtime.cache.memory_tier import Miss, entry_bytes
from edgekit_runtime.system.errors import InputError

_SYNC_EVERY = 128


def fill(
    bundle: Path,
    inputs: Sequence[str],
    file: Path,
    *,
    max_mb: float = 256.0,
    progress: Progress = silent,
    opened: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what `edgekit run --fill-cache --json` prints.

    inputs: files and folders
    opened: options of `open_bundle`

    In the result:
    full: whether the set does not fit; `left` files were not tried
    not_kept: answers that are not on disk; pushed_out: those of them that were evicted
    too_large: those of more than `largest_mb` MiB, a sixteenth of the bound; needs_mb: the bound that keeps them

    Raises InputsError for empty folders or a model that keeps state, OutputError for a file that cannot be written or a
    full disk, CacheFileError for another kind of file, and what opening the bundle raises.
    """
    found = list(list_files(inputs))
    files = [one for one in found if isinstance(one, str)]
    unlisted = [one for one in found if isinstance(one, InputsError)]
    if not files:
        raise unlisted[0]
    began = monotonic()
    with open_bundle(bundle, cache=False, **(opened or {})) as model:
        if model.contract.state != "none":
            raise InputsError("the model keeps state, so that no answer can be kept for later", where=str(bundle))
        disk = DiskCache(file, model.kept_form, max_bytes=int(max_mb * 2**20))
        try:
            _check(disk, file)
            run = _FillRun(model, disk)
            run.unreadable += [{"file": error.where, "why": error.what} for error in unlisted]
            run.all(files, progress)
            on_disk = run.on_disk()
            _check(disk, file, full=run.shrunk())
        finally:
            disk.close()
        described = model.describe()
    return {
        "bundle": str(bundle),
        "recipe": described["recipe"],
        "engine": described["engine"]["name"],
        "disk_cache": str(file),
        "files": len(files),
        **run.counts(on_disk),
        "left": len(files) - run.tried,
        "seconds": round(monotonic() - began, 3),
    }


class _FillRun:
    """Counts so far. computed: answers. too_large: answers above the cache's largest entry."""

    def __init__(self, model: Model, disk: DiskCache) -> None:
        self._model, self._disk, self._namespace = model, disk, model.kept_form.namespace
        self._name = model.contract.inputs[0].name
        self._first: bytes | None = None
        self._limit = disk.stats().limit
        self.tried = self.computed = self.there = self.too_large = self.largest = 0
        self.full = False
        self.unreadable: list[dict[str, str]] = []
        self._put: list[bytes] = []

    def all(self, files: Sequence[str], progress: Progress) -> None:
        """Try every file, or as many as the bound and the disk hold; wait for the writer."""
        for number, file in enumerate(files, 1):
            self._one(file)
            progress("filling the cache", number, len(files))
            if number % _SYNC_EVERY == 0 and (self._pushed_out() or self.shrunk()):
                break
        self._pushed_out()

    def counts(self, on_disk: int) -> dict[str, Any]:
        """The counts in the result. on_disk: of `on_disk()` before the file was closed."""
        stats = self._disk.stats()
        return {
            "made": on_disk,
            "there": self.there,
            "unreadable": self.unreadable,
            "full": self.full,
            "not_kept": self.computed - on_disk,
            "pushed_out": max(0, min(self.computed, stats.written) - on_disk),
            "too_large": self.too_large,
            "largest_mb": self._disk.largest_bytes / 2**20,
            "needs_mb": math.ceil(16 * self.largest / 2**20) if self.too_large else None,
            "bytes": stats.bytes,
            "evicted": stats.evicted,
        }

    def _one(self, file: str) -> None:
        self.tried += 1
        try:
            loaded = load(file, self._model.contract)
            key, named = identify(loaded if isinstance(loaded, dict) else {self._name: loaded}, self._namespace)
            if key is None:
                raise InputError("this input has no bytes to know it by", where=file)
            if not isinstance(self._disk.find(key), Miss):  # which marks it as used
                self.there += 1
            else:
                self._store(key, self._model.predict(named).outputs)
        except InputError as error:
            self.unreadable.append({"file": file, "why": error.what})
            return
        if self._first is None:
            self._first = key

    def _store(self, key: bytes, outputs: Any) -> None:
        self.computed += 1
        self._put.append(key)
        if self._disk.put(key, outputs):
            return
        self._disk.sync()  # the writer is behind
        size = entry_bytes(outputs)
        if not self._disk.put(key, outputs) and size > self._disk.largest_bytes:
            self.too_large += 1
            self.largest = max(self.largest, size)

    def on_disk(self) -> int:
        """How many answers of this run the file holds; call it after `all`."""
        return sum(map(self._disk.has, self._put))

    def shrunk(self) -> bool:
        """Whether the disk was full, so that the file was emptied and may grow half as large."""
        return self._disk.stats().limit < self._limit

    def _pushed_out(self) -> bool:
        """Whether the first answer of this run is evicted, so that more would replace the rest."""
        self._disk.sync()
        if self._first is not None and self._disk.stats().evicted and not self._disk.has(self._first):
            self.full = True
        return self.full


_WORDS = {
    "full": (
        "the disk is full, and what was written is gone",
        "Make room there, or name a file on another disk with --fill-cache",
    ),
    "busy": ("another process keeps it locked", "Run it again when that one has ended"),
}


def _check(disk: DiskCache, file: Path, *, full: bool = False) -> None:
    trouble = "full" if full else disk.stats().trouble
    if trouble is not None:
        what, do = _WORDS.get(trouble, ("it cannot be written", "Name a file that can be written with --fill-cache"))
        raise OutputError(what, where=str(file), do=do)
