"""The offload policy for one request: where it goes, when it is hedged, how it ends.

    offload = Offload(device, hosts, clock, alarms.at)
    errand = Errand(work, due, size, ended=answer)
    offload.begin(errand, offload.decide(errand))     # `ended` is called once, at `due` at the latest

Rules:
- the first good answer or the deadline ends the request; a later answer is learnt from;
- late hedge: a request on the device goes to a host, too, at the last moment at which that may still answer, if the
  device is not sure to and there is a token;
- local backup: a request that a host has not answered by then runs on the device, if that is idle;
- if one fails the other is asked, if it has any chance; if both failed, the caller gets an error at once;
- the degraded artifact begins at the last moment at which it is SURE to be in time, unless the device is; its answer
  is used at the deadline, or once no other answer can come;
- an exchange with a host continues after the deadline for as long again, at most LATE_S, to learn its time.

It has no thread and no clock: `benchmarks/fallback/simulate.py` runs this code.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from edgekit_runtime.policy.budget import SURE, DeviceOutlook, HedgeTokens, HostOutlook, OffloadDecision, decide

LATE_S = 2.0
MOST_S = 3600.0
"""The longest exchange with a host, whatever a request's budget is."""
WATCH_EVERY_S = 0.5
"""How often the device is tried while hosts answer."""
EARLY_MS = 1.0
"""A hedge and a backup start so much before the last moment."""
SPARE_MS, SPARE_SHARE = 20.0, 0.1
"""A degraded answer starts so much before the last moment, or this share of the time left.

It passes through three threads, which a busy board wakes late.
"""


class DeviceRequest(Protocol):
    """A request that the device took."""

    def cancel(self) -> object:
        """Take it out of the queue, if it still waits."""

    def chance(self, left_ms: float) -> float:
        """Probability that it will be done in time."""


class DeviceTarget(Protocol):
    """The device, or its degraded artifact.

    done: called with (result, error), one of them None, in any thread.
    """

    def outlook(self, priority: int) -> DeviceOutlook: ...
    def idle(self) -> bool: ...
    def start(self, errand: Errand, done: Callable[[Any, BaseException | None], None]) -> DeviceRequest: ...
    def watch(self, errand: Errand) -> None: ...


class HostTarget(Protocol):
    """The hosts.

    start: `left_s` until the caller is gone, `patience_s` to learn of it.
    """

    def outlooks(self, size: int | None) -> Sequence[HostOutlook]: ...
    def matter(self) -> None: ...
    def look(self) -> None: ...
    def start(
        self,
        index: int,
        errand: Errand,
        left_s: float,
        patience_s: float,
        done: Callable[[Any, BaseException | None], None],
    ) -> None: ...


@dataclass(slots=True, eq=False)
class Errand:
    """One request.

    work: for the destinations.
    due: on the policy's clock.
    size: bytes that travel, None for one that must not.
    ended: called once with (source, result, error): `device`, `host` or `degraded` with a result, or `neither` with the
    last error, None if nothing failed before the deadline.
    late: called with (source, result) of an answer after that.
    taken: what the device and the degraded artifact took, as long as it matters.
    spare: the degraded artifact's answer, once it is there.
    """

    work: Any
    due: float
    size: int | None
    ended: Callable[[str, Any, BaseException | None], None]
    priority: int = 0
    late: Callable[[str, Any], None] | None = None
    taken: dict[str, DeviceRequest] = field(default_factory=dict)
    spare: Any = None
    asked: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    error: BaseException | None = None
    over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, source: str, result: Any = None, error: BaseException | None = None) -> bool:
        """False if it was over already."""
        with self._lock:
            if self.over:
                return False
            self.over = True
        ended, self.ended, self.work = self.ended, _ignore, None  # until its deadline it keeps nothing alive
        ended(source, result, error)
        return True

    def claim(self, source: str) -> bool:
        """Whether to ask it: only the first caller gets True, and none once it is over."""
        with self._lock:
            if self.over or source in self.asked:
                return False
            self.asked.add(source)
        return True

    @property
    def at_host(self) -> bool:
        return "host" in self.asked

    def withdraw(self, error: BaseException | None = None) -> None:
        """End it with the degraded answer or none, and leave the queues."""
        spare = self.spare if error is None else None
        source = "neither" if spare is None else "degraded"
        if self.end(source, spare, None if spare is not None else error or self.error):
            self.leave("device", "degraded")

    @property
    def is_awaited(self) -> bool:
        """Whether the device or a host may still answer."""
        return bool(self.asked - self.failed - {"degraded"})

    def leave(self, *sources: str) -> None:
        """Take it out of these queues, if it still waits there."""
        for source in sources:
            if (taken := self.taken.pop(source, None)) is not None:
                taken.cancel()


def _ignore(source: str, result: Any, error: BaseException | None) -> None:
    """The request is over."""


class Offload:
    """Thread-safe.

    clock: monotonic seconds.
    at: calls a function at a time of that clock, in a thread of its own.
    degraded: the bundle's degraded artifact; None if it is not open.
    """

    def __init__(
        self,
        device: DeviceTarget,
        hosts: HostTarget,
        clock: Callable[[], float],
        at: Callable[[float, Callable[[], None]], object],
        degraded: DeviceTarget | None = None,
    ) -> None:
        self._device, self._hosts, self._degraded = device, hosts, degraded
        self._clock, self._at = clock, at
        self._tokens = HedgeTokens()
        self._starts: list[float] = []  # ascending: when the degraded artifact begins, if it is still needed
        self._lock = threading.Lock()

    def decide(self, errand: Errand) -> OffloadDecision:
        """Choose device, host, both or neither; see `budget.decide`."""
        left_ms = (errand.due - self._clock()) * 1e3
        device = self._device.outlook(errand.priority)
        hosts = self._hosts.outlooks(errand.size) if left_ms > 0 else ()
        degraded = None if self._degraded is None else self._degraded.outlook(errand.priority)
        with self._lock:
            self._tokens.earn()
            decision = decide(left_ms, device, hosts, token=self._tokens.left >= 1, degraded=degraded)
            if decision.destination == "both":
                self._tokens.take()
        if decision.device_chance < SURE:
            self._hosts.matter()
        self._hosts.look()
        if decision.destination == "neither" and self._degraded is not None:
            self._degraded.watch(errand)
        return decision

    def begin(self, errand: Errand, decision: OffloadDecision) -> None:
        """Ask the device or host that `decide` chose."""
        if decision.destination not in ("device", "both"):
            self._device.watch(errand)
        if decision.destination == "neither":
            return
        self._at(errand.due, errand.withdraw)
        if decision.destination == "degraded":
            self._ask_degraded(errand)
            return
        self._arm_degraded(errand)
        if decision.destination != "device":
            assert decision.host is not None
            self._ask_host(errand, decision.host)
            if decision.destination == "host":
                self._arm_backup(errand)
        if decision.destination != "host":
            if decision.destination == "device" and decision.host is not None:
                self._arm_hedge(errand, decision.host)
            self._ask_device(errand)

    def _ask(self, errand: Errand, source: str, start: Callable[[], DeviceRequest | None]) -> None:
        """start: returns what a queue took."""
        if not errand.claim(source):
            return
        try:
            taken = start()
        except Exception as error:  # noqa: BLE001 - a full queue, a closed model: the others may still answer
            self._failed(errand, source, error)
            return
        if taken is not None:
            errand.taken[source] = taken
            if errand.over:
                errand.leave("device", "degraded")

    def _ask_device(self, errand: Errand) -> None:
        done = partial(self._ended, errand, "device")
        self._ask(errand, "device", lambda: self._device.start(errand, done))

    def _ask_host(self, errand: Errand, index: int) -> None:
        left_s = min(max(0.0, errand.due - self._clock()), MOST_S)
        patience_s = left_s + min(max(left_s, 0.25), LATE_S)
        done = partial(self._ended, errand, "host")
        self._ask(errand, "host", lambda: self._hosts.start(index, errand, left_s, patience_s, done))

    def _ask_degraded(self, errand: Errand) -> None:
        assert self._degraded is not None

        def done(result: Any, error: BaseException | None) -> None:
            if error is not None:
                self._failed(errand, "degraded", error)
                return
            errand.spare = result
            errand.taken.pop("degraded", None)
            if not errand.is_awaited:
                errand.withdraw()

        degraded = self._degraded
        self._ask(errand, "degraded", lambda: degraded.start(errand, done))

    def _ended(self, errand: Errand, source: str, result: Any, error: BaseException | None) -> None:
        if error is not None:
            self._failed(errand, source, error)
        elif errand.end(source, result):
            errand.leave("degraded", *(["device"] if source == "host" else []))
            errand.taken.clear()
        elif errand.late is not None:
            errand.late(source, result)

    def _failed(self, errand: Errand, source: str, error: BaseException) -> None:
        errand.failed.add(source)
        errand.error = error
        left_ms = (errand.due - self._clock()) * 1e3
        if errand.over:
            return
        if source == "degraded":
            if not errand.is_awaited:
                errand.end("neither", None, error)
            return
        other = "device" if source == "host" else "host"
        if left_ms > 0 and other not in errand.asked:
            if other == "device" and self._device.outlook(errand.priority).chance(left_ms) > 0:
                self._ask_device(errand)
                return
            best = self._likeliest(errand, left_ms) if other == "host" else None
            if best is not None:
                self._ask_host(errand, best)
                return
        if errand.is_awaited:
            return
        if self._degraded is not None and self._sure(self._degraded, errand, left_ms):
            self._ask_degraded(errand)
        if errand.spare is not None:
            errand.withdraw()
        elif "degraded" not in errand.asked - errand.failed:
            errand.end("neither", None, error)

    def _arm_hedge(self, errand: Errand, index: int) -> None:
        now = self._clock()
        left_ms = (errand.due - now) * 1e3
        host = self._hosts.outlooks(errand.size)[index]
        needs_ms = host.needs_ms(left_ms)
        if needs_ms is None:
            return

        def hedge() -> None:
            taken = errand.taken.get("device")
            if errand.over or errand.at_host or taken is None:
                return
            left_ms = (errand.due - self._clock()) * 1e3
            if taken.chance(left_ms) >= SURE:
                return
            best = self._likeliest(errand, left_ms)
            with self._lock:
                if best is None or not self._tokens.take():
                    return
            self._hosts.matter()
            self._ask_host(errand, best)

        self._at(max(now, errand.due - (needs_ms + EARLY_MS) / 1e3), hedge)

    def _arm_degraded(self, errand: Errand) -> None:
        degraded = self._degraded
        if degraded is None:
            return
        now, own_s = self._clock(), degraded.outlook(errand.priority).p90_ms / 1e3
        spare_s = min(SPARE_MS / 1e3, SPARE_SHARE * (errand.due - now))
        begins = self._reserve_start(errand.due - own_s - spare_s, own_s)

        def answer_at_least() -> None:
            with self._lock:
                self._starts.remove(begins)
            taken = errand.taken.get("device")
            left_ms = (errand.due - self._clock()) * 1e3
            if errand.over or (taken is not None and taken.chance(left_ms) >= SURE):
                return
            if self._sure(degraded, errand, left_ms):
                self._ask_degraded(errand)

        self._at(max(now, begins), answer_at_least)

    def _reserve_start(self, latest: float, own_s: float) -> float:
        """The last moment to start at, before others that are due at about the same time."""
        with self._lock:
            for other in reversed(self._starts):
                if other - own_s < latest < other + own_s:
                    latest = other - own_s
            insort(self._starts, latest)
        return latest

    def _sure(self, degraded: DeviceTarget, errand: Errand, left_ms: float) -> bool:
        """Whether the degraded artifact would be in time; if not, it is watched."""
        if degraded.outlook(errand.priority).chance(left_ms) >= SURE:
            return True
        degraded.watch(errand)
        return False

    def _arm_backup(self, errand: Errand) -> None:
        now = self._clock()
        needs_ms = self._device.outlook(errand.priority).needs_ms((errand.due - now) * 1e3)
        if needs_ms is None:
            return

        def backup() -> None:
            if not errand.over and "device" not in errand.asked and self._device.idle():
                left_ms = (errand.due - self._clock()) * 1e3
                if self._device.outlook(errand.priority).chance(left_ms) > 0:
                    self._ask_device(errand)

        when = errand.due - (needs_ms + EARLY_MS) / 1e3
        if when > now:
            self._at(when, backup)

    def _likeliest(self, errand: Errand, left_ms: float) -> int | None:
        """The ready host with the greatest chance; None if none has any."""
        chances = [
            (host.chance(left_ms), -index) for index, host in enumerate(self._hosts.outlooks(errand.size)) if host.ready
        ]
        best = max(chances, default=(0.0, 0))
        return -best[1] if best[0] > 0 else None
