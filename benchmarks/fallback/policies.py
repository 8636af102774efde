"""The policies that are compared: edgekit's own, those that others use, and a bound that knows the future.

    result = play(trace, "edgekit")
    result.met, result.offloaded, max(result.at_ms)

Rules: `edgekit` is `edgekit_runtime.serving.offload` itself. A request is met if its caller had a full answer within
its budget. `bound` knows the future, so no policy meets more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from traces import Trace
from world import SimulatedDevice, SimulatedHost, SimulatedHosts, World

from edgekit_runtime.serving.offload import Errand, Offload

Ask = Callable[[int, float, float], None]


@dataclass
class PolicyResult:
    """What one policy made of a trace.

    requests: in all
    met: had a full answer in time
    offloaded: were sent to the host, hedges included
    busy_s: of the device; `wasted_s` of it were in vain
    at_ms: when each caller had its answer or error
    """

    requests: int
    met: int = 0
    offloaded: int = 0
    probes: int = 0
    busy_s: float = 0.0
    wasted_s: float = 0.0
    at_ms: list[float] = field(default_factory=list)
    sources: list[tuple[float, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.met / self.requests

    @property
    def offload(self) -> float:
        return self.offloaded / self.requests


class _Caller:
    """One request of a baseline: the first good answer counts, the deadline ends it."""

    def __init__(self, world: World, played: PolicyResult, index: int, came: float, due: float) -> None:
        self.world, self.played, self.index, self.came, self.due = world, played, index, came, due
        self.over = self.sent = False

    def answer(self, source: str) -> None:
        if self.over:
            return
        self.over = True
        now = self.world.now
        self.played.met += source != "none" and now <= self.due + 1e-9
        self.played.at_ms.append((now - self.came) * 1e3)
        self.played.sources.append((self.came, source))


class _Baseline:
    """A device and a host, and what a simple policy does with them."""

    def __init__(self, world: World, device: SimulatedDevice, host: SimulatedHost, played: PolicyResult) -> None:
        self.world, self.device, self.host, self.played = world, device, host, played
        self.host_ms: list[float] = []
        self.heard = -math.inf

    @classmethod
    def over(cls, world: World, devices: Sequence[SimulatedDevice], host: SimulatedHost, played: PolicyResult) -> Ask:
        """One for each device."""
        made = [cls(world, device, host, played) for device in devices]

        def ask(index: int, came: float, due: float) -> None:
            caller = _Caller(world, played, index, came, due)
            made[world.trace.device[index]].ask(caller)
            world.at(due, lambda: caller.answer("none"))

        return ask

    def ask(self, caller: _Caller) -> None:
        raise NotImplementedError

    def to_device(self, caller: _Caller, due: float | None = None) -> None:
        def done(result: object, error: BaseException | None) -> None:
            if error is None:
                caller.answer("device")

        taken = self.device.take(caller.index, caller.due if due is None else due, done)
        taken.unwanted = lambda: caller.over

    def to_host(self, caller: _Caller, failed: Callable[[], None] | None = None) -> None:
        caller.sent = True
        self.played.offloaded += caller.played is self.played
        sent, left_s = self.world.now, max(caller.due - self.world.now, 0.0)

        def done(result: object, error: BaseException | None) -> None:
            missed_ms = 2 * self.world.trace.scenario.budget_ms
            self.heard = self.world.now
            self.host_ms = [*self.host_ms[-49:], missed_ms if error else (self.world.now - sent) * 1e3]
            if error is None:
                caller.answer("host")
            elif failed is not None:
                failed()

        self.host.exchange(caller.index, left_s, left_s, done)

    def hedge_at(self, caller: _Caller, when: float) -> None:
        def hedge() -> None:
            if not caller.over:
                self.to_host(caller)

        self.world.at(when, hedge)


class _Device(_Baseline):
    def ask(self, caller: _Caller) -> None:
        self.to_device(caller)


class _SimulatedHost(_Baseline):
    def ask(self, caller: _Caller) -> None:
        self.to_host(caller)


class _HedgeP95(_Baseline):
    """The host is asked after the 95th percentile of the device's time."""

    def ask(self, caller: _Caller) -> None:
        self.to_device(caller)
        self.hedge_at(caller, self.world.now + _quantile(self.device.learned.ascending_ms, 0.95) / 1e3)


class _HedgeLate(_Baseline):
    """The host is asked at the last moment at which nine of ten of its answers would be in time."""

    def ask(self, caller: _Caller) -> None:
        self.to_device(caller)
        needs_ms = _quantile(sorted(self.host_ms), 0.95) if self.host_ms else 0.0
        self.hedge_at(caller, max(self.world.now, caller.due - needs_ms / 1e3))


class _Before(_Baseline):
    """edgekit's rule before there were chances: whose 90th percentile fits.
    What a host fails to answer queues on the device without a deadline."""

    def ask(self, caller: _Caller) -> None:
        left_ms = (caller.due - self.world.now) * 1e3
        device = self.device.outlook(0)
        host_ms = min(_quantile(sorted(self.host_ms), 0.9), self.host_ms[-1]) if self.host_ms else 0.0
        if device.p90_ms <= left_ms:
            self.to_device(caller)
        elif host_ms <= left_ms:
            self.to_host(caller, failed=lambda: self.to_device(caller, math.inf))
        else:
            if self.world.now - self.heard > EXPLORED_S:
                self.heard = self.world.now
                self.to_host(_Caller(self.world, PolicyResult(1), caller.index, caller.came, caller.due))
            if device.expected_ms <= left_ms:
                self.to_device(caller)
            else:
                caller.answer("none")


EXPLORED_S = 0.25
BASELINES: dict[str, type[_Baseline]] = {
    "always device": _Device,
    "always host": _SimulatedHost,
    "hedge at p95": _HedgeP95,
    "hedge at D - host": _HedgeLate,
    "before": _Before,
}
POLICIES = ("edgekit", *BASELINES)


def play(trace: Trace, policy: str) -> PolicyResult:
    """Run the whole trace under one policy."""
    world, played = World(trace), PolicyResult(len(trace.arrivals_s))
    host = SimulatedHost(world)
    devices = [SimulatedDevice(world) for _ in range(trace.scenario.devices)]
    make = _edgekit if policy == "edgekit" else BASELINES[policy].over
    ask = make(world, devices, host, played)
    budget_s = trace.scenario.budget_ms / 1e3
    for index, came in enumerate(trace.arrivals_s):
        world.at(float(came), lambda i=index, t=float(came): ask(i, t, t + budget_s))
    world.run()
    played.busy_s = sum(device.busy_s for device in devices)
    played.wasted_s = sum(device.wasted_s for device in devices)
    return played


def _edgekit(world: World, devices: Sequence[SimulatedDevice], host: SimulatedHost, played: PolicyResult) -> Ask:
    hosts = [SimulatedHosts(world, host, seed) for seed in range(len(devices))]
    policies = [Offload(device, rooms, world.clock, world.at) for device, rooms in zip(devices, hosts, strict=True)]

    def ask(index: int, came: float, due: float) -> None:
        def ended(source: str, result: object, error: BaseException | None) -> None:
            played.met += source != "neither" and world.now <= due + 1e-9
            played.at_ms.append((world.now - came) * 1e3)
            played.sources.append((came, source))
            if errand.at_host:
                played.offloaded += 1

        errand = Errand(index, due, 1, ended)
        offload = policies[world.trace.device[index]]
        decision = offload.decide(errand)
        offload.begin(errand, decision)
        if decision.destination == "neither":
            errand.end("neither")

    return ask


def bound(trace: Trace) -> float:
    """The share that no policy exceeds.
    Every request whose host would answer in time is met, and of the others as many as one device can serve, each
    started at the best moment. With several devices the host's capacity is a bound, too."""
    scenario, n = trace.scenario, len(trace.arrivals_s)
    away = np.array([_host_in_time(trace, index) for index in range(n)])
    devices = range(scenario.devices)
    alone = sum(_most_in_time(trace, np.flatnonzero(~away & (trace.device == one))) for one in devices)
    met = int(away.sum()) + alone
    if scenario.devices > 1:
        served = trace.seconds * scenario.host_slots * 1e3 / scenario.host_ms
        everything = sum(_most_in_time(trace, np.flatnonzero(trace.device == one)) for one in devices)
        met = min(met, int(served) + everything)
    return met / n


def _host_in_time(trace: Trace, index: int) -> bool:
    came = float(trace.arrivals_s[index])
    due = came + trace.scenario.budget_ms / 1e3
    starts = [came, *(end for spells in (trace.bad, trace.gone, trace.slow, trace.busy) for end in
                      spells.ends_between(came, due))]  # fmt: skip
    for start in starts:
        ways = trace.network_s(index, start)
        if ways is None:
            continue
        there, back = ways
        begun = start + there
        begun = next((end for end in trace.busy.ends_between(begun, due)), begun) if trace.busy.within(begun) else begun
        if not trace.busy.within(begun) and begun + trace.at_host_s(index, begun) + back <= due:
            return True
    return False


def _most_in_time(trace: Trace, indexes: np.ndarray) -> int:
    """How many of these one device can serve, each at its best speed.
    With one budget for all the order of arrival is the order of deadlines, and then the earliest end for every number
    of requests is found step by step."""
    ends = np.array([-np.inf])
    budget_s = trace.scenario.budget_ms / 1e3
    for index in indexes:
        came = float(trace.arrivals_s[index])
        due = came + budget_s
        moments = [came, *trace.hot.ends_between(came, due)]
        takes_s = min(trace.device_s(index, moment) for moment in moments)
        done = np.maximum(ends, came) + takes_s
        done[done > due] = np.inf
        ends = np.minimum(np.append(ends, np.inf), np.append(-np.inf, done))
        ends = ends[: np.searchsorted(ends, np.inf)]
    return len(ends) - 1


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[math.ceil(share * len(ascending)) - 1]
