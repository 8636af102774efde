"""The shared tier: answers that several hosts keep in one Redis or Valkey.

    shared = SharedCache("redis://cache:6379/0", KeptForm(namespace, contract.outputs), ttl_s=3600)
    shared.put(key, outputs)                # returns at once
    found = shared.find(key)                # MISS, or CachedAnswer(outputs, age_s), within about 2 ms

Rules:
- a lookup waits at most `wait_s`, connecting and DNS included; a later answer is a miss, and so is a lookup beyond
  READERS at once;
- trouble with the server is a miss, never an error: after five in a row it is left alone, except for a lookup now and
  then that finds out whether it is back;
- every answer is stored with a time to live, a day by default;
- a value is bounded, and so are pending writes; what is beyond is not stored, and counted;
- a value that is not what was written under its key, or not of the contract (`kept`), is a miss: it is counted, logged
  once, and deleted. Without a secret, anyone who may write to the server can decide the answers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from edgekit_runtime.cache.disk import CachedAnswer
from edgekit_runtime.cache.kept import KeptForm, PackError
from edgekit_runtime.cache.memory_tier import MISS, Miss, Moment, age_s, moment
from edgekit_runtime.system.breaker import Breaker
from edgekit_runtime.system.errors import MissingExtraError

if TYPE_CHECKING:
    import redis

WAIT_S = 0.002
READERS = 4
"""Threads that look up, each with a connection; the writing one has another."""
_PATIENCE_S = 0.25
"""How long our threads wait for the server; no caller does."""
_DAY_S = 86_400.0
_MOST_VALUE = 1 << 20
_MOST_WAITING = 8 << 20
_LOG = logging.getLogger("edgekit_runtime.cache")
_COUNTED = ("hits", "misses", "expired", "late", "failed", "skipped", "written", "lost", "refused")


@dataclass(frozen=True)
class SharedStats:
    """late: lookups that took longer than they may.
    failed: exchanges that broke.
    skipped: lookups not made, because the server is away or READERS others were under way.
    lost: answers that were not stored.
    refused: lookups that found something else than was written.
    waiting: bytes not stored yet.
    """

    hits: int
    misses: int
    expired: int
    late: int
    failed: int
    skipped: int
    written: int
    lost: int
    refused: int
    waiting: int


class SharedCache:
    """Thread-safe.

    url: redis://, rediss:// or unix://, with a password if the server wants one.
    max_bytes: of one value.
    clock: monotonic seconds, of the breaker.

    Raises ValueError for an invalid URL, MissingExtraError without the library, and nothing afterwards.
    """

    tier: Literal["shared"] = "shared"

    def __init__(
        self,
        url: str,
        form: KeptForm,
        *,
        max_bytes: int = _MOST_VALUE,
        ttl_s: float | None = None,
        wait_s: float = WAIT_S,
        now: Callable[[], Moment] = moment,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        self._server = _connect(url)
        self._form = form
        self._prefix = b"edgekit:2:" + form.namespace.hex().encode() + b":"
        self._most, self._ttl_s, self._wait_s, self._now = max_bytes, ttl_s, wait_s, now
        self._breaker = Breaker(clock=clock)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._readers = ThreadPoolExecutor(READERS, "edgekit-shared-cache-reads")
        self._writer = ThreadPoolExecutor(1, "edgekit-shared-cache-writes")
        self._reading = 0
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._waiting = 0
        self._era = 0
        self._clearing = self._closed = False

    def find(self, key: bytes) -> CachedAnswer | Miss:
        """The answer stored under `key`, if it comes in time."""
        data = self._ask(key)
        found = self._read(key, data) if data is not None else MISS
        with self._lock:
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
        """The answer whatever its age, as long as the server has it. Counts neither hit nor miss."""
        data = self._ask(key)
        return self._read(key, data) if data is not None else MISS

    def put(self, key: bytes, outputs: Any) -> bool:
        """Store soon. False if the answer is too large, too much is pending, or the server is away."""
        try:
            data = self._form.pack(key, outputs, self._now())
        except PackError:
            data = b""
        with self._lock:
            away = os.getpid() != self._owner or self._closed or self._clearing or self._breaker.state == "open"
            if away or not 0 < len(data) <= self._most or self._waiting + len(data) > _MOST_WAITING:
                self._counts["lost"] += 1
                return False
            self._waiting += len(data)
            self._writer.submit(self._write, key, data, self._era)
        return True

    def sync(self, timeout_s: float = 30.0) -> bool:
        """Wait until pending answers are stored or lost. False after timeout_s."""
        if self._closed:
            return True
        try:
            self._writer.submit(lambda: None).result(timeout_s)
        except TookTooLong:
            return False
        return not self._clearing

    def flush(self) -> None:
        """Forget every answer of this model at once, also those of other hosts."""
        with self._lock:
            if os.getpid() != self._owner or self._closed:
                return
            self._era += 1
            self._clearing = True
            self._writer.submit(self._clear)

    def stats(self) -> SharedStats:
        with self._lock:
            return SharedStats(**self._counts, waiting=self._waiting)

    def close(self, timeout_s: float = 5.0) -> None:
        """Store what is pending within timeout_s, and disconnect. Idempotent."""
        if os.getpid() != self._owner or self._closed:
            return
        self.sync(timeout_s)
        with self._lock:
            self._closed = True
        for pool in (self._readers, self._writer):
            pool.shutdown(wait=False, cancel_futures=True)
        self._server.close()

    # In the caller's thread.

    def _ask(self, key: bytes) -> bytes | None:
        """The bytes under a key; None if absent or late."""
        with self._lock:
            away = os.getpid() != self._owner or self._closed or self._clearing
            if away or self._reading >= READERS or not self._breaker.allows():
                self._counts["skipped"] += 1
                return None
            reading = self._readers.submit(self._get, self._prefix + key)
            self._reading += 1
        try:
            data = reading.result(self._wait_s)
        except TookTooLong:
            self._fail("late")
            return None
        except Exception:  # noqa: BLE001 - redis is not imported here; whatever it says, it is a miss
            self._fail("failed")
            return None
        self._breaker.record_success()
        return data

    def _read(self, key: bytes, data: bytes) -> CachedAnswer | Miss:
        try:
            outputs, born = self._form.unpack(key, data)
        except PackError as why:
            with self._lock:
                self._counts["refused"] += 1
                first = self._counts["refused"] == 1
                if not self._closed:
                    self._writer.submit(self._drop, key)
            if first:
                _LOG.warning("an answer in the shared cache is not what was written there, and is not given: %s", why)
            return MISS
        return CachedAnswer(outputs, age_s(born, self._now()))

    def _fail(self, how: str) -> None:
        self._breaker.failed()
        with self._lock:
            self._counts[how] += 1

    # In the threads that talk to the server.

    def _get(self, name: bytes) -> bytes | None:
        try:
            size = self._server.strlen(name)
            if not 0 < size <= self._most:  # another program's value is not read into memory
                return None
            return cast("bytes | None", self._server.get(name))
        finally:
            with self._lock:
                self._reading -= 1

    def _write(self, key: bytes, data: bytes, era: int) -> None:
        try:
            if era == self._era and self._breaker.state != "open":
                ttl_s = _DAY_S if self._ttl_s is None else self._ttl_s
                self._server.set(self._prefix + key, data, px=max(1, int(ttl_s * 1e3)))
                how = "written"
            else:
                how = "lost"
        except Exception:  # noqa: BLE001 - as in `_ask`
            how = "lost"
            self._fail("failed")
        with self._lock:
            self._counts[how] += 1
            self._waiting -= len(data)

    def _drop(self, key: bytes) -> None:
        try:
            self._server.unlink(self._prefix + key)
        except Exception:  # noqa: BLE001 - as in `_ask`
            self._fail("failed")

    def _clear(self) -> None:
        """Retried while the model is open; nothing is read or written until it succeeds."""
        while not self._closed:
            try:
                for name in self._server.scan_iter(self._prefix + b"*", count=500):
                    self._server.unlink(name)
            except Exception:  # noqa: BLE001 - as in `_ask`
                time.sleep(_PATIENCE_S)
                continue
            with self._lock:
                self._clearing = False
            return


def _connect(url: str) -> redis.Redis:
    """Does not connect yet."""
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise MissingExtraError("shared-cache", "a cache in Redis or Valkey") from error
    return redis.Redis.from_url(
        url,
        socket_timeout=_PATIENCE_S,
        socket_connect_timeout=_PATIENCE_S,
        retry=Retry(NoBackoff(), 0),
        max_connections=READERS + 1,
    )
