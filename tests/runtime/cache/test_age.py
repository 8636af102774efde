"""An age is only believed where a clock can vouch for it."""

from __future__ import annotations

import pytest

from edgekit_runtime.cache.memory_tier import PLAUSIBLE_S, Moment, age_s, elapsed_s, moment

NOW = PLAUSIBLE_S + 1e7

CASES = {
    "the same boot": (Moment(NOW, 100, 1), Moment(NOW + 50, 150, 1), 50),
    "the same boot, and the wall clock jumped ahead a year": (Moment(NOW, 100, 1), Moment(NOW + 3e7, 150, 1), 50),
    "the same boot, and the wall clock jumped back": (Moment(NOW, 100, 1), Moment(NOW - 3e7, 150, 1), 50),
    "the same boot, from 1970 to now when the network came up": (Moment(30.0, 30, 1), Moment(NOW, 90, 1), 60),
    "another boot": (Moment(NOW, 100, 1), Moment(NOW + 500, 20, 2), 500),
    "another boot, written in 1970": (Moment(30.0, 30, 1), Moment(NOW, 20, 2), None),
    "another boot, read in 1970": (Moment(NOW, 100, 1), Moment(30.0, 30, 2), None),
    "another boot, both in 1970": (Moment(30.0, 30, 1), Moment(40.0, 40, 2), None),
    "another boot, written in the future": (Moment(NOW + 500, 100, 1), Moment(NOW, 20, 2), None),
    "no boot is known": (Moment(NOW, 100, 0), Moment(NOW + 5, 900, 0), 5),
    "the same boot, whose counter went back": (Moment(NOW, 100, 1), Moment(NOW + 5, 90, 1), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_an_age_is_what_the_trustworthy_clock_says(name):
    born, now, expected = CASES[name]
    assert age_s(born, now) == expected


def test_the_clocks_of_this_machine_go_forward():
    before, first = elapsed_s(), moment()
    second = moment()
    assert age_s(first, second) >= 0
    assert before <= first.up_s <= second.up_s
    assert first.boot == second.boot
