"""One thread at a time, and nobody waits for ever."""

from __future__ import annotations

import threading

from edgekit_runtime.batching.worker import Gate

LONG = 30


def test_one_thread_at_a_time():
    gate, inside, worst, done = Gate(), [0], [0], []

    def work(patience_s):
        for _ in range(300):
            gate.enter(patience_s)
            inside[0] += 1
            worst[0] = max(worst[0], inside[0])
            inside[0] -= 1
            gate.leave()
        done.append(1)

    threads = [threading.Thread(target=work, args=(n % 3 * 1e-4,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(done) == 8
    assert worst[0] == 1
    assert gate.try_enter()


def test_who_stands_in_line_is_next_and_newcomers_are_not():
    gate, order = Gate(), []
    assert gate.try_enter()

    def wait():
        gate.enter()
        order.append("line")
        gate.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    while not gate.line:
        pass
    assert not gate.try_enter()
    gate.leave()
    thread.join(LONG)
    assert order == ["line"]
    assert gate.try_enter()


def test_the_line_is_first_come_first_served():
    gate, order, threads = Gate(), [], []
    gate.try_enter()

    def wait(n):
        gate.enter()
        order.append(n)
        gate.leave()

    for n in range(5):
        threads.append(threading.Thread(target=wait, args=(n,)))
        threads[-1].start()
        while len(gate.line) <= n:
            pass
    gate.leave()
    for thread in threads:
        thread.join(LONG)
    assert order == [0, 1, 2, 3, 4]


def test_a_wait_that_timed_out_leaves_no_trace():
    gate = Gate()
    gate.try_enter()
    assert gate.enter(timeout_s=0.001) is False
    assert gate.enter(patience_s=0.001, timeout_s=0.002) is False
    assert not gate.line
    gate.leave()
    assert gate.try_enter()


def test_a_turn_that_came_while_giving_up_is_kept_or_passed_on():
    gate, turn = Gate(), threading.Lock()
    gate.try_enter()
    assert gate._quit(turn, keep=True) is True, "not in line any more: it was handed over"
    gate._quit(turn)
    assert gate.try_enter(), "passed on"
