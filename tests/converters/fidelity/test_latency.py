"""How many runs are timed."""

from __future__ import annotations

import pytest

from edgekit_converters.fidelity.compare import time_runs


@pytest.mark.parametrize(
    ("cost_s", "timed"),
    [(0.001, 250), (0.02, 20), (0.1, 10), (0.4, 3), (30.0, 3)],
)
def test_runs_are_many_for_a_fast_model_and_bounded_for_a_slow_one(cost_s, timed):
    now, runs = 0.0, 0

    def run():
        nonlocal now, runs
        now += cost_s
        runs += 1

    seconds = time_runs(run, lambda: now)
    assert seconds == pytest.approx([cost_s] * len(seconds))
    assert abs(len(seconds) - timed) <= 1
    assert runs == len(seconds) + 3
