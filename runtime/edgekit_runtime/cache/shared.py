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
- a value that was not written under its key, or does not fit the contract (`stored_answers`), is a miss: counted,
  logged once, and deleted. Without a secret, anyone who may write to the server can decide the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from edgekit_runtime.cache.memory_tier import Moment, moment
from edgekit_runtime.cache.stored_answers import KeptForm, KeptTier
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


@dataclass(frozen=True)
class SharedStats:
    """late: lookups that timed out.
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


class SharedCache(KeptTier):
    """max_bytes: of one value.
    clock: monotonic seconds, of the breaker.

    Raises ValueError for an invalid URL, MissingExtraError without the library, and nothing afterwards.
    """

    tier: Literal["shared"] = "shared"
    counted: ClassVar = (*KeptTier.counted, "late", "failed", "skipped")

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
        super().__init__(form, "the shared cache", ttl_s=ttl_s, now=now, batch_s=0.0)
        self._server = _connect(url)
        self._prefix = b"edgekit:2:" + form.namespace.hex().encode() + b":"
        self._most, self._wait_s = max_bytes, wait_s
        self._breaker = Breaker(clock=clock)
        self._readers = ThreadPoolExecutor(READERS, "edgekit-shared-cache-reads")
        self._reading = 0

    @property
    def largest_bytes(self) -> int:
        return self._most

    def stats(self) -> SharedStats:
        with self._change:
            return SharedStats(**self._counts, waiting=self._waiting.bytes)

    def _read(self, key: bytes, *, note: bool) -> bytes | None:
        with self._change:
            if self._waiting.closing or self._reading >= READERS or not self._breaker.allows():
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

    def _fail(self, how: str) -> None:
        self._breaker.failed()
        with self._change:
            self._counts[how] += 1

    def _get(self, name: bytes) -> bytes | None:
        try:
            size = self._server.strlen(name)
            if not 0 < size <= self._most:  # another program's value is not read into memory
                return None
            return cast("bytes | None", self._server.get(name))
        finally:
            with self._change:
                self._reading -= 1

    def _accepts(self) -> bool:
        return self._breaker.state != "open" and not self._waiting.clear

    def _store(self, answers: Mapping[bytes, bytes], refused: Sequence[bytes]) -> int:
        expires_ms = max(1, int((_DAY_S if self._ttl_s is None else self._ttl_s) * 1e3))
        if refused:
            self._do(self._server.unlink, *(self._prefix + key for key in refused))
        return sum(
            len(data) <= self._most and self._do(self._server.set, self._prefix + key, data, px=expires_ms)
            for key, data in answers.items()
        )

    def _do(self, command: Callable[..., object], *arguments: bytes, **options: int) -> bool:
        """Run a command. False if it failed or the breaker is open."""
        if self._breaker.state == "open":
            return False
        try:
            command(*arguments, **options)
        except Exception:  # noqa: BLE001 - as in `_read`
            self._fail("failed")
            return False
        return True

    def _forget(self) -> bool:
        try:
            for name in self._server.scan_iter(self._prefix + b"*", count=500):
                self._server.unlink(name)
        except Exception:  # noqa: BLE001 - as in `_read`
            return False
        return True

    def _shut(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._server.close()


def _connect(url: str) -> redis.Redis:
    """A client that connects on first use."""
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
