"""A clock that says 1970, 2100 or anything between decides as little as it can, and every refusal names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.bundle.trust_store import EARLIEST_S, judge, parse_time, seen_after, tell_time

NOW = parse_time("2027-06-01T00:00:00Z")
FAR = parse_time("2100-01-01T00:00:00Z")
ROOT_ENDS = parse_time("2028-01-01T00:00:00Z")
times = st.floats(-1e11, 1e13, allow_nan=False)


def test_a_clock_that_is_right_is_believed():
    moment = judge(NOW, seen_s=NOW - 60, issued_s=NOW - 3600)
    assert (moment.at_s, moment.text) == (NOW, "(this machine's clock says 2027-06-01T00:00:00Z)")


def test_a_clock_in_1970_is_judged_by_the_latest_time_that_is_known_instead():
    """S10"""
    assert judge(0).at_s == EARLIEST_S
    assert judge(0, issued_s=NOW).at_s == NOW
    assert judge(0, seen_s=NOW + 1, issued_s=NOW).at_s == NOW + 1
    assert judge(0, seen_s=NOW).text == (
        "(judged by the last time seen on this board, 2027-06-01T00:00:00Z; this machine's clock says "
        "1970-01-01T00:00:00Z)"
    )


def test_a_clock_in_2100_is_named_and_not_remembered():
    """S10"""
    assert judge(FAR, seen_s=NOW).text == "(this machine's clock says 2100-01-01T00:00:00Z)"
    assert seen_after(FAR, NOW, ROOT_ENDS) == NOW
    assert seen_after(NOW + 5, NOW, ROOT_ENDS) == NOW + 5


def test_without_a_date_to_go_by_a_clock_is_not_believed_beyond_2070():
    assert seen_after(FAR, None) == EARLIEST_S
    assert seen_after(NOW, None) == NOW


@given(st.lists(times, max_size=8))
def test_the_last_time_seen_never_goes_back_and_never_beyond_the_root(clocks):
    """S10"""
    seen: float | None = None
    for clock in clocks:
        before, seen = seen, seen_after(clock, seen, ROOT_ENDS)
        assert EARLIEST_S <= seen <= ROOT_ENDS
        assert before is None or seen >= before


@given(times, st.none() | times, st.none() | times)
def test_no_clock_makes_it_earlier_than_what_is_known(clock, seen, issued):
    """S10"""
    at_s = judge(clock, seen_s=seen, issued_s=issued).at_s
    assert at_s >= max(EARLIEST_S, seen or at_s * 0 - 1e12, issued or -1e12)
    assert at_s in (clock, seen, issued, EARLIEST_S)


@pytest.mark.parametrize("text",
    ["", "2027-01-31", "2027-01-31T00:00:00", "2027-01-31T00:00:00+00:00", "2027-02-30T00:00:00Z",
     "2027-01-31T24:00:00Z", "2027-01-31T00:00:60Z", "２027-01-31T00:00:00Z", "2027-01-31T00:00:00Z\n"])  # fmt: skip
def test_one_form_of_time_is_read(text):
    with pytest.raises(ValueError, match="not a time of the form"):
        parse_time(text)


def test_a_time_is_read_as_it_is_told():
    assert tell_time(parse_time("2027-01-31T12:34:56Z")) == "2027-01-31T12:34:56Z"
    assert tell_time(1e14) == "100000000000000 s after 1970"
