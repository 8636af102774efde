"""Filling the disk tier ahead of time: what an application will be asked is answered before it is.

    found = warm(Path("net.ekb"), Path("catalogue/"), Filling(Path("answers.db")), progress)
    found["made"], found["there"], found["unreadable"]

Rules:
- a file's key is that of its bytes: it is found again where the application passes the same path or the same bytes, and for
  .npy where it passes the same array;
- answers belong to the bundle and to the artifact that gave them: fill on the board, or for the artifact that the board will
  take (--engine);
- what is there is not computed again, so that a run that was interrupted goes on where it ended;
- a set that does not fit is noticed when it begins to push itself out, and the run ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from edgekit.errors import OutputError
from edgekit.inputs import InputsError, expanded, load
from edgekit_converters.progress import Progress, silent
from edgekit_runtime import InputError, Model, open_bundle
from edgekit_runtime.cache import DiskCache, Miss, identify

__all__ = ["Filling", "warm"]

_SYNC_EVERY = 128


@dataclass(frozen=True)
class Filling:
    """Where to, and with what: the file of the disk tier, its bound in MiB, and how the bundle is opened."""

    file: Path
    max_mb: float = 256.0
    engine: str | None = None
    threads: int | None = None
    trust: Sequence[Path] = ()


def warm(bundle: Path, folder: Path, filling: Filling, progress: Progress = silent) -> dict[str, Any]:
    """What `edgekit warm --json` prints. full: the set does not fit, and `left` files were not tried.

    Raises InputsError for a folder with nothing in it or a model that keeps state, OutputError where the file cannot be
    written, CacheFileError for a database of something else, and what opening the bundle raises.
    """
    files = list(expanded([str(folder)]))
    began = monotonic()
    with open_bundle(
        bundle, cache_mb=0, engine=filling.engine, threads=filling.threads, trust=tuple(filling.trust)
    ) as model:
        if model.contract.state != "none":
            raise InputsError("the model keeps state, so that no answer can be kept for later", where=str(bundle))
        namespace = model.namespace
        disk = DiskCache(filling.file, namespace, max_bytes=int(filling.max_mb * 2**20))
        try:
            _check(disk, filling.file)
            run = _Run(model, disk, namespace)
            for number, file in enumerate(files):
                run.one(file)
                progress("warming", number + 1, len(files))
                if (number + 1) % _SYNC_EVERY == 0 and run.pushed_out():
                    break
            disk.sync()
            run.pushed_out()
            _check(disk, filling.file)
        finally:
            disk.close()
        described = model.describe()
    stats = disk.stats()
    return {
        "bundle": str(bundle),
        "recipe": described["recipe"],
        "engine": described["engine"]["name"],
        "disk_cache": str(filling.file),
        "files": len(files),
        "made": run.made,
        "there": run.there,
        "unreadable": run.unreadable,
        "full": run.full,
        "left": len(files) - run.tried,
        "bytes": stats.bytes,
        "evicted": stats.evicted,
        "seconds": round(monotonic() - began, 3),
    }


class _Run:
    """What was done so far."""

    def __init__(self, model: Model, disk: DiskCache, namespace: bytes) -> None:
        self._model, self._disk, self._namespace = model, disk, namespace
        self._name = model.contract.inputs[0].name
        self._first: bytes | None = None
        self.tried = self.made = self.there = 0
        self.full = False
        self.unreadable: list[dict[str, str]] = []

    def one(self, file: str) -> None:
        self.tried += 1
        try:
            given = load(file, self._model.contract)
            key, named = identify(given if isinstance(given, dict) else {self._name: given}, self._namespace)
            if key is None:
                raise InputError("this input has no bytes to know it by", where=file)
            if not isinstance(self._disk.find(key), Miss):  # looked at, and thereby used: it is not what goes first
                self.there += 1
            else:
                self._disk.put(key, self._model.predict(named).outputs)
                self.made += 1
        except InputError as error:
            self.unreadable.append({"file": file, "why": error.what})
            return
        if self._first is None:
            self._first = key

    def pushed_out(self) -> bool:
        """Whether the first answer of this run is gone already: the rest would only take each other's place."""
        self._disk.sync()
        if self._first is not None and self._disk.stats().evicted and not self._disk.has(self._first):
            self.full = True
        return self.full


def _check(disk: DiskCache, file: Path) -> None:
    trouble = disk.stats().trouble
    if trouble is not None:
        raise OutputError(
            {
                "full": "the disk is full",
                "busy": "another process keeps it locked",
            }.get(trouble, "it cannot be written"),
            where=str(file),
            do="Name a file that can be written with --disk-cache",
        )
