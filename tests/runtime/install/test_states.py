"""What happens next, for every state: done, an error, a spontaneous reboot, a hang. The table of `journal`, as chains,
and what the journal knows by itself."""

from __future__ import annotations

from dataclasses import replace
from operator import methodcaller

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import has_code

from edgekit_runtime.install.journal import MOST_TRIES, STATES, AcceptedSequence, Attempt, Journal, parse_journal
from edgekit_runtime.system.errors import InstallError

NOW = "2027-01-31T00:00:00Z"
BEFORE = Journal(next=4, current=3, previous=2, burned=AcceptedSequence(7, "old"))
ERROR = methodcaller("fail", "selftest", "it differs", NOW)
HANG = methodcaller("fail", "selftest", "it did not respond within 120 s", NOW)
KEPT = methodcaller("fail", "download", "the connection broke", NOW, keep=True)
HEAD = methodcaller("accept", "head", "bundle", 8)


def chain(*events, trial="here", journal=BEFORE):
    """The states that an install goes through, and the journal at its end."""
    states, step = [], None
    for event in (methodcaller("begin", "net.ekb", trial, NOW), HEAD, *events):
        step = event(journal)
        journal = step.journal
        state = journal.attempt.state if journal.attempt else "over"
        if not states or states[-1] != state:
            states.append(state)
    return states, step, journal


def reached(state, trial="here"):
    """A journal in that state."""
    _, _, journal = chain(*[methodcaller("advance", "object")] * STATES.index(state), trial=trial)
    assert journal.attempt.state == state
    return journal


def test_an_install_that_goes_well_goes_through_every_state():
    states, step, journal = chain(*[methodcaller("advance", "object")] * 6)
    assert states == [*STATES, "over"]
    assert reached("fetched").attempt.object == "object"
    assert (journal.current, journal.previous, journal.next) == (4, 3, 5)
    assert step.tidy == "collect"


def test_every_state_has_its_own_work():
    journal, works = BEFORE, []
    for event in (methodcaller("begin", "net.ekb", "here", NOW), *[methodcaller("advance", "o")] * 6):
        step = event(journal)
        journal = step.journal
        works.append(step.work)
    assert works == ["fetching", "fetched", "verified", "staged", "selftest", "trial", None]


ON_ERROR = {
    # state: (who tries it out, what answers afterwards)
    "fetching": ("here", 3),
    "fetched": ("here", 3),
    "verified": ("here", 3),
    "staged": ("here", 3),
    "selftest": ("here", 3),
    "trial": ("here", 3),
    "trial by the application": ("app", 3),
}


@pytest.mark.parametrize("case", ON_ERROR)
@pytest.mark.parametrize("event", [ERROR, HANG], ids=["error", "hang"])
def test_an_error_or_a_hang_leads_back_to_what_answered_before(case, event):
    trial, answers = ON_ERROR[case]
    state = case.split()[0]
    step = event(reached(state, trial))
    assert step.journal.attempt is None
    assert step.journal.answering == step.journal.current == answers
    assert step.journal.previous == 2
    assert step.work is None
    assert (step.journal.failure.code, step.journal.failure.state) == ("selftest", state)
    assert step.tidy == "collect"


def test_a_download_that_broke_is_gone_on_with():
    step = KEPT(reached("fetching"))
    assert step.journal.attempt.state == "fetching"
    assert step.journal.failure.code == "download"
    assert step.journal.restart(NOW).work == "fetching"


ON_REBOOT = {
    "fetching": ["fetching"] * 5,
    "fetched": ["fetched"] * 5,
    "verified": ["verified"] * 5,
    "staged": ["staged"] * 5,
    "selftest": ["selftest", "selftest", None],
    "trial": ["trial", "trial", None],
}


@pytest.mark.parametrize("state", STATES)
def test_a_spontaneous_reboot_goes_on_where_it_was_and_three_in_a_test_end_it(state):
    """S17"""
    journal, works = reached(state), []
    for _ in range(len(ON_REBOOT[state])):
        step = journal.restart(NOW)
        journal = step.journal
        works.append(step.work)
        assert journal.answering == 3
    assert works == ON_REBOOT[state]
    over = ON_REBOOT[state][-1] is None
    assert (journal.attempt is None) == over
    if over:
        assert f"{MOST_TRIES} times" in journal.failure.what


@pytest.mark.parametrize("trial", ["here", "app"])
@pytest.mark.parametrize("state", STATES)
def test_an_interruption_by_hand_changes_nothing_that_counts(state, trial):
    journal = reached(state, trial)
    for _ in range(5):
        step = journal.interrupt()
        assert (step.work, step.tidy, step.journal.answering) == (None, None, journal.answering)
        journal = step.journal.restart(NOW).journal
    assert journal == reached(state, trial)
    assert BEFORE.interrupt().journal == BEFORE


@pytest.mark.parametrize("failed", range(5))
def test_three_failed_starts_of_the_application_lead_back(failed):
    journal = reached("trial", "app")
    assert journal.answering == 4
    step = journal.restart(NOW, failed_starts=failed)
    assert step.journal.answering == (4 if failed < MOST_TRIES else 3)
    assert step.work is None


def test_the_application_decides_what_it_tries_out():
    kept = reached("trial", "app").advance().journal
    assert (kept.current, kept.previous, kept.attempt) == (4, 3, None)


def test_the_rollout_seq_is_burned_when_the_self_test_begins_and_stays_burned():
    """S18"""
    assert reached("staged").burned.seq == 7
    failed = ERROR(reached("selftest")).journal
    assert failed.burned == AcceptedSequence(8, "bundle")
    assert ERROR(reached("trial", "app")).journal.burned == AcceptedSequence(8, "bundle")


def test_a_bundle_without_a_rollout_seq_burns_none():
    journal = replace(reached("staged"), attempt=replace(reached("staged").attempt, seq=None))
    assert journal.advance().journal.burned == AcceptedSequence(7, "old")


def test_another_bundle_takes_the_place_of_an_unfinished_one():
    step = reached("verified").abandon()
    assert step.journal.attempt is None
    assert step.journal.next == 5, "a number is never given twice"


def test_the_owner_commits_a_trial_or_goes_back_and_forth():
    committed = reached("trial", "app").activate(4).journal
    assert (committed.current, committed.previous, committed.attempt) == (4, 3, None)
    back = committed.activate(3).journal
    assert (back.current, back.previous) == (3, 4)
    assert back.activate(3).journal == back, "the previous generation is never the current one"
    unfinished = reached("verified").activate(2).journal
    assert (unfinished.current, unfinished.attempt.state) == (2, "verified")


IMPOSSIBLE = {
    "passed, with nothing begun": (BEFORE, methodcaller("advance")),
    "failed, with nothing begun": (BEFORE, ERROR),
    "begun twice": (reached("fetched"), methodcaller("begin", "other.ekb", "here", NOW)),
    "a head after the whole file": (reached("fetched"), HEAD),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_happen_is_a_mistake_of_the_caller(case):
    journal, event = IMPOSSIBLE[case]
    with pytest.raises(ValueError):
        event(journal)


EVENTS = st.sampled_from(
    [
        methodcaller("advance", "object"),
        ERROR,
        KEPT,
        methodcaller("restart", NOW),
        methodcaller("restart", NOW, 3),
        methodcaller("abandon"),
        HEAD,
        methodcaller("begin", "b.ekb", "app", NOW),
        methodcaller("begin", "a.ekb", "here", NOW),
    ]
)


@given(st.lists(EVENTS, max_size=30))
def test_whatever_happens_something_answers_that_was_committed_or_is_on_trial(events):
    """S17"""
    journal = BEFORE
    for event in events:
        try:
            step = event(journal)
        except ValueError:
            continue
        before, journal = journal, step.journal
        assert journal.answering in (journal.current, journal.on_trial)
        assert journal.answering is not None
        assert journal.current in (before.current, before.attempt.generation if before.attempt else 0)
        assert journal.next >= before.next
        assert journal.burned.seq >= before.burned.seq
        if journal.answering != before.answering:
            assert step.tidy, "whoever changes what answers says so"
        assert parse_journal(journal.text(), "journal.json") == journal


def test_a_rollback_leads_past_what_was_damaged_when_its_repair_was_accepted():
    begun = BEFORE.begin("net.ekb", "here", NOW).journal
    journal = begun.accept("head", "bundle", 8, past=True).journal
    for _ in range(6):
        journal = journal.advance("object").journal
    assert (journal.current, journal.previous) == (4, 2)


class SomeSuffice:
    """As a `TrustStore`: these signers are enough."""

    def __init__(self, *signers):
        self.signers = set(signers)

    def suffices(self, signed_by):
        return bool(self.signers & set(signed_by))


def test_the_highest_number_binds_that_somebody_vouched_for_who_counts_now():
    low, high = AcceptedSequence(5, "a", ("anna",)), AcceptedSequence(9, "b", ("bert",))
    journal = Journal().with_accepted(low).with_accepted(high)
    assert journal.binding(None) == high
    assert journal.binding(SomeSuffice("anna", "bert")) == high
    assert journal.binding(SomeSuffice("anna")) == low
    assert journal.binding(SomeSuffice("carl")) is None
    assert Journal().binding(None) is None


def test_a_number_that_a_later_one_covers_is_forgotten_and_no_other():
    first = AcceptedSequence(5, "a", ("anna",))
    for later, kept in [
        (AcceptedSequence(5, "b", ("anna",)), None),
        (AcceptedSequence(6, "b", ("anna", "bert")), None),
        (AcceptedSequence(4, "b", ("anna",)), (first,)),
        (AcceptedSequence(6, "b", ("bert",)), (first,)),
    ]:
        journal = Journal().with_accepted(first).with_accepted(later)
        assert (journal.burned, journal.also_burned) == (later, kept)


def test_what_answers_what_did_before_and_what_is_on_its_way_is_kept():
    assert BEFORE.kept == {2, 3}
    assert reached("staged").kept == {2, 3, 4}
    assert reached("fetching").kept == {2, 3}
    assert Journal().kept == frozenset()


def test_what_was_said_of_the_board_holds_for_the_unfinished_install_of_that_source():
    journal = BEFORE.begin("net.ekb", "here", NOW, "raspberry-pi-4").journal
    assert journal.profile_for("net.ekb") == "raspberry-pi-4"
    assert journal.profile_for("other.ekb") is None
    assert BEFORE.profile_for("net.ekb") is None


def test_a_journal_that_knows_of_one_number_alone_is_read():
    text = '{"format": 1, "next": 4, "current": 3, "burned": {"seq": 7, "bundle": "old", "signed_by": []}}'
    assert parse_journal(text, "journal.json") == Journal(next=4, current=3, burned=AcceptedSequence(7, "old"))


BROKEN = {
    "empty": "",
    "half of it": BEFORE.text()[:40],
    "a list": "[]",
    "of a later format": BEFORE.text().replace('"format": 1', '"format": 2'),
    "of a format true": BEFORE.text().replace('"format": 1', '"format": true'),
    "a generation of the future": replace(BEFORE, current=9).text(),
    "a state that is none": replace(BEFORE, attempt=Attempt("fetching", "a", "here", NOW))
    .text()
    .replace("fetching", "flying"),
    "far without a generation": replace(BEFORE, attempt=Attempt("staged", "a", "here", NOW)).text(),
    "a name twice": BEFORE.text().replace('"next": 4', '"next": 4, "next": 5'),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_journal_that_cannot_be_understood_is_no_journal(case):

    with pytest.raises(
        InstallError, match=r"^journal\.json: the journal cannot be understood", check=has_code("install-root")
    ):
        parse_journal(BROKEN[case], "journal.json")
