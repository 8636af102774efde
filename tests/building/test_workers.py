"""Work side by side."""

from __future__ import annotations

import threading

import pytest

from edgekit.building.making import Workers


def silent(stage, done, total):
    pass


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_results_come_in_the_order_of_the_tasks(jobs):
    with Workers(jobs, silent) as workers:
        assert workers.run([lambda n=n: n * n for n in range(20)]) == [n * n for n in range(20)]


def test_two_tasks_run_at_once():
    meeting = threading.Barrier(2, timeout=20)
    with Workers(2, silent) as workers:
        workers.run([meeting.wait, meeting.wait])


def test_an_error_is_raised_and_the_rest_is_not_begun():
    begun = []

    def fails():
        raise KeyError("first")

    with Workers(1, silent) as workers, pytest.raises(KeyError, match="first"):
        workers.run([fails, lambda: begun.append(1)])
    assert begun == []


def test_what_nobody_waits_for_ends_at_its_next_sign_of_progress():
    started, stopped, ended = threading.Event(), threading.Event(), threading.Event()

    def endless():
        started.set()
        stopped.wait(20)
        try:
            workers.progress("working", 1, None)
        except BaseException:
            ended.set()
            raise

    def fails():
        started.wait(20)
        raise KeyError("over")

    with pytest.raises(KeyError), Workers(2, silent) as workers:
        workers.run([endless, fails])
    stopped.set()
    assert ended.wait(20)


def test_progress_is_told_by_one_thread_at_a_time():
    inside, together = threading.Lock(), []

    def progress(stage, done, total):
        if not inside.acquire(blocking=False):
            together.append(stage)
            return
        inside.release()

    with Workers(4, progress) as workers:
        workers.run([lambda: [workers.progress("a", n, None) for n in range(500)] for _ in range(4)])
    assert together == []


def test_no_jobs_is_a_callers_bug():
    with pytest.raises(ValueError, match="0 jobs"):
        Workers(0, silent)
