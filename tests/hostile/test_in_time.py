"""Groups 11 and 12: old bundles, used numbers, and clocks that say anything."""

from __future__ import annotations

import calendar
import json

import pytest
from hostile import forge
from hostile.board import asked, refuses
from hostile.cases import signed
from hostile.make_corpus import CORPUS

from edgekit_runtime.install import FetchOptions, install, rollback, status

GOOD = CORPUS / "good"


def seconds(*date: int) -> float:
    return float(calendar.timegm((*date, 0, 0, 0)))


def at(*date: int):
    return lambda: seconds(*date)


def written(tmp_path, name="x.ekb", **changes):
    path = tmp_path / name
    path.write_bytes(signed(**changes))
    return path


def test_group_11_a_number_that_failed_stays_burned(root, tmp_path):
    """S18"""
    refuses(root, CORPUS / "bad" / "22-golden-answer-of-another-model.ekb", asked(), "selftest")  # it has 6
    refuses(root, written(tmp_path, version="3"), asked(), "downgrade", "older than 6")


def test_group_11_a_rollback_unburns_nothing(root, tmp_path):
    install(GOOD / "newer.ekb", root, asked())
    rollback(root)
    assert status(root).current.number == 1
    refuses(root, written(tmp_path, rollout_seq=5, version="3"), asked(), "downgrade", "older than 6")


def test_group_11_the_largest_number_is_taken_and_ends_it(root, tmp_path):
    install(written(tmp_path, rollout_seq=2**53 - 1), root, asked())
    with pytest.raises(Exception, match="was accepted here before") as caught:
        install(written(tmp_path, "again.ekb", rollout_seq=2**53 - 1, version="9"), root, asked())
    assert caught.value.code == "rollout-seq-reused"


EXPIRING = {"expires": "2027-06-01T00:00:00Z", "rollout_seq": 6}


def test_group_12_a_clock_of_1970_is_not_believed_and_says_so(root, tmp_path):
    """S10"""
    until = written(tmp_path, expires="2026-10-31T00:00:00Z", rollout_seq=6)
    error = refuses(root, until, asked(clock=at(1970, 1, 1)), "expired", "this machine's clock says 1970-01-01")
    assert "judged by" in str(error)


def test_group_12_a_clock_of_1970_still_installs_what_is_good(root, tmp_path):
    assert install(written(tmp_path, **EXPIRING), root, asked(clock=at(1970, 1, 1))).generation.number == 2


def test_group_12_a_clock_of_2100_refuses_by_name_and_spoils_nothing_for_later(root, tmp_path):
    """S10"""
    until = written(tmp_path, **EXPIRING)
    refuses(root, until, asked(clock=at(2100, 1, 1)), "root-expired|expired", "this machine's clock says 2100-01-01")
    assert install(until, root, asked(clock=at(2026, 12, 1))).generation.number == 2


class Jumping:
    """A clock that says another time from the moment on that the whole file is here and looked at."""

    def __init__(self, first, then):
        self.now, self._then = first, then

    def __call__(self):
        return self.now

    def progress(self, stage, _done, _total):
        if stage == "verify":
            self.now = self._then

    def asked(self):
        return asked(clock=self, fetching=FetchOptions(progress=self.progress))


def test_group_12_a_clock_that_jumps_beyond_the_date_in_the_middle_is_noticed(root, tmp_path):
    clock = Jumping(seconds(2026, 12, 1), seconds(2027, 7, 1))
    refuses(root, written(tmp_path, **EXPIRING), clock.asked(), "expired", "2027-07-01")


def test_group_12_a_clock_that_jumps_back_in_the_middle_does_no_harm(root, tmp_path):
    clock = Jumping(seconds(2026, 12, 1), seconds(1970, 1, 1))
    assert install(written(tmp_path, **EXPIRING), root, clock.asked()).generation.number == 2
    assert json.loads((root / "journal.json").read_text())["seen_s"] == seconds(2026, 12, 1)


def test_group_12_what_expired_stays_expired_when_the_clock_is_set_back(root, tmp_path):
    """S10"""
    late = written(tmp_path, "late.ekb", expires="2027-09-01T00:00:00Z", rollout_seq=6)
    install(late, root, asked(clock=at(2027, 8, 1)))
    early = written(tmp_path, expires="2027-06-01T00:00:00Z", rollout_seq=7)
    refuses(
        root, early, asked(clock=at(2026, 12, 1)), "expired", "judged by the last time seen on this board, 2027-08-01"
    )


def test_the_key_of_these_tests_is_in_no_good_root_of_anybody():
    """Whoever reads the tree can sign with it."""
    assert forge.sha256(forge.public_raw("ours")) == "be5da7a7251b8c44a844c0528e3b24dab05bc4a1222512c12dc490e77375a1e7"
