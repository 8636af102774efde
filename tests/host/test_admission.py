"""Who is let in: arithmetic on a clock that the test owns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.host.admission import Service, expected_ms
from edgekit.host.connection import Patience, overdue


def service(*times_ms, at=0.0):
    made = Service(recent_s=10.0, clock=lambda: at)
    for took in times_ms:
        made.add(took)
    return made


@pytest.mark.parametrize(
    ("ahead", "items", "max_batch", "wanted"),
    [
        (0, 1, 1, None),  # nothing is ahead: let in, whatever was learnt
        (0, 4, 1, None),
        (3, 1, 1, 3 * 10 + 20),
        (1, 4, 1, 4 * 10 + 20),
        (4, 4, 4, 10 + 20),
        (5, 1, 4, 2 * 10 + 20),
    ],
)
def test_what_is_ahead_counts_at_its_median_and_the_last_at_its_worst(ahead, items, max_batch, wanted):
    assert expected_ms(ahead, items, max_batch, service(*[10] * 9, 20)) == wanted


def test_with_nothing_recent_to_go_by_everybody_is_let_in():
    now = [0.0]
    made = Service(recent_s=10.0, clock=lambda: now[0])
    assert expected_ms(9, 1, 1, made) is None
    made.add(500)
    assert expected_ms(1, 1, 1, made) == 1000
    now[0] = 10.1  # a host that was slow once must find out that it is fast again
    assert expected_ms(1, 1, 1, made) is None


def test_one_good_inference_outweighs_a_stall():
    assert expected_ms(1, 1, 1, service(*[600] * 64, 20)) == 40
    assert expected_ms(1, 1, 1, service(*[20] * 64, 600)) == 20 + 20  # and one stall among many is one of many
    assert expected_ms(1, 1, 1, service(20, 600)) == 20 + 600


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=80), st.integers(0, 50), st.integers(1, 8), st.integers(1, 8))
def test_more_ahead_never_takes_less(times, ahead, items, max_batch):
    made = service(*times)
    now, later = expected_ms(ahead, items, max_batch, made) or 0.0, expected_ms(ahead + 1, items, max_batch, made)
    assert now <= later
    assert later >= made.quantiles()[1]


PATIENCE = Patience(idle=75, head=10, body=60, writing=30, lingering=2)


@pytest.mark.parametrize(
    ("state", "age_s", "ends"),
    [("idle", 74, False), ("idle", 76, True), ("head", 11, True), ("body", 59, False), ("body", 61, True),
     ("writing", 31, True), ("lingering", 3, True), ("busy", 1e9, False)],
)  # fmt: skip
def test_every_state_but_busy_has_its_time(state, age_s, ends):
    assert overdue(state, age_s, PATIENCE) is ends
