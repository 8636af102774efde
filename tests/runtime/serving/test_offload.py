"""One request between a device and a host, on a clock that jumps from event to event."""

from __future__ import annotations

import heapq
import math
import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.policy.budget import DeviceOutlook, HostOutlook, OffloadDecision
from edgekit_runtime.serving.offload import Errand, Offload
from edgekit_runtime.system.errors import BudgetExceeded, HostError

COOL, MAYBE, HOT = (20.0,) * 20, (20.0,) * 10 + (90.0,) * 10, (90.0,) * 20
GOOD, DOUBTFUL, NONE = (12.0,) * 20, (12.0, math.inf) * 10, ()


class World:
    """takes_ms, answers_ms: what the device and the host really take this time; an exception is a failure, which comes
    at once. expected, known: what they took before."""

    def __init__(self, *, expected=COOL, known=GOOD, takes_ms=20.0, answers_ms=12.0, busy=False):
        self.now, self._agenda, self._order = 0.0, [], count()
        self.expected, self.known = expected, known
        self.takes_ms, self.answers_ms = takes_ms, answers_ms
        self.log, self.watched, self.mattered, self.busy = [], 0, 0, busy
        self._began = None
        self.policy = Offload(self, self, lambda: self.now, self.at)

    def at(self, when, what):
        heapq.heappush(self._agenda, (when, next(self._order), what))

    def ask(self, budget_ms=60.0, size=1):
        ends, late = [], []
        errand = Errand(
            "work", self.now + budget_ms / 1e3, size,
            lambda source, result, error: ends.append((source, round(self.now * 1e3, 3), error)),
            late=lambda source, result: late.append((source, round(self.now * 1e3, 3))),
        )  # fmt: skip
        decision = self.policy.decide(errand)
        self.policy.begin(errand, decision)
        while self._agenda:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        self.ends, self.late, self.errand = ends, late, errand
        return ends[0][:2] if ends else (decision.destination,)

    # The device.

    def outlook(self, priority):
        elapsed_ms = None if self._began is None else (self.now - self._began) * 1e3
        return DeviceOutlook(sorted(self.expected), elapsed_ms=elapsed_ms)

    def idle(self):
        return self._began is None and not self.busy

    def watch(self, errand):
        self.watched += 1

    # The hosts.

    def outlooks(self, size):
        return () if size is None else (HostOutlook(self.known, ready=bool(self.known)),)

    def matter(self):
        self.mattered += 1

    def look(self):
        pass

    # Both: a host is started with an index.

    def start(self, *arguments):
        if len(arguments) == 2:
            return self._start_device(*arguments)
        return self._start_host(*arguments)

    def _start_device(self, errand, done):
        self.log.append(("device", round(self.now * 1e3, 3)))
        self._began = self.now
        self._end(self.takes_ms, done)
        return self

    def _start_host(self, index, errand, left_s, patience_s, done):
        self.log.append(("host", round(self.now * 1e3, 3)))
        self.patience_s = patience_s
        self._end(self.answers_ms, done)

    def _end(self, takes, done):
        if isinstance(takes, Exception):
            self.at(self.now, lambda: done(None, takes))
        elif takes < math.inf:
            self.at(self.now + takes / 1e3, lambda: done("answer", None))

    def cancel(self):
        self.log.append(("cancel", round(self.now * 1e3, 3)))

    def chance(self, left_ms):
        return self.outlook(0).finishes(left_ms)


def test_a_device_that_is_sure_answers_alone():
    world = World()
    assert world.ask() == ("device", 20.0)
    assert world.log == [("device", 0.0)]
    assert world.mattered == 0


def test_a_device_without_hope_is_left_alone_and_tried_with_a_copy():
    world = World(expected=HOT)
    assert world.ask() == ("host", 12.0)
    assert world.log == [("host", 0.0)]
    assert (world.watched, world.mattered) == (1, 1)


def test_at_the_deadline_the_caller_hears_what_failed_before():
    world = World(expected=HOT, known=(40.0,) * 20, takes_ms=math.inf, answers_ms=HostError("gone"))
    world.expected = COOL  # by the time that the host fails, there is some hope on the device
    errand = Errand("work", 0.06, 1, lambda *ended: ends.append((ended[0], ended[2])))
    ends = []
    world.policy.begin(errand, OffloadDecision("host", 0, 40.0, True))
    while world._agenda:
        world.now, _, what = heapq.heappop(world._agenda)
        what()
    assert [name for name, _ in world.log] == ["host", "device", "cancel"]
    assert (ends[0][0], ends[0][1].what) == ("neither", "gone")


def test_asking_both_takes_a_token_and_each_request_earns_a_share_of_one():
    world = World(expected=MAYBE, known=DOUBTFUL)
    world.ask()
    assert {source for source, _ in world.log[:2]} == {"device", "host"}
    assert world.policy._tokens.left == pytest.approx(19.0)
    world.expected, world._began = COOL, None
    world.ask()
    assert world.policy._tokens.left == pytest.approx(19.15)


def test_what_is_asked_of_device_and_hosts_holds_no_other_request_up():
    world, decided = World(), []
    outlook = world.outlook

    def slow(priority):
        world.outlook = outlook
        other = threading.Thread(target=lambda: decided.append(world.policy.decide(Errand("work", 1.0, 1, print))))
        other.start()
        other.join(10.0)
        return outlook(priority)

    world.outlook = slow
    world.policy.decide(Errand("work", 1.0, 1, print))
    assert len(decided) == 1


def test_late_hedge_at_the_last_moment_at_which_the_host_may_answer():
    world = World(takes_ms=200.0)
    assert world.ask() == ("host", 59.0)
    assert world.log[:2] == [("device", 0.0), ("host", 47.0)]
    assert world.late == [("device", 200.0)]


def test_no_hedge_for_a_device_that_is_sure_to_be_done():
    world = World(expected=(50.0,) * 20, takes_ms=50.0)
    assert world.ask() == ("device", 50.0)
    assert world.log == [("device", 0.0)]


def test_no_hedge_without_a_token():
    world = World(takes_ms=200.0)
    while world.policy._tokens.take():
        pass
    assert world.ask() == ("neither", 60.0)
    assert world.log[0] == ("device", 0.0)
    assert "host" not in dict(world.log)


@pytest.mark.parametrize(("busy", "answered"), [(False, ("device", 59.0)), (True, ("neither", 60.0))])
def test_local_backup_at_the_last_moment_on_a_device_that_is_idle(busy, answered):
    world = World(expected=(20.0,) * 17 + (90.0,) * 3, answers_ms=math.inf, busy=busy)
    assert world.ask() == answered
    assert world.log[0] == ("host", 0.0)
    assert world.log[1:] == ([] if busy else [("device", 39.0)])


def test_both_are_asked_where_neither_is_likely():
    world = World(expected=MAYBE, known=DOUBTFUL, takes_ms=90.0)
    assert world.ask() == ("host", 12.0)
    assert [name for name, _ in world.log] == ["host", "device", "cancel"]


def test_a_host_that_fails_leaves_the_rest_of_the_time_to_the_device():
    world = World(expected=MAYBE, answers_ms=HostError("gone"))
    assert world.ask() == ("device", 20.0)


def test_a_host_that_fails_where_the_device_has_no_chance_is_told_at_once():
    world = World(expected=HOT, answers_ms=HostError("gone"))
    assert world.ask() == ("neither", 0.0)
    assert isinstance(world.ends[0][2], HostError)


def test_a_device_that_fails_leaves_the_rest_of_the_time_to_the_host():
    world = World(takes_ms=BudgetExceeded("the queue is too long"))
    assert world.ask() == ("host", 12.0)


def test_where_both_fail_the_caller_hears_it_once():
    world = World(expected=MAYBE, known=DOUBTFUL, takes_ms=BudgetExceeded("full"), answers_ms=HostError("gone"))
    assert world.ask() == ("neither", 0.0)
    assert len(world.ends) == 1


@pytest.mark.parametrize("slow", [{"takes_ms": math.inf, "known": NONE}, {"expected": HOT, "answers_ms": math.inf}])
def test_at_the_deadline_it_is_over(slow):
    world = World(**slow)
    assert world.ask() == ("neither", 60.0)
    assert world.ends[0][2] is None


def test_a_host_that_is_late_is_waited_for_to_learn_how_late():
    world = World(expected=HOT, answers_ms=100.0)
    assert world.ask() == ("neither", 60.0)
    assert world.late == [("host", 100.0)]
    assert world.patience_s == pytest.approx(0.06 + 0.25)


def test_what_must_not_travel_stays():
    assert World(expected=HOT).ask(size=None) == ("neither",)
    assert World().ask(size=None) == ("device", 20.0)


def test_one_that_is_over_keeps_nothing_alive_until_its_deadline():
    world = World()
    world.ask(budget_ms=1e9)
    assert world.errand.work is None
    assert not world.errand.taken
    assert world.errand.ended.__closure__ is None


TAKES = st.one_of(st.floats(0.1, 200), st.just(math.inf), st.just(BudgetExceeded("no")))
WINDOWS = st.lists(st.floats(1, 150), min_size=1, max_size=20)


@given(WINDOWS, st.lists(st.one_of(st.floats(1, 150), st.just(math.inf)), max_size=20), TAKES, TAKES, st.floats(1, 120))
def test_whatever_happens_a_request_ends_once_and_by_its_deadline(expected, known, takes, answers, budget_ms):
    world = World(expected=expected, known=known, takes_ms=takes, answers_ms=answers)
    asked = world.ask(budget_ms=budget_ms)
    if asked == ("neither",):
        assert not world.ends
    else:
        assert len(world.ends) == 1
        assert world.ends[0][1] <= budget_ms + 1e-3
    assert [name for name, _ in world.log].count("host") <= 1
    assert [name for name, _ in world.log].count("device") <= 1


class Small:
    """A degraded artifact that takes 5 ms, one request after another."""

    def __init__(self, world, services=(5.0,) * 20, takes_ms=5.0):
        self.world, self.services, self.takes_ms = world, services, takes_ms
        self.free, self.watched, self.began = 0.0, 0, []

    def outlook(self, priority):
        queue_ms = max(0.0, self.free - self.world.now) * 1e3
        return DeviceOutlook(self.services, queue_ms=queue_ms)

    def watch(self, errand):
        self.watched += 1

    def start(self, errand, done):
        world = self.world
        world.log.append(("degraded", round(world.now * 1e3, 3)))
        self.began.append(round(world.now * 1e3, 3))
        if isinstance(self.takes_ms, Exception):
            raise self.takes_ms
        self.free = max(world.now, self.free) + self.takes_ms / 1e3
        world.at(self.free, lambda: done("small", None))
        return self

    def cancel(self):
        self.world.log.append(("leave", round(self.world.now * 1e3, 3)))


def small(world, **how):
    made = Small(world, **how)
    world.policy = Offload(world, world, lambda: world.now, world.at, made)
    return made


def test_the_degraded_artifact_answers_at_the_deadline_where_the_device_has_not():
    world = World(takes_ms=200.0, known=NONE)
    small(world)
    assert world.ask() == ("degraded", 60.0)
    # it begins at the last moment at which it is sure to be in time, and at the deadline the request leaves the queue
    assert world.log == [("device", 0.0), ("degraded", 49.0), ("cancel", 60.0)]
    assert world.late == [("device", 200.0)]  # and is kept for the next one who asks


def test_the_full_answer_wins_though_the_degraded_one_was_there_first():
    world = World(expected=(20.0,) * 10 + (58.0,) * 8 + (70.0,) * 2, takes_ms=58.0, known=NONE)
    small(world, services=(20.0,) * 20)
    assert world.ask() == ("device", 58.0)
    assert world.log == [("device", 0.0), ("degraded", 34.0)]


@pytest.mark.parametrize("first", ["device", "host"])
def test_a_degraded_answer_that_is_not_needed_any_more_leaves_its_queue(first):
    slow = (20.0,) * 10 + (58.0,) * 8 + (70.0,) * 2
    world = World(expected=slow if first == "device" else HOT, known=GOOD if first == "host" else NONE)
    world.takes_ms = world.answers_ms = 48.0
    small(world, services=(20.0,) * 20, takes_ms=20.0)
    assert world.ask() == (first, 48.0)
    assert world.log[-2:] == [("degraded", 34.0), ("leave", 48.0)]


def test_a_device_that_is_sure_to_end_in_time_has_no_degraded_artifact_beside_it():
    world = World(expected=(57.0,) * 20, takes_ms=57.0, known=NONE)
    degraded = small(world)
    assert world.ask() == ("device", 57.0)
    assert not degraded.began


def test_where_nobody_can_be_in_time_the_degraded_artifact_answers_at_once():
    world = World(expected=HOT, known=NONE)
    small(world)
    assert world.ask() == ("degraded", 5.0)
    assert world.log == [("degraded", 0.0)]
    assert world.watched == 1  # so that the device is known to be fast again


def test_a_degraded_artifact_that_may_be_late_itself_is_not_asked_but_watched():
    world = World(expected=HOT, known=NONE)
    degraded = small(world, services=(5.0,) * 10 + (80.0,) * 10)
    assert world.ask() == ("neither",)
    assert (degraded.began, degraded.watched) == ([], 1)
    world = World(expected=(20.0,) * 12 + (90.0,) * 8, takes_ms=200.0, known=NONE)
    degraded = small(world, services=(5.0,) * 10 + (80.0,) * 10)
    assert world.ask() == ("neither", 60.0)
    assert (degraded.began, degraded.watched) == ([], 1)


@pytest.mark.parametrize("expected", [COOL, HOT])
def test_where_all_others_failed_the_degraded_artifact_answers_at_once(expected):
    world = World(expected=expected, takes_ms=HostError("x"), answers_ms=HostError("x"))
    small(world)
    assert world.ask() == ("degraded", 5.0)


def test_a_degraded_answer_waits_for_a_host_and_ends_the_request_where_that_fails():
    world = World(expected=HOT, answers_ms=math.inf)
    small(world)
    assert world.ask() == ("degraded", 60.0)
    world = World(expected=HOT, known=(40.0,) * 20, answers_ms=200.0)
    small(world)
    world.at(0.052, lambda: world.policy._failed(world.errand, "host", HostError("x")))
    errand = Errand("work", 0.06, 1, lambda *ended: ends.append((ended[0], world.now)))
    world.errand, ends = errand, []
    world.policy.begin(errand, world.policy.decide(errand))
    while world._agenda:
        world.now, _, what = heapq.heappop(world._agenda)
        what()
    assert ends == [("degraded", pytest.approx(0.054))]


def test_a_degraded_artifact_that_fails_costs_nobody_his_answer():
    world = World(expected=(20.0,) * 12 + (90.0,) * 8, takes_ms=59.0, known=NONE)
    degraded = small(world, takes_ms=BudgetExceeded("full"))
    assert world.ask() == ("device", 59.0)
    assert degraded.began == [49.0]
    world = World(expected=HOT, known=NONE)
    small(world, takes_ms=BudgetExceeded("full"))
    assert world.ask() == ("neither", 0.0)
    assert world.ends[0][2].what == "full"


def test_those_that_are_due_at_once_take_turns_and_each_has_a_degraded_answer():
    world = World(takes_ms=math.inf, known=NONE)
    degraded = small(world)
    ends = []
    for _ in range(4):
        errand = Errand("work", 0.06, 1, lambda source, *_: ends.append((source, round(world.now * 1e3))))
        world.policy.begin(errand, world.policy.decide(errand))
    while world._agenda:
        world.now, _, what = heapq.heappop(world._agenda)
        what()
    assert ends == [("degraded", 60)] * 4
    assert degraded.began == [34.0, 39.0, 44.0, 49.0]
    assert not world.policy._starts


@given(
    budget=st.floats(1, 200),
    expected=st.lists(st.floats(1, 200), min_size=1, max_size=30).map(tuple),
    known=st.lists(st.floats(1, 200) | st.just(math.inf), max_size=30).map(tuple),
    services=st.lists(st.floats(1, 100), min_size=1, max_size=30).map(sorted),
    takes_ms=st.floats(1, 400) | st.just(HostError("x")),
    answers_ms=st.floats(1, 400) | st.sampled_from([math.inf, HostError("x")]),
    small_ms=st.floats(1, 100) | st.just(BudgetExceeded("full")),
)
def test_with_a_degraded_artifact_too_a_request_ends_once_and_by_its_deadline(
    budget, expected, known, services, takes_ms, answers_ms, small_ms
):
    world = World(expected=expected, known=known, takes_ms=takes_ms, answers_ms=answers_ms)
    small(world, services=services, takes_ms=small_ms)
    ended = world.ask(budget)
    assert len(world.ends) == (0 if ended == ("neither",) else 1)
    assert all(ms <= budget + 0.01 for _, ms, _ in world.ends)
    assert not world.policy._starts
