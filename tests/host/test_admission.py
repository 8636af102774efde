"""Who is let in: arithmetic on a clock that the test owns."""

from __future__ import annotations

import asyncio
import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.host.admission import Admission
from edgekit.host.api import Api
from edgekit.host.connection import Server
from edgekit.host.http1 import Patience, overdue
from edgekit.host.models import Repository


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def admission(*times_ms, max_batch=1, clock=None, engines=1):
    made = Admission(max_batch, clock or Clock(), engines)
    for took in times_ms:
        made.ran(took)
    return made


def with_ahead(made, ahead):
    for _ in range(ahead):
        made.enter(None)
    return made


@pytest.mark.parametrize(
    ("ahead", "items", "max_batch", "wanted"),
    [
        (0, 1, 1, None),  # nothing is ahead: let in, whatever was learnt
        (0, 4, 1, None),
        (3, 1, 1, 40),
        (1, 4, 1, 50),
        (4, 4, 4, 20),
        (5, 1, 4, 30),
    ],
)
def test_what_is_ahead_counts_at_the_median_of_the_last_inferences(ahead, items, max_batch, wanted):
    made = with_ahead(admission(*[10] * 9, 20, max_batch=max_batch), ahead)
    assert made.needed_ms(items) == (None if wanted is None else pytest.approx(wanted / 0.9))  # a tenth for the way


@pytest.mark.parametrize(
    ("ahead", "items", "max_batch", "wanted"),
    [(1, 1, 1, None), (2, 1, 1, 20), (3, 1, 1, 20), (4, 1, 1, 30), (2, 4, 1, 30), (9, 1, 4, 20), (10, 1, 4, 30)],
)
def test_two_engines_share_what_is_ahead(ahead, items, max_batch, wanted):
    made = with_ahead(admission(*[10] * 9, max_batch=max_batch, engines=2), ahead)
    assert made.needed_ms(items) == (None if wanted is None else pytest.approx(wanted / 0.9))


def test_before_the_first_inference_everything_is_let_in():
    assert with_ahead(admission(), 9).needed_ms() is None


def test_a_run_that_is_late_is_expected_to_last_as_long_again():
    clock = Clock()
    made = with_ahead(admission(20, clock=clock), 1)
    clock.now = 0.015
    assert made.needed_ms() == pytest.approx((5 + 20) / 0.9)
    clock.now = 0.120
    assert made.needed_ms() == pytest.approx((100 + 20) / 0.9)


def test_answers_without_an_inference_are_no_run_that_lasts():
    clock = Clock()
    made = with_ahead(admission(20, clock=clock), 2)
    for clock.now in (0.1, 0.2, 0.3):
        made.leave(made.enter(None))
    assert made.needed_ms() == pytest.approx(3 * 20 / 0.9)


def test_one_stall_moves_nothing_and_one_good_inference_outweighs_many():
    for times in ([*[20] * 9, 600], [*[600] * 64, 20], [600, 20]):
        assert with_ahead(admission(*times), 1).needed_ms() == pytest.approx(40 / 0.9)


def answered_after(made, clock, *took_s):
    """Let one in at a time and answer it so much later."""
    for took in took_s:
        ticket = made.enter(None)
        clock.now += took
        made.leave(ticket)


def test_the_margin_is_what_most_answers_are_late_by_and_forgets_what_is_over():
    clock = Clock()
    made = admission(10, clock=clock)
    answered_after(made, clock, *[0.010] * 20)
    assert made.margin_ms == pytest.approx(0)
    answered_after(made, clock, *[0.015] * 20)  # 10 ms were expected
    assert made.margin_ms == pytest.approx(5)
    answered_after(made, clock, *[0.008] * 61)
    assert made.margin_ms == pytest.approx(0)


def test_those_that_wait_through_one_stall_count_once():
    clock = Clock()
    made = admission(10, clock=clock)
    answered_after(made, clock, *[0.010] * 30)
    tickets = [made.enter(None) for _ in range(8)]
    clock.now += 0.6
    for ticket in tickets:
        made.leave(ticket)
    assert (made.margin_ms, made.ahead) == (pytest.approx(0), 0)
    answered_after(made, clock, *[0.6] * 4)
    assert made.margin_ms == pytest.approx(590)


def test_an_item_without_an_answer_and_one_before_the_first_inference_teach_nothing():
    clock = Clock()
    made = admission(clock=clock)
    answered_after(made, clock, *[0.5] * 8)
    made.ran(10)
    for _ in range(8):
        ticket = made.enter(None)
        clock.now += 0.5
        made.leave(ticket, answered=False)
    assert made.margin_ms == 0


@pytest.mark.parametrize(
    ("now", "ahead", "starts"), [(0.079, 2, True), (0.081, 2, False), (0.099, 1, True), (0.101, 1, False)]
)
def test_whose_turn_has_come_starts_if_it_can_be_in_time_and_the_only_one_always(now, ahead, starts):
    clock = Clock()
    made = admission(10, clock=clock)
    tickets = [made.enter(0.1) for _ in range(ahead)]
    clock.now = now
    assert made.can_start(tickets[0], running=0) is starts


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=80), st.integers(0, 50), st.integers(1, 8), st.integers(1, 8))
def test_more_ahead_never_takes_less(times, ahead, items, max_batch):
    made = with_ahead(admission(*times, max_batch=max_batch), ahead)
    now = made.needed_ms(items) or 0.0
    made.enter(None)
    assert made.needed_ms(items) >= now


# A server whose clock the test owns: one engine, its queue, and arrivals by themselves.


@dataclass
class Simulated:
    """service_s: when an inference begins -> what it takes. unseen_s: what each costs beside the engine's own time.

    way_s: an answer's way to its caller, on average: seen by him alone. engines: side by side.
    """

    service_s: object
    unseen_s: float = 0.0
    budget_s: float = 0.1
    way_s: float = 0.0
    engines: int = 1
    outcomes: list = field(default_factory=list)  # (when it came, refused | late | met)

    def run(self, rate, seconds, seed=0):
        clock, rng, ways = Clock(), random.Random(seed), random.Random(7)
        made, queue, done, due = Admission(1, clock, self.engines), [], [], rng.expovariate(rate)
        while due < seconds or done:
            if done and done[0][0] <= due:
                clock.now, ticket, took_s = heapq.heappop(done)
                made.ran(took_s * 1e3)
                made.leave(ticket)
                at = clock.now + (ways.expovariate(1 / self.way_s) if self.way_s else 0)
                self.outcomes.append((ticket.came, "met" if at <= ticket.deadline else "late"))
            elif due < seconds:
                clock.now = due
                needed_ms = made.needed_ms()
                if needed_ms is None or needed_ms < self.budget_s * 1e3:
                    queue.append(made.enter(due + self.budget_s))
                else:
                    self.outcomes.append((due, "refused"))
                due += rng.expovariate(rate)
            else:
                due = float("inf")
            while queue and len(done) < self.engines:
                ticket = queue.pop(0)
                if not made.can_start(ticket, running=0):
                    made.leave(ticket, answered=False)
                    self.outcomes.append((ticket.came, "refused"))
                    continue
                took_s = self.service_s(clock.now)
                heapq.heappush(done, (clock.now + took_s + self.unseen_s, ticket, took_s))
        return self

    def share(self, what, since=0.0, until=float("inf"), among=("met", "late", "refused")):
        outcomes = [outcome for came, outcome in self.outcomes if since <= came < until and outcome in among]
        return outcomes.count(what) / len(outcomes)

    def goodput(self, seconds):
        return sum(outcome == "met" for _, outcome in self.outcomes) / seconds


def steady(mean_s=0.008, *, stalls=(), slow_share=0.0):
    """Service times that vary by a tenth; at some moments one takes 0.6 s, or some take four times as long."""
    rng, stalls = random.Random(1), list(stalls)

    def service_s(now):
        if stalls and now >= stalls[0]:
            stalls.pop(0)
            return 0.6
        slow = 4 if rng.random() < slow_share else 1
        return slow * mean_s * rng.lognormvariate(0, 0.1)

    return service_s


def test_after_an_inference_that_stalled_nobody_is_refused():
    ran = Simulated(steady(stalls=[10])).run(rate=10, seconds=20)
    assert ran.share("met", since=10.7) == 1
    assert ran.share("met") > 0.95


@pytest.mark.parametrize("stalls", [[10], [10, 10.7, 11.4, 12.1]], ids=["one", "four behind one another"])
def test_near_its_capacity_a_stall_costs_only_those_that_it_held_up(stalls):
    ran = Simulated(steady(stalls=stalls)).run(rate=0.9 * 125, seconds=30)
    assert ran.share("refused", since=stalls[-1] + 1, until=20) < 0.03
    assert ran.share("met", until=10) > 0.95


@pytest.mark.parametrize(
    ("server", "capacity"),
    [
        (Simulated(steady()), 125),
        (Simulated(steady(), unseen_s=0.003), 1 / 0.011),
        (Simulated(steady(slow_share=0.05)), 125 / 1.15),
        (Simulated(steady(stalls=[5])), 125),
        (Simulated(steady(), budget_s=0.02), 125),
        (Simulated(steady(), way_s=0.003), 125),
        (Simulated(steady(), engines=2), 250),
    ],
    ids=[
        "plain",
        "more than the engine says",
        "some are slow",
        "one stalls",
        "a budget of two inferences",
        "a way back",
        "two engines",
    ],
)
def test_ten_times_what_it_can_answer_leaves_the_goodput_near_capacity_and_few_answers_late(server, capacity):
    ran = server.run(rate=10 * capacity, seconds=20)
    assert ran.goodput(20) > 0.93 * capacity
    assert ran.share("late", among=("met", "late")) < 0.05


PATIENCE = Patience(idle=75, head=10, body=60, writing=30, lingering=2)


@pytest.mark.parametrize(
    ("state", "age_s", "ends"),
    [("idle", 74, False), ("idle", 76, True), ("head", 11, True), ("body", 59, False), ("body", 61, True),
     ("writing", 31, True), ("lingering", 3, True), ("busy", 1e9, False)],
)  # fmt: skip
def test_every_state_but_busy_has_its_time(state, age_s, ends):
    assert overdue(state, age_s, PATIENCE) is ends


def test_bytes_count_from_when_a_busy_loop_could_have_read_them():
    async def turns():
        clock = Clock()
        server = Server(Api(Repository([])), clock=clock)
        clock.now = 1.0
        seen = [server.came()]
        clock.now = 1.03  # this turn takes 30 ms; what is read in the next may have waited since it began
        seen.append(server.came())
        await asyncio.sleep(0)
        seen.append(server.came())
        clock.now = 1.05
        await asyncio.sleep(0)
        seen.append(server.came())
        for _ in range(3):
            await asyncio.sleep(0)
        clock.now = 9.0
        return [*seen, server.came()]

    assert asyncio.run(turns()) == [1.0, 1.0, 1.0, 1.03, 9.0]
