"""What happens in a simulated hour, drawn once a seed and given to every policy alike.

    trace = draw(SCENARIOS["LAN 35/s"], seed=3, requests=5000)

Rules: the same seed gives the same arrivals, service times, network delays and losses to each policy; what depends on
when a request is started (a device that is hot, a network that is bad) is a function of that time alone.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scenario:
    """One device, or several with one host. Times in milliseconds unless the name ends in `_s`.

    rate: requests a second of each device. burst: mean number that arrive together. service_ms: of the device, cool;
    hot_factor: slower while hot; hot_s, hot_every_s: lengths of those spells. rtt_ms: median of the network, both ways;
    bad_factor, bad_loss: while it is bad. host_ms, host_slots: of the host. outage_s: it is gone for so long in the
    middle. slow_factor: it is slower for a third of the time. busy_s: it says 503 for so long every 20 s.
    """

    rate: float
    budget_ms: float = 60.0
    burst: float = 1.0
    service_ms: float = 20.0
    straggle: float = 0.01
    hot_factor: float = 2.2
    hot_s: float = 8.0
    hot_every_s: float = 38.0
    rtt_ms: float = 12.0
    bad_factor: float = 8.0
    bad_loss: float = 0.08
    bad_s: float = 2.0
    bad_every_s: float = 20.0
    loss: float = 0.002
    host_ms: float = 4.0
    host_slots: int = 4
    outage_s: float = 0.0
    slow_factor: float = 1.0
    busy_s: float = 0.0
    devices: int = 1

    @property
    def capacity(self) -> float:
        """Requests a second that a cool device serves."""
        return 1e3 / self.service_ms


SCENARIOS: dict[str, Scenario] = {
    "LAN 15/s": Scenario(15.0),
    "LAN 35/s": Scenario(35.0),
    "LAN 60/s": Scenario(60.0),
    "WAN 35/s": Scenario(35.0, rtt_ms=35.0),
    "WAN 60/s": Scenario(60.0, rtt_ms=35.0),
    "LAN 35/s, outage": Scenario(35.0, outage_s=60.0),
    "LAN 60/s, outage": Scenario(60.0, outage_s=60.0),
    "calm 35/s": Scenario(35.0, hot_s=0.0, bad_s=0.0),
    "bursts of 4, 25/s": Scenario(25.0, burst=4.0),
    "slow host, 35/s": Scenario(35.0, slow_factor=20.0),
    "busy host, 35/s": Scenario(35.0, busy_s=3.0),
    "8 devices, one host": Scenario(35.0, devices=8, host_ms=16.0),
}
"""Name -> scenario."""


class Spells:
    """Stretches of time, in seconds: `within(t)` says whether t is in one."""

    def __init__(self, spells: list[tuple[float, float]]) -> None:
        self._starts = [start for start, _ in spells]
        self._ends = [end for _, end in spells]

    def within(self, t: float) -> bool:
        index = bisect_right(self._starts, t) - 1
        return index >= 0 and t < self._ends[index]

    def ends_between(self, start: float, end: float) -> list[float]:
        """When spells end in this time."""
        return [at for at in self._ends[bisect_right(self._ends, start) :] if at <= end]

    @classmethod
    def drawn(cls, random: np.random.Generator, length_s: float, every_s: float, until_s: float) -> Spells:
        """Spells of about this length, a random while apart."""
        spells, t = [], random.uniform(0, max(every_s - length_s, 0.1))
        while length_s > 0 and t < until_s:
            length = length_s * random.uniform(0.7, 1.3)
            spells.append((t, t + length))
            t += length + (every_s - length_s) * random.uniform(0.6, 1.4)
        return cls(spells)


@dataclass(frozen=True)
class Trace:
    """arrivals_s: ascending.
    device: which one of several.
    service_ms: on a cool device.
    out_ms, back_ms: of the good network.
    dice: uniform, for a loss on the way."""

    scenario: Scenario
    arrivals_s: np.ndarray
    device: np.ndarray
    service_ms: np.ndarray
    out_ms: np.ndarray
    back_ms: np.ndarray
    host_ms: np.ndarray
    dice: np.ndarray
    hot: Spells
    bad: Spells
    gone: Spells
    slow: Spells
    busy: Spells

    @property
    def seconds(self) -> float:
        return float(self.arrivals_s[-1])

    def device_s(self, index: int, start_s: float) -> float:
        """How long request `index` runs on the device, started then."""
        factor = self.scenario.hot_factor if self.hot.within(start_s) else 1.0
        return float(self.service_ms[index]) * factor / 1e3

    def network_s(self, index: int, sent_s: float) -> tuple[float, float] | None:
        """(there, back); None where it is lost."""
        bad = self.bad.within(sent_s)
        if self.gone.within(sent_s) or self.dice[index] < (self.scenario.bad_loss if bad else self.scenario.loss):
            return None
        factor = (self.scenario.bad_factor if bad else 1.0) / 1e3
        return float(self.out_ms[index]) * factor, float(self.back_ms[index]) * factor

    def at_host_s(self, index: int, start_s: float) -> float:
        factor = self.scenario.slow_factor if self.slow.within(start_s) else 1.0
        return float(self.host_ms[index]) * factor / 1e3


def draw(scenario: Scenario, seed: int, requests: int) -> Trace:
    """requests: of all devices together."""
    random = np.random.default_rng([seed, 2026])
    rate = scenario.rate * scenario.devices
    if scenario.burst > 1:
        sizes = random.geometric(1 / scenario.burst, requests)
        starts = np.cumsum(random.exponential(scenario.burst / rate, requests))
        arrivals = np.sort(np.repeat(starts, sizes)[:requests] + random.uniform(0, 2e-3, requests))
    else:
        arrivals = np.cumsum(random.exponential(1 / rate, requests))
    until = float(arrivals[-1]) + 5.0
    service = scenario.service_ms * random.lognormal(0.0, 0.08, requests)
    service *= np.where(random.random(requests) < scenario.straggle, 3.0, 1.0)
    half = scenario.rtt_ms / 2

    def spells(length: float, every: float) -> Spells:
        return Spells.drawn(random, length, every, until)

    middle, third = until / 2, until / 3
    outage, slow = scenario.outage_s, scenario.slow_factor > 1
    return Trace(
        scenario,
        arrivals,
        random.integers(0, scenario.devices, requests),
        service,
        half * random.lognormal(0.0, 0.45, requests),
        half * random.lognormal(0.0, 0.45, requests),
        scenario.host_ms * random.lognormal(0.0, 0.1, requests),
        random.random(requests),
        hot=spells(scenario.hot_s, scenario.hot_every_s),
        bad=spells(scenario.bad_s, scenario.bad_every_s),
        gone=Spells([(middle - outage / 2, middle + outage / 2)] if outage else []),
        slow=Spells([(third, 2 * third)] if slow else []),
        busy=spells(scenario.busy_s, 20.0),
    )
