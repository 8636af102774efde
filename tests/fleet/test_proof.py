"""Every window that a spool has committed is stored exactly once.

This holds though the broker is killed; the control loses some.
"""

from __future__ import annotations

from fleet.proof import MaxSeqStore, Plan, prove


def test_two_hundred_boards_lose_nothing_when_the_broker_is_killed(tmp_path):
    found = prove(tmp_path, Plan())
    assert found.committed > 200 * 5, found  # eighteen each where the disk is quick enough
    assert (found.stored, found.missing, found.still_spooled, found.known_lost) == (found.committed, 0, 0, 0), found
    assert found.counted == found.answered > 0, found


def test_the_control_that_acknowledges_the_largest_seq_loses_windows_and_is_caught(tmp_path):
    found = prove(tmp_path, Plan(boards=40, window_s=0.5, kill_s=3.0, down_s=0.5, away_s=3.0, run_s=9.0), MaxSeqStore)
    assert found.missing > 0, found
    assert found.counted < found.answered, found
