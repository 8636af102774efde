"""Times on this machine while others use it: seen, widened, said, not kept."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from linear import linear, onnx_artifact

from edgekit.building import board_candidates
from edgekit.building.board_candidates import MachineLoad, timer
from edgekit.building.making import RecipeResult
from edgekit_converters.data.dataset import Example
from edgekit_converters.data.describe_contract import describe
from edgekit_converters.fidelity.compare import EngineTimes, measure_ms
from edgekit_converters.recipe.store import DiskStore

SOURCE = linear((-1, 3), 3, weights=np.eye(3))
QUIET, BUSY = "0.08 1.50 7.02 1/812 4711", "0.08 1.50 7.02 9/812 4711"
"""The averages count what this build itself did in the last minutes; the fourth field does not."""


def load(tmp_path, line, **more):
    file = tmp_path / "loadavg"
    file.write_text(line)
    seen = MachineLoad(file, cores=4, **{"clock": time.thread_time, **more})
    seen.look()
    return seen


LINES = {
    QUIET: "",
    "0.08 1.50 7.02 4/812 4711": "",
    "0.08 1.50 7.02 5/812 4711": "4 other processes wanted its 4 cores",
    BUSY: "8 other processes wanted its 4 cores",
    "": "",
    "no numbers at all here": "",
}


@pytest.mark.parametrize("line", LINES)
def test_others_that_run_at_that_moment_make_a_machine_busy(line, tmp_path):
    assert load(tmp_path, line).why == LINES[line]


def test_one_look_among_many_that_finds_others_is_no_load(tmp_path):
    seen = load(tmp_path, BUSY)
    (tmp_path / "loadavg").write_text(QUIET)
    seen.look()
    seen.look()
    assert seen.why == ""


def test_a_loop_that_waits_for_its_core_shows_it_where_nothing_else_does(tmp_path):
    """Real processes, four for each core, and no file to read."""
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(4 * (board_candidates.os.cpu_count() or 1))]
    try:
        time.sleep(0.3)
        seen = MachineLoad(tmp_path / "none")
        for _ in range(5):
            seen.look()
    finally:
        for one in others:
            one.kill()
            one.wait()
    assert seen.share < 0.7
    assert seen.why == f"it got {seen.share:.0%} of a core"


class Timed:
    """A timer of one real artifact, whose runs took `taken`; None to run them."""

    def __init__(self, tmp_path, monkeypatch):
        self.artifact, self.contract, self.runs = onnx_artifact(SOURCE), describe(SOURCE, None), 0
        self.made = RecipeResult(self.artifact.recipe, self.artifact)
        pick = SimpleNamespace(pick=lambda _: [Example({"x": np.zeros(3, np.float32)}, None, "")])
        self.subject = SimpleNamespace(contract=self.contract, sets=SimpleNamespace(evaluation=pick))
        self.store, self.taken, real = DiskStore(tmp_path / "store"), None, measure_ms

        def measure(*given):
            self.runs += 1
            return real(*given) if self.taken is None else self.taken

        monkeypatch.setattr("edgekit.building.board_candidates.measure_ms", measure)

    def __call__(self, seen):
        return timer(self.subject, self.store, [self.made], lambda: seen)(self.made)


@pytest.fixture
def timed(tmp_path, monkeypatch):
    return Timed(tmp_path, monkeypatch)


def test_times_of_a_quiet_machine_are_kept_and_those_of_a_busy_one_taken_again(timed, tmp_path):
    timed.taken = EngineTimes(25.0, 27.0, 24.0, 24.9)
    for runs in (1, 2):
        assert timed(load(tmp_path, BUSY)).busy
        assert timed.runs == runs
    for _ in range(2):
        found = timed(load(tmp_path, QUIET))
        assert (found.low_ms, found.mid_ms, found.high_ms, found.busy, found.notes) == (25.0, 25.0, 27.0, False, ())
    assert not timed(load(tmp_path, BUSY)).busy  # it is known by now
    assert timed.runs == 3


RANGES = {
    "all runs were interrupted": (EngineTimes(393, 430, 391, 25.1), (25.1, 25.1, 430)),
    "most were not": (EngineTimes(4.0, 90.0, 3.9, 4.2), (3.9, 4.0, 90.0)),
    "the engine computes in threads of its own": (EngineTimes(40, 60, 30, 0.1), (30, 40, 60)),
}


@pytest.mark.parametrize("case", RANGES)
def test_a_range_of_a_busy_machine_reaches_from_what_it_takes_alone_to_what_it_took(case, timed, tmp_path):
    timed.taken, wanted = RANGES[case]
    found = timed(load(tmp_path, BUSY))
    assert (found.low_ms, found.mid_ms, found.high_ms) == pytest.approx(wanted, rel=0.01)
    assert "this machine was busy (8 other processes wanted its 4 cores): an answer takes about" in found.notes[0]


def test_runs_far_apart_show_a_busy_machine_too(timed, tmp_path):
    timed.taken = EngineTimes(4.0, 90.0, 3.9, 4.2)
    assert "one run in twenty took 22.5 times the middle one" in timed(load(tmp_path, QUIET)).notes[0]


def test_a_real_artifact_is_timed(timed, tmp_path):
    found = timed(load(tmp_path, BUSY))
    assert 0 < found.low_ms <= found.mid_ms <= found.high_ms
    assert found.source.endswith("on this machine")
