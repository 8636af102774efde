"""What is sent next, as a rule over time: no thread, no clock."""

from __future__ import annotations

from itertools import pairwise

from edgekit_runtime.telemetry import Flow


def send(flow, last, now=0.0):
    """Send what there is room for, of windows up to `last`; which ones those were."""
    start, room = flow.room(now)
    seqs = list(range(start + 1, min(last, start + room) + 1))
    for seq in seqs:
        flow.sent(seq, now)
    return seqs


def test_at_most_twenty_are_on_their_way():
    flow = Flow()
    assert send(flow, 100) == list(range(1, 21))
    assert send(flow, 100) == []
    flow.confirmed(5, 1.0)
    assert send(flow, 100, 1.0) == [21, 22, 23, 24, 25]


def test_a_new_connection_begins_at_the_oldest_that_is_not_confirmed():
    flow = Flow()
    send(flow, 10)
    flow.confirmed(4, 0.5)
    flow.begin()
    assert send(flow, 10) == [5, 6, 7, 8, 9, 10]


def test_silence_is_probed_with_one_window_ever_more_rarely():
    flow = Flow(patience_s=5.0, most_patience_s=30.0)
    send(flow, 10)
    probes = []
    for second in range(1, 100):
        sent = send(flow, 10, float(second))
        if sent:
            probes.append((second, sent))
    assert [seqs for _, seqs in probes] == [[1]] * len(probes)
    gaps = [b - a for (a, _), (b, _) in pairwise(probes)]
    assert probes[0][0] == 5
    assert gaps == [10, 20, 30, 30]


def test_a_confirmation_opens_the_flow_again():
    flow = Flow()
    send(flow, 10)
    assert send(flow, 10, 6.0) == [1]
    flow.confirmed(1, 6.5)
    assert send(flow, 10, 6.5) == list(range(2, 11))


def test_marks_that_do_not_move_are_no_progress():
    """A window in the middle was lost: the ingestor goes on confirming what is below it."""
    flow = Flow()
    send(flow, 3)
    flow.confirmed(1, 0.1)
    for tenth in range(2, 60):
        flow.confirmed(1, tenth / 10)
    assert send(flow, 3, 6.0) == [2]


def test_a_late_mark_changes_nothing():
    flow = Flow()
    send(flow, 5)
    flow.confirmed(5, 1.0)
    flow.confirmed(2, 1.1)
    assert flow.room(1.2) == (5, 20)


def probing():
    """A flow that was silent twice, and now waits for its probe of window 1."""
    flow = Flow(patience_s=5.0, most_patience_s=30.0)
    send(flow, 10)
    assert [send(flow, 10, at) for at in (5.0, 15.0)] == [[1], [1]]
    return flow


def test_it_is_due_when_the_patience_is_over():
    flow = Flow(patience_s=5.0)
    assert flow.due_s(1.0) is None, "nothing is on its way"
    send(flow, 2, now=1.0)
    assert (flow.due_s(2.0), flow.due_s(100.0)) == (4.0, 0.0)
    assert probing().due_s(16.0) == 19.0, "the patience doubles with each silence"


def test_a_confirmation_or_a_new_connection_ends_the_probing_and_its_patience():
    flow = probing()
    flow.confirmed(1, 16.0)
    assert flow.room(16.0) == (1, 20)
    send(flow, 2, now=17.0)
    assert flow.due_s(17.0) == 5.0
    flow = probing()
    flow.begin()
    assert flow.room(16.0) == (0, 20)
    send(flow, 2, now=17.0)
    assert flow.due_s(17.0) == 5.0


def test_another_epoch_begins_at_its_first_window():
    flow = probing()
    flow.confirmed(1, 16.0)
    send(flow, 5, now=16.0)
    flow.forget()
    assert flow.room(16.0) == (0, 20)
