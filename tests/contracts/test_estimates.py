"""What every learnt estimate that can refuse must pass: after a slow spell it lets requests in again, within its bound.

Each case is a real part with an injected clock, which moves only by what the engine takes and by the pause between
requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest
import tiny

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.batching.costs import Costs
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.cache.memory_tier import MISS
from edgekit_runtime.cache.tiered import Cache, Worth
from edgekit_runtime.contract.spec import Contract
from edgekit_runtime.loading.readiness import Preparation, prepare
from edgekit_runtime.policy.budget import DeviceOutlook, decide
from edgekit_runtime.serving.device import Device
from edgekit_runtime.serving.request import Request
from edgekit_runtime.system.errors import BudgetExceeded

LONG = 30
SLOW_S, FAST_S, BUDGET_S, PAUSE_S = 0.5, 0.02, 0.2, 0.01


class Clock:
    """Moves when it is told to; one thread at a time moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Estimate:
    """One part that refuses by what it learnt. most_refused, most_s: its bound, in requests and in seconds."""

    most_refused, most_s = 0, 1.0

    def __init__(self) -> None:
        self.clock, self.takes_s = Clock(), SLOW_S

    def spell(self) -> None:
        """Learn that all is slow: many requests that are let in whatever they take."""
        raise NotImplementedError

    def ask(self) -> bool:
        """Whether a request with BUDGET_S to spare is let in."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what it holds."""

    def _run(self, items):
        self.clock.now += self.takes_s
        return list(items)


class OfBatcher(Estimate):
    """The queue: by call and by submit, in each way of sharing an engine.

    In the caller's thread and in the worker's.
    """

    def __init__(self, costs: Costs, way: str, *, inline: bool) -> None:
        super().__init__()
        self._way = way
        self._batcher = Batcher(self._run, costs, clock=self.clock, inline=inline)

    def spell(self) -> None:
        for _ in range(64):
            self._asked(float("inf"))

    def ask(self) -> bool:
        try:
            self._asked(self.clock() + BUDGET_S)
        except BudgetExceeded:
            return False
        return True

    def close(self) -> None:
        self._batcher.close(LONG)

    def _asked(self, due: float) -> None:
        if self._way == "call":
            self._batcher.call(1, due=due)
        else:
            self._batcher.submit(1, due=due).result(LONG)


class OfDevice(Estimate):
    """The prediction before the queue, with what the device does for a request that it refuses. A slow start, too."""

    most_refused, most_s = 60, 0.7

    def __init__(self, prepared, contract: Contract) -> None:
        super().__init__()
        self._prepared = replace(prepared, costs={1: SLOW_S})
        self._run_one = prepared.engine.run
        self._prepared.engine.run = self._slowly
        self._device = Device(contract, self._prepared, clock=self.clock)

    def spell(self) -> None:
        items = {"image": tiny.RED}
        for _ in range(64):
            self._device.finish(Request(), self._device.batcher.call(self._device.adapt(Request(), items)))

    def ask(self) -> bool:
        device, items = self._device, {"image": tiny.RED}
        if decide(BUDGET_S * 1e3, device.outlook()).destination == "neither":
            device.watch(items)
            if device._watch is not None:
                device._watch.result(LONG)
            return False
        request = Request(budget_ms=BUDGET_S * 1e3, start=self.clock())
        device.finish(request, device.batcher.call(device.adapt(request, items), due=request.due))
        return True

    def close(self) -> None:
        self._prepared.engine.close = lambda: None  # the next case uses it, too
        self._device.close(LONG)
        self._prepared.engine.run = self._run_one

    def _slowly(self, tensors):
        self.clock.now += self.takes_s
        return self._run_one(tensors)


class OfWorth(Estimate):
    """Whether looking up in a cache pays."""

    most_refused, most_s = 1000, 5.5

    def __init__(self) -> None:
        super().__init__()
        self._worth = Worth()

    def spell(self) -> None:
        for _ in range(64):
            self.ask()

    def ask(self) -> bool:
        paid = self._worth.pays(self.clock())
        self._worth.record_saving(FAST_S)
        if paid:
            self.clock.now += self.takes_s / 100
            self._worth.costs(self.takes_s / 100)
            self._worth.record_lookups(self.takes_s == FAST_S, self.clock())
        return paid


class OfDisk(Estimate):
    """Whether a disk that was slower than what is left is asked."""

    most_refused = 100
    tier = "disk"

    def __init__(self) -> None:
        super().__init__()
        self._looked = 0
        self._cache = Cache(disk=self, clock=self.clock)

    def find(self, key: bytes):
        self._looked += 1
        self.clock.now += self.takes_s
        return MISS

    def spell(self) -> None:
        for _ in range(8):
            self._cache.lookup(b"key")

    def ask(self) -> bool:
        before = self._looked
        self._cache.lookup(b"key", left_s=BUDGET_S)
        return self._looked > before


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    bundle = read_bundle(tiny.bundle(tmp_path_factory.mktemp("estimates"), "tflite-int8"))
    made = prepare(bundle, Preparation(batching=False))
    close = made.engine.close
    yield made, bundle.manifest.contract
    close()


WAYS: dict[str, Callable[[], Costs]] = {
    "barge": lambda: Costs({1: FAST_S}, hand_off_s=1.0),
    "turns": lambda: Costs({1: FAST_S}, hand_off_s=1e-6),
    "batch": lambda: Costs({1: FAST_S, 8: 2 * FAST_S}, hand_off_s=1e-6),
}
CASES = {
    f"queue, {mode}, {way}, {'inline' if inline else 'worker'}": lambda _, m=mode, w=way, i=inline: OfBatcher(
        WAYS[m](), w, inline=i
    )
    for mode in WAYS
    for way in ("call", "submit")
    for inline in (True, False)
} | {
    "prediction": lambda prepared: OfDevice(*prepared),
    "worth of a cache": lambda _: OfWorth(),
    "slow disk": lambda _: OfDisk(),
}


@pytest.fixture(params=CASES)
def estimate(request, prepared):
    made = CASES[request.param](prepared)
    yield made
    made.close()


def let_in_again(estimate: Estimate) -> tuple[int, float]:
    """(requests refused, seconds) until ten in a row were let in."""
    began, refused, row, last = estimate.clock(), 0, 0, estimate.clock()
    while row < 10:
        if estimate.ask():
            row += 1
        else:
            refused, row, last = refused + 1, 0, estimate.clock()
        estimate.clock.now += PAUSE_S
        assert estimate.clock() - began < 120, f"still refused after {refused} requests"
    return refused, last - began


def test_after_a_slow_spell_it_lets_requests_in_again(estimate):
    estimate.spell()
    estimate.takes_s = FAST_S
    refused, seconds = let_in_again(estimate)
    assert refused <= estimate.most_refused
    assert seconds <= estimate.most_s


def test_a_slow_start_heals(prepared):
    """A warm-up on a busy board took half a second; inferences take 20 ms, and the budget is 200 ms."""
    estimate = OfDevice(*prepared)
    estimate.takes_s = FAST_S
    refused, seconds = let_in_again(estimate)
    estimate.close()
    assert refused <= estimate.most_refused
    assert seconds <= estimate.most_s


def test_one_good_answer_heals_a_queue_behind_it():
    """What queued while a slow spell ended is judged by the run that showed it."""
    clock, begun, go = Clock(), threading.Semaphore(0), threading.Semaphore(0)
    takes_s = [SLOW_S]

    def run(items):
        begun.release()
        assert go.acquire(timeout=LONG)
        clock.now += takes_s[0]
        return list(items)

    batcher = Batcher(run, Costs({1: FAST_S}, hand_off_s=1e-6), clock=clock)
    for _ in range(32):
        go.release()
        batcher.submit(1).result(LONG)
        assert begun.acquire(timeout=LONG)
    takes_s[0] = FAST_S
    behind: list[Future] = [batcher.submit(1, due=clock() + BUDGET_S)]
    assert begun.acquire(timeout=LONG)
    behind += [batcher.submit(1, due=clock() + BUDGET_S) for _ in range(5)]
    for _ in behind:
        go.release()
    assert [future.result(LONG).result for future in behind] == [1] * 6
    batcher.close()


def test_a_stall_is_not_predicted_to_end_at_any_moment():
    clock, begun, go = Clock(), threading.Semaphore(0), threading.Event()

    def run(items):
        begun.release()
        go.wait(LONG)
        return list(items)

    batcher = Batcher(run, Costs({1: FAST_S}, hand_off_s=1e-6), clock=clock)
    running = batcher.submit(1)
    assert begun.acquire(timeout=LONG)
    expected = []
    for _ in range(4):
        queue_s, elapsed_s = batcher.ahead()
        outlook = DeviceOutlook((FAST_S * 1e3,), queue_ms=queue_s * 1e3, elapsed_ms=elapsed_s * 1e3)
        expected.append(outlook.expected_ms)
        clock.now += 0.1
    assert expected == pytest.approx([40, 120, 220, 320], abs=1)
    go.set()
    running.result(LONG)
    batcher.close()
