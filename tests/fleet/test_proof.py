"""Every window that a spool has committed is stored exactly once.

This holds though the broker is killed; the control loses some.
"""

from __future__ import annotations

from fleet.matrix import Matrix, run
from fleet.proof import MaxSeqStore, Plan, prove


def test_two_hundred_boards_lose_nothing_when_the_broker_is_killed(tmp_path):
    found = prove(tmp_path, Plan())
    assert found.committed > 200 * 3, found  # eighteen each where disk and processor are quick enough
    assert (found.stored, found.missing, found.still_spooled, found.known_lost) == (found.committed, 0, 0, 0), found
    assert found.counted == found.answered > 0, found


def test_the_control_that_acknowledges_the_largest_seq_loses_windows_and_is_caught(tmp_path):
    found = prove(tmp_path, Plan(boards=40, window_s=0.5, kill_s=3.0, down_s=0.5, away_s=3.0, run_s=9.0), MaxSeqStore)
    assert found.missing > 0, found
    assert found.counted < found.answered, found


def test_killed_brokers_ingestors_and_boards_and_a_hostile_one_lose_nothing_unseen(tmp_path):
    """The kill matrix: three brokers, two ingestors and twelve boards get `kill -9` within half a minute."""
    found = run(tmp_path, Matrix(seconds=34.0))
    assert found.kills == 17, found
    ledger = found.ledger
    assert ledger.committed > 40 * 34, found
    assert ledger.committed == ledger.stored + ledger.waiting + found.lost, found
    assert (found.lost, ledger.missing, ledger.twice, ledger.unknown) == (0, 0, 0, 0), found
    assert ledger.waiting < ledger.committed / 10, found
    assert found.hostile > 100, found
