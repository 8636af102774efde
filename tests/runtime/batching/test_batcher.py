"""The batcher's contract: nobody waits for ever, nobody pays for another's mistake."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest
from gated import LONG, Gate, assumed, blocked, results
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.batching.batcher import Batcher
from edgekit_runtime.system.errors import ClosedError


def test_a_lone_caller_runs_at_once_in_its_own_thread():
    threads = []

    def run(items):
        threads.append(threading.current_thread())
        return items

    batcher = Batcher(run, assumed(8))
    served = batcher.call("x")
    assert (served.result, served.queued_s, served.batch) == ("x", 0.0, 1)
    assert threads == [threading.current_thread()]
    batcher.close()


def test_what_queued_while_the_engine_was_busy_becomes_one_batch_in_order():
    gate, batcher, first = blocked()
    later = [batcher.submit(n) for n in (2, 3, 4)]
    gate.open.set()
    assert results([first, *later]) == [2, 4, 6, 8]
    assert gate.batches == [[1], [2, 3, 4]]
    batcher.close()


def test_a_batch_never_exceeds_its_bound():
    gate, batcher, first = blocked(max_batch=2)
    later = [batcher.submit(n) for n in range(5)]
    gate.open.set()
    results([first, *later])
    assert [len(batch) for batch in gate.batches] == [1, 2, 2, 1]
    batcher.close()


def test_cancelled_caller_never_affects_its_batch_mates():
    gate, batcher, first = blocked()
    mates = [batcher.submit(2), batcher.submit(3), batcher.submit(4)]
    assert mates[1].cancel()
    gate.open.set()
    assert results([first, mates[0], mates[2]]) == [2, 4, 8]
    assert gate.batches == [[1], [2, 4]]
    with pytest.raises(CancelledError):
        mates[1].result(LONG)
    batcher.close()


def test_all_cancelled_callers_leave_the_batcher_alive():
    gate, batcher, first = blocked()
    assert all(future.cancel() for future in [batcher.submit(2), batcher.submit(3)])
    gate.open.set()
    assert results([first, batcher.submit(5)]) == [2, 10]
    batcher.close()


def test_an_engine_that_fails_on_every_input_fails_every_member_and_the_next_batch_runs():
    gate, batcher, first = blocked()
    mates = [batcher.submit(item) for item in ("bad", "bad", "bad")]
    gate.open.set()
    errors = [mate.exception(LONG) for mate in mates]
    assert all(isinstance(error, RuntimeError) and str(error) == "the engine failed" for error in errors)
    assert len({id(error) for error in errors}) == 3, "threads that raise one object mix their tracebacks"
    assert results([first, batcher.submit(5)]) == [2, 10]
    batcher.close()


def test_one_bad_input_fails_its_own_request_and_no_other():
    gate, batcher, first = blocked()
    mates = [batcher.submit(item) for item in (2, "bad", 3)]
    gate.open.set()
    assert results([first, mates[0], mates[2]]) == [2, 4, 6]
    with pytest.raises(RuntimeError, match="the engine failed"):
        mates[1].result(LONG)
    batcher.close()


def test_an_error_in_an_inline_call_reaches_its_caller_and_frees_the_engine():
    batcher = Batcher(Gate(), assumed(1))
    with pytest.raises(RuntimeError):
        batcher.call("bad")
    assert batcher.call(4).result == 8
    batcher.close()


def test_an_engine_that_returns_too_few_results_is_an_error_for_all():
    batcher = Batcher(lambda items: items[:-1], assumed(4))
    with pytest.raises(RuntimeError, match="1 items in, 0 results"):
        batcher.submit(1).result(LONG)
    batcher.close()


def test_close_fails_what_is_queued_and_lets_the_running_batch_finish():
    gate, batcher, first = blocked()
    queued = [batcher.submit(n) for n in (2, 3)]
    closing = threading.Thread(target=batcher.close, kwargs={"timeout_s": 0.0})
    closing.start()
    for future in queued:
        with pytest.raises(ClosedError):
            future.result(LONG)
    gate.open.set()
    assert first.result(LONG).result == 2
    closing.join(LONG)
    assert not closing.is_alive()


def test_close_drains_within_its_time():
    gate, batcher, first = blocked()
    queued = [batcher.submit(n) for n in (2, 3)]
    gate.open.set()
    assert batcher.close(timeout_s=LONG)
    assert results([first, *queued]) == [2, 4, 6]


def test_close_says_whether_the_engine_may_be_freed():
    gate, batcher, first = blocked()
    assert batcher.close(timeout_s=0.0) is False
    gate.open.set()
    first.result(LONG)
    assert batcher.close(timeout_s=LONG) is True


@pytest.mark.parametrize("ask", ["call", "submit"])
def test_a_closed_batcher_refuses_with_a_typed_error(ask):
    batcher = Batcher(Gate(), assumed(1))
    batcher.close()
    with pytest.raises(ClosedError):
        getattr(batcher, ask)(1)


def test_close_is_idempotent_and_ends_the_worker():
    batcher = Batcher(Gate(), assumed(1))
    batcher.submit(1).result(LONG)
    batcher.close()
    batcher.close()
    assert not [t for t in threading.enumerate() if t.name == "edgekit-batcher" and t is batcher._worker.thread]


def test_a_callback_may_ask_for_the_next_inference():
    gate, batcher, first = blocked()
    asked = []
    second = batcher.submit(2)
    first.add_done_callback(lambda done: asked.append(batcher.call(10).result))
    gate.open.set()
    assert second.result(LONG).result == 4
    assert asked == [20]
    batcher.close()


def test_the_time_in_the_queue_comes_from_the_injected_clock():
    ticks = iter(range(1000))
    lock = threading.Lock()

    def clock():
        with lock:
            return float(next(ticks))

    batcher = Batcher(Gate(), assumed(1), clock=clock)
    served = batcher.submit(1).result(LONG)
    assert served.queued_s >= 1.0
    assert served.ran_s >= 1.0
    batcher.close()


@settings(max_examples=examples(25))
@given(
    st.lists(st.lists(st.sampled_from([1, 2, 3, "bad"]), min_size=1, max_size=12), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_every_request_of_every_thread_is_answered_exactly_once(loads, max_batch):
    gate = Gate()
    batcher = Batcher(gate, assumed(max_batch))
    futures, lock = [], threading.Lock()

    def work(items):
        for item in items:
            future = batcher.submit(item)
            with lock:
                futures.append((item, future))

    threads = [threading.Thread(target=work, args=(items,)) for items in loads]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    _, pending = wait([future for _, future in futures], LONG)
    assert not pending
    for item, future in futures:
        if item == "bad":
            assert str(future.exception()) == "the engine failed"
        else:
            assert future.result().result == item * 2
    assert not gate.overlapped
    assert batcher.close(LONG)
