"""The order of the queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.batching.queue import Lanes
from edgekit_runtime.batching.queued_request import QueuedRequest, RequestState

NEVER = float("inf")


def request(at, priority=0, due=NEVER):
    return QueuedRequest(f"{at}/{priority}", float(at), due, priority)


def drain(lanes):
    taken = []
    while (one := lanes.pop()) is not None:
        taken.append(one)
    return taken


def test_first_come_first_served_within_a_priority():
    lanes = Lanes()
    came = [request(t) for t in range(5)]
    for one in came:
        lanes.push(one)
    assert drain(lanes) == came


def test_a_higher_priority_goes_first():
    lanes = Lanes(age_s=10.0)
    low, high = request(0), request(1, priority=1)
    lanes.push(low)
    lanes.push(high)
    assert drain(lanes) == [high, low]


def test_waiting_counts_so_that_none_starves():
    lanes = Lanes(age_s=10.0)
    low, high = request(0), request(11, priority=1)
    lanes.push(low)
    lanes.push(high)
    assert drain(lanes) == [low, high]


def test_cancelled_requests_are_gaps():
    lanes = Lanes()
    came = [request(t) for t in range(100)]
    for one in came:
        lanes.push(one)
    for one in came[:80]:
        one.state = RequestState.ENDED
        lanes.dropped()
    assert len(lanes) == 20
    assert drain(lanes) == came[80:]
    assert len(lanes) == 0


def test_what_is_put_back_is_next():
    lanes = Lanes()
    first, second = request(0), request(1)
    lanes.push(first)
    lanes.push(second)
    lanes.push(lanes.pop(), back=True)
    assert drain(lanes) == [first, second]


def test_the_hopeless_are_taken_out_and_the_others_stay():
    lanes = Lanes()
    late, fine, open_end = request(0, due=5.0), request(1, due=50.0), request(2)
    for one in (late, fine, open_end):
        lanes.push(one)
    assert lanes.hopeless(before=4.0) == []
    assert lanes.hopeless(before=10.0) == [late]
    assert lanes.hopeless(before=10.0) == []
    assert drain(lanes) == [fine, open_end]


def test_how_many_would_go_before_a_newcomer():
    lanes = Lanes(age_s=10.0)
    for t in (0, 95):
        lanes.push(request(t))
    lanes.push(request(96, priority=1))
    assert lanes.ahead(priority=0, now=100.0) == 3
    assert lanes.ahead(priority=1, now=100.0) == 2, "the one that waits since 0 has aged past it, that of 95 has not"
    assert lanes.ahead(priority=2, now=100.0) == 1


moves = st.lists(st.tuples(st.sampled_from(["push", "pop", "cancel"]), st.integers(-2, 2)), max_size=60)


@given(moves)
def test_it_is_the_sorted_list_it_pretends_to_be(script):
    lanes, model = Lanes(age_s=3.0), []
    for now, (move, priority) in enumerate(script):
        if move == "push":
            one = request(now, priority)
            lanes.push(one)
            model.append(one)
        elif model and move == "cancel":
            one = model.pop(priority % len(model))
            one.state = RequestState.ENDED
            lanes.dropped()
        elif move == "pop":
            model.sort(key=lambda r: r.queued_at - r.priority * 3.0)
            taken = lanes.pop()
            assert (taken is None) == (not model)
            if taken is not None:
                key = taken.queued_at - taken.priority * 3.0
                assert key == model[0].queued_at - model[0].priority * 3.0
                model.remove(taken)
        assert len(lanes) == len(model)
        assert set(lanes) == set(model)
