"""What is sent next, as a rule over time: no thread, no clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_runtime.telemetry.messages import Flow


def take(flow, last, now=0.0, floor=1, events=()):
    return flow.take(now, floor, last, events)


def test_the_newest_window_goes_first_and_the_backlog_follows_by_credit():
    flow = Flow()
    assert take(flow, 100, 1.0) == [100]
    assert take(flow, 100, 1.1) == []
    flow.confirmed(0, 3, 1.2)
    assert take(flow, 100, 1.2) == [1, 2, 3]
    flow.confirmed(3, 2, 1.3)
    assert take(flow, 100, 1.3) == [4, 5]


def test_a_window_that_is_cut_needs_no_credit():
    flow = Flow()
    take(flow, 100, 1.0)
    flow.confirmed(0, 0, 1.1)
    assert take(flow, 101, 2.0) == [101]
    flow.confirmed(0, 0, 2.1)
    assert take(flow, 102, 3.0) == [102]


def test_events_go_before_windows_and_need_no_credit():
    flow = Flow()
    assert take(flow, 100, 1.0, events=[7, 60]) == [7, 60, 100]
    flow.confirmed(0, 20, 1.1)
    assert take(flow, 100, 1.1, events=[7, 60]) == [*range(1, 7), *range(8, 22)]


def test_an_acknowledgement_without_credit_is_one_of_an_older_fleet():
    flow = Flow()
    take(flow, 100, 1.0)
    flow.confirmed(0, None, 1.1)
    assert take(flow, 100, 1.1) == list(range(1, 21))
    assert take(flow, 100, 1.1) == []


def test_what_was_sent_as_the_newest_is_not_sent_again_when_the_backlog_comes_to_it():
    flow, sent, stored, mark = Flow(), [], set(), 0
    for second in range(1, 40):
        last = 100 + second // 10
        seqs = take(flow, last, float(second))
        sent += seqs
        stored |= set(seqs)
        while mark + 1 in stored:
            mark += 1
        flow.confirmed(mark, 20, second + 0.1)
    assert mark == 103
    assert sorted(sent) == list(range(1, 104))


def test_a_new_connection_begins_at_the_oldest_that_is_not_confirmed():
    flow = Flow()
    take(flow, 10)
    flow.confirmed(4, 20, 0.5)
    take(flow, 10, 0.6)
    flow.begin()
    assert take(flow, 10, 1.0) == [10]
    flow.confirmed(4, 20, 1.1)
    assert take(flow, 10, 1.2) == [5, 6, 7, 8, 9]


def test_silence_is_probed_with_the_newest_window_ever_more_rarely():
    flow = Flow(patience_s=5.0, most_patience_s=30.0)
    probes = []
    for second in range(100):
        sent = take(flow, 10 + second // 60, float(second))
        if sent:
            probes.append((second, sent))
    assert [seqs for _, seqs in probes] == [[10], [10], [10], [10], [11], [11]]
    assert [b - a for (a, _), (b, _) in pairwise(probes)] == [5, 10, 20, 30, 30]
    assert flow.silent


def test_a_confirmation_opens_the_flow_again():
    flow = Flow()
    take(flow, 10)
    assert take(flow, 10, 6.0) == [10]
    flow.confirmed(1, 20, 6.5)
    assert not flow.silent
    assert take(flow, 10, 6.5) == list(range(2, 10))


def test_a_window_that_was_lost_is_sent_again_and_then_the_next_one_without_waiting():
    """2 and 4 of six were lost: the ingestor goes on confirming what is below them."""
    flow = Flow()
    take(flow, 6)
    flow.confirmed(0, 20, 0.1)
    assert take(flow, 6, 0.1) == [1, 2, 3, 4, 5]
    for tenth in range(2, 51):
        flow.confirmed(1, 20, tenth / 10)
        assert take(flow, 6, tenth / 10) == []
    assert take(flow, 6, 5.3) == [2]
    flow.confirmed(3, 20, 5.4)
    assert take(flow, 6, 5.4) == [4]
    flow.confirmed(6, 20, 5.5)
    assert take(flow, 6, 60.0) == []


def test_without_credit_one_window_asks_for_some():
    flow = Flow(trickle_s=30.0)
    take(flow, 100, 1.0)
    flow.confirmed(0, 0, 2.0)
    assert flow.due_s(3.0) == pytest.approx(29.0)
    assert take(flow, 100, 31.0) == []
    assert take(flow, 100, 32.0) == [1]
    assert take(flow, 100, 32.1) == []


def test_credit_that_is_not_used_ends():
    flow = Flow()
    take(flow, 1, 1.0)
    flow.confirmed(1, 20, 1.1)
    assert take(flow, 30, 9.0) == [30]


def test_what_the_board_gave_up_is_not_asked_for():
    flow = Flow()
    take(flow, 100, 1.0)
    flow.confirmed(0, 5, 1.1)
    assert take(flow, 100, 1.2, floor=50) == [50, 51, 52, 53, 54]


def test_a_late_mark_changes_nothing():
    flow = Flow()
    take(flow, 5)
    flow.confirmed(5, 20, 1.0)
    flow.confirmed(2, 20, 1.1)
    assert take(flow, 5, 1.2) == []


def test_it_is_due_when_the_patience_is_over_and_never_with_nothing_to_send():
    flow = Flow(patience_s=5.0)
    assert flow.due_s(1.0) is None, "nothing is on its way"
    take(flow, 1, 1.0)
    assert (flow.due_s(2.0), flow.due_s(100.0)) == (4.0, 0.0)
    flow.confirmed(1, 20, 2.0)
    assert flow.due_s(3.0) is None


def test_another_epoch_begins_at_its_first_window():
    flow = Flow()
    take(flow, 10)
    flow.confirmed(10, 20, 1.0)
    flow.forget()
    assert take(flow, 1, 2.0) == [1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3), st.booleans()), max_size=60), st.integers(0, 40)
)
def test_whatever_is_lost_everything_arrives_in_the_end(steps, backlog):
    """Messages and acknowledgements are lost, connections break, credit is scarce; then all is well again."""
    flow, stored, mark, last, now = Flow(), set(), 0, backlog, 0.0

    def turn(arrives, heard, credit):
        nonlocal mark, now
        now += 1.0
        seqs = take(flow, last, now)
        assert all(1 <= seq <= last for seq in seqs)
        if arrives:
            stored.update(seqs)
        while mark + 1 in stored:
            mark += 1
        if seqs and arrives and heard:
            flow.confirmed(mark, credit, now)

    for arrives, heard, credit, cuts in steps:
        last += cuts
        turn(arrives, heard, credit)
        if credit == 3 and not arrives:
            flow.begin()
    for _ in range(5000):
        if mark == last:
            break
        turn(True, True, 2)
    assert mark == last
