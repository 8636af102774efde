"""What an agent reads, what it says, and what it does next, without a disk or a network."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit_runtime.install.orders import (
    FINAL,
    MOST_ORDERS,
    MOST_TRIES,
    ORDER_S,
    AgentNote,
    Former,
    Order,
    OrderRate,
    OrderReport,
    RootState,
    decide,
    next_note,
    outcome,
    parse_order,
    parse_report,
    pause_s,
)
from edgekit_runtime.system.errors import (
    DownloadError,
    InstallError,
    SelfTestError,
    SignatureError,
    StorageError,
    WindowError,
)

NEW, OLD, OTHER = "a" * 64, "b" * 64, "c" * 64
ORDER = Order(7, "tiny", "2", NEW, "http://fleet:8787/bundles/x.ekb")
SHADOW = replace(ORDER, shadow=0.05)
REPORT = OrderReport(7, "committed", "2", former=Former("1", OLD), sha256=NEW)


def test_an_order_and_a_report_are_read_as_they_were_written():
    assert parse_order(ORDER.encode()) == ORDER
    assert parse_order(SHADOW.encode()) == SHADOW
    assert b'"bundle"' not in SHADOW.encode()  # an agent that knows no shadows would install it
    assert parse_report(REPORT.encode()) == REPORT
    assert parse_report(REPORT.encode().replace(f',"sha256":"{NEW}"'.encode(), b"", 1)) == replace(REPORT, sha256="")


WRONG_ORDERS = {
    "no JSON": b"{",
    "no bundle": b'{"rev":1}',
    "a share of more than all": SHADOW.encode().replace(b'"share":0.05', b'"share":1.5'),
    "a share of none": SHADOW.encode().replace(b'"share":0.05', b'"share":0'),
    "a rev of 0": ORDER.encode().replace(b'"rev":7', b'"rev":0'),
    "a rev that is a word": ORDER.encode().replace(b'"rev":7', b'"rev":"7"'),
    "a path": ORDER.encode().replace(b"http://", b"/etc/"),
    "a file URL": ORDER.encode().replace(b"http://", b"file://"),
    "a short digest": ORDER.encode().replace(NEW.encode(), b"ab"),
    "a line break in a name": ORDER.encode().replace(b"tiny", b"ti\\nny"),
    "too long": ORDER.encode().replace(b"tiny", b"t" * 5000),
}


@pytest.mark.parametrize("payload", WRONG_ORDERS.values(), ids=WRONG_ORDERS)
def test_an_order_that_makes_no_sense_is_refused(payload):
    """S26"""
    with pytest.raises(WindowError):
        parse_order(payload)


@given(st.binary(max_size=200), st.none() | st.integers() | st.text(max_size=80) | st.lists(st.none(), max_size=2))
@settings(max_examples=50)
def test_whatever_comes_is_read_or_refused(noise, value):
    made = json.dumps({"rev": 1, "phase": value, "bundle": value, "from": value}).encode()
    for parse, payload in itertools.product((parse_order, parse_report), (noise, made)):
        try:
            parse(payload)
        except WindowError as error:
            assert error.word in ("json", "shape", "size")  # noqa: PT017


STEPS = {
    "no order": (AgentNote(), RootState(), "nothing"),
    "a new order": (AgentNote(order=ORDER), RootState(OLD, "1"), "install"),
    "the first bundle of a board": (AgentNote(order=ORDER), RootState(), "install"),
    "it is active already": (AgentNote(order=ORDER), RootState(NEW, "2"), "committed"),
    "killed after the switch": (AgentNote(order=ORDER, phase="fetching", tries=1), RootState(NEW, "2"), "committed"),
    "killed in the download": (AgentNote(order=ORDER, phase="fetching", tries=1), RootState(OLD, "1"), "install"),
    "on trial": (AgentNote(order=ORDER, phase="fetching"), RootState(OLD, "1", on_trial=NEW), "wait"),
    "the trial passed": (AgentNote(order=ORDER, phase="trial"), RootState(NEW, "2"), "committed"),
    "the trial failed": (AgentNote(order=ORDER, phase="trial"), RootState(OLD, "1"), "rolled-back"),
    "another one is on trial": (AgentNote(order=ORDER), RootState(OLD, "1", on_trial=OTHER), "give-up-trial"),
    "the board keeps it": (AgentNote(order=ORDER), RootState(OLD, "1", previous=NEW), "activate"),
    "no URL, and not kept": (AgentNote(order=Order(7, "tiny", "2", NEW)), RootState(OLD, "1"), "gone"),
    "too many tries": (AgentNote(order=ORDER, tries=MOST_TRIES), RootState(OLD, "1"), "failed"),
}


@pytest.mark.parametrize(("note", "root", "step"), STEPS.values(), ids=STEPS)
def test_what_comes_next(note, root, step):
    assert decide(note, root) == step


@given(st.sampled_from(FINAL), st.builds(RootState, *[st.sampled_from(["", NEW, OLD])] * 3), st.integers(0, 99))
def test_an_order_that_came_to_an_end_is_never_begun_again(phase, root, tries):
    assert decide(AgentNote(order=ORDER, phase=phase, tries=tries), root) == "nothing"


NUMBERS = st.integers(1, 2**53 - 1)


@given(st.lists(NUMBERS, min_size=1), st.integers(0, 2**42))
def test_a_number_from_far_in_the_future_locks_no_later_order_out(revs, now_ms):
    note = AgentNote()
    for rev in revs:
        note = next_note(note, Order(rev, "tiny", "2", NEW), RootState(OLD, "1"), now_ms)
    assert note.last_rev == min(max(revs), now_ms + 3_600_000)
    assert next_note(note, None, RootState(), now_ms) == AgentNote(last_rev=note.last_rev)


def test_orders_have_a_rate():
    now = [1000.0]
    rate = OrderRate(lambda: now[0])
    assert [rate.take() for _ in range(MOST_ORDERS + 1)] == [True] * MOST_ORDERS + [False]
    now[0] += ORDER_S - 1
    assert not rate.take()
    now[0] += 2
    assert (rate.take(), rate.take()) == (True, False)
    now[0] += 1e9
    assert [rate.take() for _ in range(MOST_ORDERS + 1)] == [True] * MOST_ORDERS + [False]


def test_long_names_travel_shortened():
    """A bundle's may have a hundred characters."""
    long = "x" * 100
    assert parse_order(Order(7, long, long, NEW).encode()) == Order(7, "x" * 64, "x" * 64, NEW)
    said = parse_report(OrderReport(7, "committed", long, former=Former(long, OLD)).encode())
    assert said == OrderReport(7, "committed", "x" * 64, former=Former("x" * 64, OLD))


ENDS = {
    "a signature": (SignatureError("x"), False, "refused"),
    "a roll-out number": (InstallError("x", code="downgrade"), False, "refused"),
    "a file of another length": (DownloadError("x", code="download-size"), False, "refused"),
    "a self-test": (SelfTestError("x"), True, "rolled-back"),
    "a trial that was given up at the start": (InstallError("x", code="trial-failed"), False, "rolled-back"),
    "the network": (DownloadError("x"), False, None),
    "a full disk": (StorageError("x", code="disk-full"), True, None),
    "another install": (InstallError("x", code="install-busy"), False, None),
}


@pytest.mark.parametrize(("error", "began", "phase"), ENDS.values(), ids=ENDS)
def test_how_an_error_ends(error, began, phase):
    assert outcome(error, began) == phase


def test_pauses_grow_to_an_hour():
    assert [pause_s(n) for n in (0, 1, 2, 3)] == [30, 30, 60, 120]
    assert pause_s(MOST_TRIES) == 3600
