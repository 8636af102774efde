"""An answer as bytes, and the tiers that store it where others may write: file or server.

    form = KeptForm(namespace, contract.outputs, secret)
    data = form.pack(key, outputs, moment())
    outputs, born = form.unpack(key, data)      # raises PackError
    class DiskCache(KeptTier): ...              # a medium: reads and stores such bytes, forgets a model's

Rules:
- the bytes are sealed under namespace and key (`sealed`), which stand for model, artifact and request;
- an unpacked answer is checked as a host's is, and has exactly the contract's outputs; a packed one as well;
- no pickle: nothing is executed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import os
import re
import struct
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np

from edgekit_runtime.cache.memory_tier import MISS, Miss, Moment, age_s, entry_bytes, freeze
from edgekit_runtime.contract.adapt import taken
from edgekit_runtime.contract.spec import OutputContract
from edgekit_runtime.system.errors import MemoryExceeded
from edgekit_runtime.system.records import record
from edgekit_runtime.system.sealed import SEAL_BYTES, Buffer, is_sealed, seal
from edgekit_runtime.system.strict_json import compact_json
from edgekit_runtime.system.threads import begin

LOG = logging.getLogger("edgekit_runtime.cache")
_MOST_WAITING_BYTES = 8 << 20
_BATCH = 256
_MOST_REFUSED = 4096
_FORGET_AGAIN_S = (0.25, 60.0)
_HEAD = struct.Struct("<ddQH")
_ALIGNED = 16
_DTYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")


class PackError(ValueError):
    """Bytes that `pack` did not write under this key, or outputs that do not fit the contract."""


@record(frozen=True)
class KeptForm:
    """How one model's answers are kept.

    namespace: of the model.
    outputs: the contract's; None for arrays of any names and shapes.
    secret: see `sealed`.
    """

    namespace: bytes
    outputs: Sequence[OutputContract] | None = None
    secret: bytes | None = None

    def pack(self, key: bytes, outputs: Any, born: Moment) -> bytes:
        """Serialize and seal an answer. Raises PackError if it does not fit this model.

        Layout, little-endian: wall and up (f64), boot (u64), u16 header length, header (JSON: [[name, dtype, shape],
        ...]), padding, the arrays' bytes, each from a multiple of 16, and the seal of all before it.
        """
        if not isinstance(outputs, Mapping):
            raise PackError(f"a {type(outputs).__name__} is not an answer")
        parts, table = [], []
        for name, array in self._checked(outputs).items():
            table.append([name, array.dtype.str, array.shape])
            parts.append(array.tobytes())
        header = compact_json(table)
        if len(header) >= 2**16:
            raise PackError("names and shapes exceed 64 KiB")
        data = bytearray(_HEAD.pack(born.wall_s, born.up_s, born.boot, len(header)) + header)
        for part in parts:
            data += bytes(-len(data) % _ALIGNED)
            data += part
        return bytes(data + seal(self.namespace + key, data, self.secret))

    def unpack(self, key: bytes, stored: object) -> tuple[Mapping[str, np.ndarray[Any, Any]], Moment]:
        """Verify and decode: read-only arrays, and when they were made. Raises PackError."""
        if not isinstance(stored, bytes) or len(stored) < _HEAD.size + SEAL_BYTES:
            raise PackError("not an answer, or cut short")
        data = memoryview(stored)[:-SEAL_BYTES]
        if not is_sealed(stored[-SEAL_BYTES:], self.namespace + key, data, self.secret):
            raise PackError("damaged, written for another request or model, or sealed with another secret")
        try:
            wall_s, up_s, boot, length = _HEAD.unpack_from(data)
            if not math.isfinite(wall_s) or not math.isfinite(up_s):
                raise PackError("its time is not finite")
            arrays = _arrays(data, json.loads(stored[_HEAD.size : _HEAD.size + length]), _HEAD.size + length)
            return MappingProxyType(self._checked(arrays)), Moment(wall_s, up_s, boot)
        except PackError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise PackError(f"invalid header: {error}") from error

    def _checked(self, found: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        outputs = self.outputs
        if outputs is None:
            outputs = [OutputContract(name, np.shape(one), str(np.asarray(one).dtype)) for name, one in found.items()]
        elif unknown := found.keys() - {output.name for output in outputs}:
            raise PackError(f"the contract has no output '{min(unknown):.40}'")
        try:
            return {output.name: taken(output, found.get(output.name)) for output in outputs}
        except ValueError as error:
            raise PackError(str(error)) from error


def _arrays(data: Buffer, table: Any, at: int) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {}
    for name, dtype, shape in table:
        if not (isinstance(dtype, str) and _DTYPE.fullmatch(dtype)):  # NumPy evaluates parts of other texts
            raise PackError("not a numeric array")
        at += -at % _ALIGNED
        array = np.ndarray(tuple(shape), np.dtype(dtype), data, at)
        arrays[str(name)] = array
        at += array.nbytes
    return arrays


@record(frozen=True)
class CachedAnswer:
    """age_s: None if unknown."""

    outputs: Any
    age_s: float | None


@dataclass
class _PendingWork:
    """answers: key -> outputs, when they were made, bytes.
    refused: keys to delete.
    clear: flush first, until done.
    """

    answers: dict[bytes, tuple[Any, Moment, int]] = field(default_factory=dict)
    refused: dict[bytes, None] = field(default_factory=dict)
    bytes: int = 0
    clear: bool = False
    now: bool = False
    closing: bool = False


class KeptTier(ABC):
    """A tier behind memory that others may write to; one background thread does our writes.

    Rules:
    - trouble is never an error: lookups miss, answers are lost, and both are counted;
    - what was read and is not what was written under its key is a miss: counted, logged once, and deleted;
    - an answer older than `ttl_s`, or of unknown age, is a miss; `stale` finds it until its bytes are needed;
    - pending answers are found, and bounded: beyond that new ones are lost;
    - a flushed answer is not returned again: until the medium has forgotten it, nothing is read from it or written to
      it. A flush that fails is retried, ever more rarely; one that never succeeded is a RuntimeWarning at the end.

    Thread-safe. A child of a fork only misses.
    """

    tier: Literal["disk", "shared"]
    counted: ClassVar[tuple[str, ...]] = ("hits", "misses", "expired", "written", "lost", "refused")

    def __init__(
        self, form: KeptForm, name: str, *, ttl_s: float | None, now: Callable[[], Moment], batch_s: float
    ) -> None:
        self._form, self._name, self._ttl_s, self._now, self._batch_s = form, name, ttl_s, now, batch_s
        self._owner = os.getpid()
        self._counts = dict.fromkeys(self.counted, 0)
        self._waiting = _PendingWork()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._forget_again_s = 0.0  # how long to wait before a flush that failed is tried again

    # What a medium does.

    @property
    @abstractmethod
    def largest_bytes(self) -> int:
        """Limit of one answer."""

    @abstractmethod
    def _read(self, key: bytes, *, note: bool) -> object:
        """The bytes under a key, None if absent, in the caller's thread.

        note: whether this use counts.
        """

    @abstractmethod
    def _accepts(self) -> bool:
        """Whether answers can be stored now. Under the lock."""

    @abstractmethod
    def _store(self, answers: Mapping[bytes, bytes], refused: Sequence[bytes]) -> int:
        """Delete what was refused, then store. Returns how many answers were stored."""

    @abstractmethod
    def _forget(self) -> bool:
        """Delete all answers of this model. False to be retried."""

    @abstractmethod
    def _shut(self) -> None: ...

    def _most_bytes(self) -> tuple[int, int]:
        """Limits in bytes: of pending answers, and of one batch."""
        return _MOST_WAITING_BYTES, _MOST_WAITING_BYTES

    # In the caller's thread.

    def find(self, key: bytes) -> CachedAnswer | Miss:
        """The answer stored under `key`. Waits for no writer."""
        found = self._look(key, note=True)
        with self._change:
            ttl_s = self._ttl_s
            if not isinstance(found, Miss) and ttl_s is not None and (found.age_s is None or found.age_s >= ttl_s):
                self._counts["expired"] += 1
                found = MISS
            self._counts["misses" if isinstance(found, Miss) else "hits"] += 1
        return found

    def get(self, key: bytes) -> Any | Miss:
        """As `find`, the outputs alone."""
        found = self.find(key)
        return found if isinstance(found, Miss) else found.outputs

    def stale(self, key: bytes) -> CachedAnswer | Miss:
        """The answer stored under `key` whatever its age. Counts neither hit nor miss, nor as a use."""
        return self._look(key, note=False)

    def put(self, key: bytes, outputs: Any) -> bool:
        """Store soon. False if it is too large, too much is pending, or nothing can be stored."""
        if os.getpid() != self._owner:
            return False
        outputs = freeze(outputs)
        size = entry_bytes(outputs)
        with self._change:
            waiting = self._waiting
            too_much = waiting.bytes > 0 and waiting.bytes + size > self._most_bytes()[0]
            if waiting.closing or too_much or size > self.largest_bytes or not self._accepts():
                self._counts["lost"] += 1
                return False
            before = waiting.answers.pop(key, None)
            waiting.bytes += size - (before[2] if before is not None else 0)
            waiting.answers[key] = (outputs, self._now(), size)
            self._start()
            if len(waiting.answers) == _BATCH or len(waiting.answers) == 1:
                self._change.notify_all()
            return True

    def sync(self, timeout_s: float = 30.0) -> bool:
        """Wait until pending answers are written or lost. False after timeout_s."""
        with self._change:
            if self._thread is None:
                return True
            self._waiting.now = True
            self._change.notify_all()
            return self._change.wait_for(lambda: not (self._has_rows() or self._waiting.clear), timeout_s)

    def flush(self) -> None:
        """Forget every answer of this model at once; other models' stay."""
        if os.getpid() != self._owner:
            return
        with self._change:
            self._waiting = _PendingWork(clear=True, now=True, closing=self._waiting.closing)
            self._forget_again_s = 0.0
            self._start()
            self._change.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write pending answers within timeout_s, then close. Idempotent.

        RuntimeWarning if a flush never reached the medium.
        """
        if os.getpid() != self._owner:
            return
        with self._change:
            again, self._waiting.closing = self._waiting.closing, True
            self._change.notify_all()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(timeout_s)
        elif not again:
            self._shut()
        if self._waiting.clear and not again:
            warnings.warn(
                f"{self._name}: flushed answers are still stored ({self._trouble() or 'busy'}) and will be found when "
                "it is opened again; flush again then, or delete them",
                RuntimeWarning,
                stacklevel=2,
            )

    def _trouble(self) -> str | None:
        return None

    def _look(self, key: bytes, *, note: bool) -> CachedAnswer | Miss:
        if os.getpid() != self._owner:
            return MISS
        with self._change:
            waiting = self._waiting
            there = waiting.answers.get(key)
            if there is not None:
                return CachedAnswer(there[0], age_s(there[1], self._now()))
            if waiting.clear or waiting.closing:
                return MISS
        body = self._read(key, note=note)
        if body is None:
            return MISS
        try:
            outputs, born = self._form.unpack(key, body)
        except PackError as why:
            self._refuse(key, str(why))
            return MISS
        return CachedAnswer(outputs, age_s(born, self._now()))

    def _refuse(self, key: bytes, why: str) -> None:
        with self._change:
            self._counts["refused"] += 1
            first = self._counts["refused"] == 1
            if self._accepts() and len(self._waiting.refused) < _MOST_REFUSED:
                self._waiting.refused[key] = None
                self._start()
                self._change.notify_all()
        if first:
            LOG.warning("%s: a stored answer is not what was written there and was refused: %s", self._name, why)

    def _has_rows(self) -> bool:
        return bool(self._waiting.answers or self._waiting.refused)

    def _start(self) -> None:
        """Start the thread at the first write; under the lock."""
        if self._thread is None and not self._waiting.closing:
            thread = threading.Thread(target=self._work, name=f"edgekit-{self.tier}-cache", daemon=True)
            try:
                if not begin(thread):  # the interpreter ends: nothing more is written
                    return
            except MemoryExceeded:  # an answer is not refused for its cache; the next one tries again
                return
            self._thread = thread
            atexit.register(self.close)  # for an application that ends without closing its model

    # In the thread that writes.

    def _work(self) -> None:
        closing = False
        while not closing:
            with self._change:
                self._change.wait_for(lambda: self._has_rows() or self._is_urgent())
                if self._waiting.clear and self._forget_again_s:
                    self._change.wait_for(
                        lambda: self._waiting.closing or not self._forget_again_s, self._forget_again_s
                    )
                elif not self._is_urgent():
                    self._change.wait_for(self._is_urgent, self._batch_s)
                self._waiting.now = False
                closing = self._waiting.closing
            if self._is_flushed():
                while self._write_some():
                    pass
        with self._change:
            self._counts["lost"] += len(self._waiting.answers)
            self._waiting.answers.clear()
            self._waiting.refused.clear()
            self._change.notify_all()
        self._shut()

    def _is_urgent(self) -> bool:
        waiting = self._waiting
        return waiting.now or waiting.clear or waiting.closing or len(waiting.answers) >= _BATCH

    def _is_flushed(self) -> bool:
        """Run a pending flush. Whether none is pending any more."""
        with self._change:
            asked = self._waiting
        if not asked.clear:
            return True
        done = self._forget()
        with self._change:
            asked.clear = not done
            first, last = _FORGET_AGAIN_S
            self._forget_again_s = 0.0 if done else min(max(first, 2 * self._forget_again_s), last)
            self._change.notify_all()
        return done

    def _write_some(self) -> bool:
        """Write one batch. True if there may be more."""
        with self._change:
            waiting, room = self._waiting, self._most_bytes()[1]
            if waiting.clear or not self._has_rows():  # flushed meanwhile: that comes first
                return False
            batch: dict[bytes, tuple[Any, Moment, int]] = {}
            for key, answer in waiting.answers.items():
                room -= answer[2]
                if batch and (room < 0 or len(batch) == _BATCH):
                    break
                batch[key] = answer
            refused = tuple(waiting.refused)
        packed = {}
        for key, (outputs, born, _) in batch.items():
            with contextlib.suppress(PackError):
                packed[key] = self._form.pack(key, outputs, born)
        stored = self._store(packed, refused)
        with self._change:
            self._counts["written"] += stored
            self._counts["lost"] += len(batch) - stored
            for key in refused:
                waiting.refused.pop(key, None)
            for key, (outputs, _, size) in batch.items():
                if waiting.answers.get(key, (None,))[0] is outputs:
                    del waiting.answers[key]
                    waiting.bytes -= size
            self._change.notify_all()
            return self._has_rows()
