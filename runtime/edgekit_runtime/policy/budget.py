"""Where a request goes: pure functions of the budget and of recent latencies.

    device = DeviceOutlook(services_ms=(19.0, 20.0, 44.0), queue_ms=20.0)
    host = HostOutlook(answers_ms=(11.0, 12.0, 15.0))
    decide(left_ms=60.0, device=device, hosts=(host,)).destination      # the host: 3 of 3 against 2 of 3

Rules, in this order:
- the device answers without a budget, and if its chance to be in time is at least SURE;
- else the likelier one answers; both are asked if neither reaches SHARED and there is a token for it;
- a request without hope on the device goes to a ready host all the same: it costs the device nothing and is a probe;
- without a ready host the device answers if its median or its last inference fits;
- else the bundle's degraded artifact answers, if it is open and SURE to be in time; else the request is refused.

An estimate that can refuse heals itself: see OUTDATED; if all are refused, `device` runs a copy twice a second.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from edgekit_runtime.system.records import record

Destination = Literal["device", "host", "both", "degraded", "neither"]
Use = Literal["voice", "video", "mobile", "search", "recommendation", "vehicle"]

PRESETS_MS: dict[Use, float] = {
    "voice": 100.0,
    "video": 500.0,
    "mobile": 200.0,
    "search": 100.0,
    "recommendation": 50.0,
    "vehicle": 10.0,
}
"""Use -> milliseconds that a person, or a car, can wait."""

JUDGED_FOR_S = 1e-3
"""Recent latencies are sorted at most once in this time."""
SURE = 0.9
"""The chance from which the device answers whatever the hosts' chances are."""
SHARED = 0.7
"""If neither chance reaches it, both are asked."""
OUTDATED = 0.6
"""An inference below this share of the median makes the device forget the slower ones."""
FADES = 0.85
"""The weight of a host's answer relative to the next newer one: networks change fast."""
NEEDS = 0.9
"""The share of a host's answers, or of the device's, that a late start leaves time for."""


def _reached(ascending: Sequence[float]) -> float | None:
    return ascending[math.ceil(NEEDS * len(ascending)) - 1] if ascending else None


@record(frozen=True)
class DeviceOutlook:
    """What a request arriving now can expect from the device.

    services_ms: of the last inferences, ascending, at least one.
    latest_ms: the last of them, None for their median.
    queue_ms: expected of the requests that wait before it.
    elapsed_ms: of the inference that runs now, None without one.
    """

    services_ms: Sequence[float]
    latest_ms: float | None = None
    queue_ms: float = 0.0
    elapsed_ms: float | None = None

    @property
    def expected_ms(self) -> float:
        """The queue, plus the median or the last inference, whichever is smaller."""
        median_ms = self.services_ms[len(self.services_ms) // 2]
        rest = self._rests_ms()
        own_ms = median_ms if self.latest_ms is None else min(median_ms, self.latest_ms)
        return self.queue_ms + rest[len(rest) // 2] + own_ms

    @property
    def p90_ms(self) -> float:
        rest = self._rests_ms()
        p90_ms = _reached(self.services_ms)
        assert p90_ms is not None  # of at least one
        return self.queue_ms + rest[len(rest) // 2] + p90_ms

    def needs_ms(self, left_ms: float) -> float | None:
        """The shortest time that covers nine in ten of the inferences that fit; None if none fits."""
        return _reached(self.services_ms[: bisect_right(self.services_ms, left_ms)])

    def chance(self, left_ms: float) -> float:
        """Probability that a request arriving now finishes in time.

        It is the share of pairs (rest of the present inference, own inference) that fit.
        """
        services, own_ms = self.services_ms, left_ms - self.queue_ms
        if self.elapsed_ms is None:
            return bisect_right(services, own_ms) / len(services)
        rests = self._rests_ms()
        if rests[-1] + services[-1] <= own_ms:
            return 1.0
        if rests[0] + services[0] > own_ms:
            return 0.0
        return sum(bisect_right(services, own_ms - rest) for rest in rests) / (len(rests) * len(services))

    def finishes(self, left_ms: float) -> float:
        """The chance that the present inference is done in time."""
        rests = self._rests_ms()
        return bisect_right(rests, left_ms) / len(rests)

    def _rests_ms(self) -> Sequence[float]:
        """Possible rests of the present inference, ascending.

        One that lasts longer than all known ones is expected to last as long again.
        """
        elapsed = self.elapsed_ms
        if elapsed is None:
            return (0.0,)
        longer = self.services_ms[bisect_right(self.services_ms, elapsed) :]
        return [ms - elapsed for ms in longer] or (elapsed,)


@record(frozen=True)
class HostOutlook:
    """What is known about a host for a request of this size.

    answers_ms: its last answers, the newest last; infinite for one that was lost, refused or is overdue.
    ready: False while its breaker is open, and before it was measured.
    """

    answers_ms: Sequence[float] = ()
    ready: bool = True

    def chance(self, left_ms: float) -> float:
        """Probability that an answer would come in time; 0 before anything is known."""
        answers = self.answers_ms
        if not answers:
            return 0.0
        weight, met, total = 1.0, 0.0, 0.0
        for ms in reversed(answers):
            total += weight
            if ms <= left_ms:
                met += weight
            weight *= FADES
        return met / total

    def needs_ms(self, left_ms: float) -> float | None:
        """The shortest time that covers nine in ten of the answers in time; None without one."""
        return _reached(sorted(ms for ms in self.answers_ms if ms <= left_ms))


@record(frozen=True)
class OffloadDecision:
    """Where a request goes, and why.

    host: the likeliest ready one of those given, also if the device answers; None without one.
    predicted_ms: expected of the destination, of the device for `both`, of the best one for `neither`.
    fits: whether the destination is likely to be in time; None without a budget.
    device_chance: of being in time.
    """

    destination: Destination
    host: int | None
    predicted_ms: float
    fits: bool | None
    device_chance: float = 1.0


def decide(
    left_ms: float | None,
    device: DeviceOutlook,
    hosts: Sequence[HostOutlook] = (),
    *,
    token: bool = False,
    degraded: DeviceOutlook | None = None,
) -> OffloadDecision:
    """left_ms: what is left of the caller's budget, None for none.
    token: whether both may be asked.
    degraded: of the bundle's degraded artifact, if it is open.
    """
    if left_ms is None:
        return OffloadDecision("device", None, device.p90_ms, None)
    chance = device.chance(left_ms)
    chances = {index: host.chance(left_ms) for index, host in enumerate(hosts) if host.ready} if hosts else {}
    best = max(chances, key=chances.__getitem__, default=None)
    if chance >= SURE:
        return OffloadDecision("device", best, device.p90_ms, True, chance)
    expected_ms = device.expected_ms
    if best is None:
        if expected_ms > left_ms and degraded is not None and degraded.chance(left_ms) >= SURE:
            return OffloadDecision("degraded", None, degraded.p90_ms, True, chance)
        destination: Destination = "device" if expected_ms <= left_ms else "neither"
        return OffloadDecision(destination, None, expected_ms, False, chance)
    likely = chances[best]
    if token and 0 < chance < SHARED and 0 < likely < SHARED:
        return OffloadDecision("both", best, expected_ms, False, chance)
    if chance >= likely and chance > 0:
        return OffloadDecision("device", best, expected_ms, False, chance)
    needs_ms = hosts[best].needs_ms(math.inf)
    predicted_ms = math.inf if needs_ms is None else needs_ms
    return OffloadDecision("host", best, predicted_ms, likely >= SHARED, chance)


class HedgeTokens:
    """How many requests may be asked twice: each request earns a share of one. Not thread-safe."""

    def __init__(self, earned: float = 0.15, most: float = 20.0) -> None:
        self._earned, self._most = earned, most
        self.left = most

    def earn(self) -> None:
        self.left = min(self._most, self.left + self._earned)

    def take(self) -> bool:
        if self.left < 1:
            return False
        self.left -= 1
        return True


class InferenceHistory:
    """The last inferences of the device. Thread-safe: each step on the deque is atomic.

    window: how many count.
    max_age_s: older ones count only without newer ones, so that a device is not held to an old throttling.
    """

    def __init__(self, window: int = 50, max_age_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=window)
        self.put = self._last.append  # put((seconds, latency_ms)): `add`, for a caller that has just read the clock
        self._max_age_s = max_age_s
        self._clock = clock
        self._judged: tuple[float, Sequence[float]] = (-math.inf, ())
        self.outdated_ms, self.most_ms = 0.0, math.inf  # less makes `add` forget the slower ones; none took more

    def add(self, latency_ms: float) -> None:
        if latency_ms < self.outdated_ms:
            kept = [one for one in list(self._last) if one[1] * OUTDATED <= latency_ms]
            self._last.clear()
            self._last.extend(kept)
            self._judged, self.outdated_ms = (-math.inf, ()), OUTDATED * latency_ms
        self.most_ms = max(self.most_ms, latency_ms)
        self._last.append((self._clock(), latency_ms))

    @property
    def age_s(self) -> float:
        """Seconds since the last one; infinite before the first."""
        return self._clock() - self._last[-1][0] if self._last else math.inf

    @property
    def latest_ms(self) -> float | None:
        try:
            return self._last[-1][1]
        except IndexError:
            return None

    @property
    def ascending_ms(self) -> Sequence[float]:
        """The latencies that count, sorted; empty before the first."""
        now = self._clock()
        judged_at, values = self._judged
        if now - judged_at < JUDGED_FOR_S and values:
            return values
        last, since = list(self._last), now - self._max_age_s
        values = sorted([ms for at, ms in last if at >= since]) or [ms for _, ms in last[-1:]]
        self._judged = now, values
        self.outdated_ms = OUTDATED * values[len(values) // 2] if values else 0.0
        self.most_ms = values[-1] if values else math.inf
        return values
