"""What is expected is what was seen."""

from __future__ import annotations

import pytest

from edgekit_runtime.batching.costs import Returns


def rounds(returns, *, callers=8, back_s=0.001, times=10, come=None):
    """Closed-loop callers: all are answered, and `come` of them are back within back_s."""
    now = 0.0
    for _ in range(times):
        now += 0.010
        returns.left(callers, now)
        for n in range(callers if come is None else come):
            returns.came(now + back_s * (n + 1) / callers)
    return now + 0.010


def test_nobody_is_expected_before_anybody_came_back():
    returns = Returns()
    returns.left(8, 0.0)
    assert returns.expected(0.0) == (0, 0.0)


def test_callers_that_come_back_are_expected_as_soon_as_they_usually_do():
    returns = Returns()
    now = rounds(returns)
    returns.left(8, now)
    count, wait_s = returns.expected(now)
    assert count == 8
    assert wait_s == pytest.approx(0.001, rel=0.3)


def test_who_is_back_is_not_expected_again():
    returns = Returns()
    now = rounds(returns)
    returns.left(8, now)
    for _ in range(3):
        returns.came(now + 0.0001)
    assert returns.expected(now + 0.0001)[0] == 5


def test_nobody_is_expected_later_than_they_usually_come():
    returns = Returns()
    now = rounds(returns)
    returns.left(8, now)
    assert returns.expected(now + 0.002) == (0, 0.0)


def test_callers_that_were_waited_for_in_vain_are_expected_less():
    returns = Returns()
    now = rounds(returns)
    for _ in range(20):
        returns.left(8, now)
        returns.missed()
    returns.left(8, now)
    assert returns.expected(now)[0] == 0


def test_callers_that_went_away_for_good_are_forgotten():
    returns = Returns()
    now = rounds(returns, come=0, times=30)
    for _ in range(3):
        now += 1.0
        returns.left(8, now)
        returns.came(now + 0.0001)
    returns.left(8, now + 1.0)
    assert returns.expected(now + 1.0)[0] < 8


def test_the_rate_of_arrivals_says_when_the_next_are_there():
    returns = Returns()
    for n in range(10):
        returns.came(n * 0.002)
    assert returns.next_s(0.0185, 3) == pytest.approx(0.006)
    assert returns.next_s(1.0, 3) is None, "they stopped"
    assert Returns().next_s(0.0, 1) is None


def test_one_caller_that_asks_again_and_again_is_no_rate():
    returns = Returns()
    for n in range(10):
        returns.came(n * 0.002, lone=True)
    assert returns.next_s(0.0185, 1) is None
    returns.came(0.020)
    assert returns.next_s(0.0205, 1) == pytest.approx(0.002)
    for n in range(11, 15):
        returns.came(n * 0.002, lone=True)
    assert returns.next_s(0.0285, 1) is None, "the others left"
