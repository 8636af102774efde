"""The record of one host: last answers, requests in flight, circuit breaker, next probe.

    record = HostRecord(clock)
    record.outlook(size=150_528)        # a HostOutlook, for budget.decide
    sent = record.sent(size=150_528, wanted_s=0.06)
    record.answered(sent)               # or record.lost(sent, "host-busy")
    for step in record.probe():         # ("ping",) while all is well
        ...

Rules:
- an answer counts for requests of about its size (a factor of two), and for all while nothing else is known. Lost,
  refused and overdue requests count as missed; a late answer is an answer, and the breaker counts only what never came;
- a ping counts as an answer that took its round trip plus what the last inferences of that size took beyond theirs;
- a probe is a ping. The golden example is sent if a ping says too little: before the host is proven, if a ping returns
  while the breaker is open, after a 503, and after a lost or slow answer; and once in PROVE_EVERY answers, more often
  after a wrong one;
- a host that matters is probed 250 ms after its last news; with an open breaker, or after a 503, after 100 to 500 ms;
- a host that owes ABANDONED answers to callers that have gone gets no request until some of them ended;
- no thread and no socket: `benchmarks/fallback/simulate.py` runs this very code.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Literal

from edgekit_runtime.policy.budget import OUTDATED, HostOutlook
from edgekit_runtime.system.breaker import Breaker

Step = Literal["ping", "example"]

WINDOW = 30
PROVE_EVERY = 20
"""Answers between two golden examples, and about how many of a host are wrong before that is seen."""
PROBE_S = 0.25
"""Probe a host that matters so long after its last news."""
STALE_S = 5.0
"""Probe any host so long after its last news."""
MATTERS_S = 1.0
"""How long a host matters after a request that the device might not answer in time."""
SHORTEST_S, LONGEST_S = 0.1, 0.5
PROBE_LONGEST_S = 2.0
FAILURES = 4
OVERDUE = 1.5
"""A request that waits so many times longer than nine of ten answers took counts as missed."""
EARLIEST_MS = 5.0
ABANDONED = 8
"""With so many requests in flight whose callers have gone, others fail at once."""


_RECENT = 5
"""How many of the last answers or pings estimate the host's time or the round trip."""
SLOWER = 2.0
"""A host so many times slower than its best gets the golden example: a ping does not show its end."""


@dataclass(slots=True)
class SentRequest:
    """A request in flight. size: 0 for a ping. due: when its caller goes."""

    at: float
    size: int
    number: int
    due: float


class HostRecord:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.breaker = Breaker(threshold=FAILURES, shortest_s=SHORTEST_S, longest_s=LONGEST_S, clock=clock)
        self.busy = Breaker(threshold=1, shortest_s=SHORTEST_S, longest_s=LONGEST_S, clock=clock)
        self._lock = threading.Lock()
        self._number = count()
        self._windows: dict[int, deque[tuple[int, float]]] = {}
        self._beyond: dict[int, deque[float]] = {}  # what answers of a size took beyond the round trip
        self._pings: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._fastest: dict[int, float] = {}  # the least that answers of a size took the host
        self._news, self._doubtful = -1, False  # of the last request: its number, and whether a ping says too little
        self._unproven, self._prove_every = 0, PROVE_EVERY  # answers since an example was due, and until the next
        self._away: dict[int, SentRequest] = {}
        self._heard = self._mattered = -math.inf

    @property
    def healthy(self) -> bool:
        return self.breaker.state == "closed" and self.busy.state == "closed"

    def sent(self, size: int, wanted_s: float = math.inf) -> SentRequest:
        """wanted_s: how long its caller waits."""
        with self._lock:
            now = self._clock()
            sent = SentRequest(now, size, next(self._number), now + wanted_s)
            self._away[sent.number] = sent
        return sent

    def answered(self, sent: SentRequest, ms: float | None = None, host_ms: float | None = None) -> None:
        """An answer came, in time or late.

        ms: what it took, None for the time since it was sent.
        host_ms: of that, as the host reports it, or None.
        """
        ms = (self._clock() - sent.at) * 1e3 if ms is None else ms
        if sent.size:
            self._unproven += 1
            self.breaker.record_success()
            self.busy.record_success()
        elif not self._doubtful and self.breaker.state == "closed":  # else only an inference closes it
            self.breaker.record_success()
        self._note(sent, ms, host_ms)

    def lost(self, sent: SentRequest, code: str) -> None:
        """No answer came, for the reason of this error code."""
        self._note(sent, math.inf, None)
        if code == "host-golden":  # it earns its trust again
            self._prove_every = 1
        if code == "host-busy" and sent.size:  # it is alive
            self.breaker.record_success()
            self.busy.failed()
        else:
            self.breaker.failed()

    def outlook(self, size: int) -> HostOutlook:
        now = self._clock()
        with self._lock:
            key = self._key(size)
            answers = self._with_pings(key)
            away = [(sent.number, now - sent.at) for sent in self._away.values()]
            abandoned = sum(now > sent.due for sent in self._away.values())
        usual = sorted(ms for _, ms in answers if ms < math.inf)
        if usual and away:
            late_s = max(EARLIEST_MS, OVERDUE * usual[math.ceil(0.9 * len(usual)) - 1]) / 1e3
            overdue = [(number, math.inf) for number, waits_s in away if waits_s > late_s]
            if overdue:
                answers = sorted(answers + overdue)[-WINDOW:]
        return HostOutlook(
            tuple(ms for _, ms in answers), ready=bool(answers) and abandoned < ABANDONED and self.healthy
        )

    def matters(self) -> None:
        """A request came that the device might not answer in time."""
        self._mattered = self._clock()

    def doubt(self) -> None:
        """An answer differed from the device's own: find out whether it is the host."""
        self._unproven = PROVE_EVERY

    def probe(self, *, proven: bool = True) -> tuple[Step, ...]:
        """What to send now, each step after the one before it returned; () if no probe is due.

        In the open and half-open state the breaker must get its outcome. proven: False if a golden example must come
        back first.
        """
        if self.breaker.state != "closed":
            return ("ping", "example") if self.breaker.allows() else ()
        if self.busy.state != "closed":
            return ("example",) if self.busy.allows() else ()
        if not proven or not self._windows:
            return ("ping", "example")
        if self._unproven >= self._prove_every:
            self._unproven, self._prove_every = 0, min(2 * self._prove_every, PROVE_EVERY)
            return ("example",)
        now = self._clock()
        if self._away and now - min(sent.at for sent in list(self._away.values())) < PROBE_S:
            return ()
        quiet_s = PROBE_S if now - self._mattered < MATTERS_S else STALE_S
        if now - self._heard <= quiet_s:
            return ()
        return ("ping", "example") if self._doubtful else ("ping",)

    @property
    def probe_s(self) -> float:
        """Timeout of a probe. One that was lost in an outage must not delay the next for long."""
        p90_ms = self.p90_ms
        if p90_ms is None and self.healthy:  # never measured: its first answer may have to load much
            return PROBE_LONGEST_S
        return min(max(LONGEST_S, OVERDUE * (p90_ms or 0.0) / 1e3), PROBE_LONGEST_S)

    @property
    def p90_ms(self) -> float | None:
        """Of the last answers; None before the first, and if one in ten or more is lost."""
        with self._lock:
            key = self._key(0)
            answers = sorted(ms for _, ms in self._windows.get(key, ()))
        p90_ms = answers[math.ceil(0.9 * len(answers)) - 1] if answers else math.inf
        return None if p90_ms == math.inf else p90_ms

    def _key(self, size: int) -> int:
        """The window for requests of this size: its own, else the one with the most answers."""
        own = size.bit_length()
        if own in self._windows or not self._windows:
            return own
        return max(self._windows, key=lambda key: len(self._windows[key]))

    def _with_pings(self, key: int) -> list[tuple[int, float]]:
        """A window's answers and the pings, as answers of that size, in the order sent."""
        answers = list(self._windows.get(key, ()))
        beyond = self._beyond.get(key)
        if not answers or not self._pings:
            return answers
        more_ms = median(beyond) if beyond else 0.0
        pinged = [(number, ms + more_ms) for number, ms in self._pings if beyond or ms == math.inf]
        return sorted(answers + pinged)[-WINDOW:]

    def _note(self, sent: SentRequest, ms: float, host_ms: float | None) -> None:
        with self._lock:
            if self._away.pop(sent.number, None) is None:
                return
            self._heard = self._clock()
            if not sent.size:
                _append(self._pings, sent.number, ms)
                return
            key = sent.size.bit_length()
            _append(self._windows.setdefault(key, deque(maxlen=WINDOW)), sent.number, ms)
            ways = [way for _, way in list(self._pings)[-_RECENT:] if way < math.inf]
            beyond_ms = max(host_ms or 0.0, ms - median(ways) if ways else ms)
            if ms < math.inf and ways:
                beyond = self._beyond.setdefault(key, deque(maxlen=_RECENT))
                if beyond and beyond_ms < OUTDATED * median(beyond):
                    beyond.clear()
                beyond.append(beyond_ms)
            took_ms = beyond_ms if host_ms is None or ms == math.inf else host_ms
            fastest_ms = self._fastest[key] = min(self._fastest.get(key, math.inf), took_ms)
            if sent.number > self._news:
                self._news = sent.number
                self._doubtful = ms == math.inf or took_ms > SLOWER * fastest_ms + EARLIEST_MS


def _append(window: deque[tuple[int, float]], number: int, ms: float) -> None:
    """Insert in the order sent."""
    overtaken = bool(window) and window[-1][0] > number
    window.append((number, ms))
    if overtaken:
        ordered = sorted(window)
        window.clear()
        window.extend(ordered)
