"""Every reader of foreign bytes survives the kept corpus and two searches.

A short one by hypothesis, and a shorter one by atheris.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parts import missing

from edgekit_runtime.system.errors import EdgekitError
from fuzz.archive import kept
from fuzz.target import OracleError, Target, judge, mutated
from fuzz.targets import TARGETS, target

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow's, of damaged pictures

every_target = pytest.mark.parametrize("name", TARGETS)


@every_target
def test_a_good_input_is_accepted(name):
    one = target(name)
    assert [judge(one, data) for data in one.seeds()] == ["accepted"] * len(one.seeds())


@every_target
def test_what_was_ever_reached_is_still_judged_well(name):
    one, inputs = target(name), kept(name)
    assert inputs, f"fuzz/corpus/{name}.zip is missing: python -m fuzz.choose {name}"
    outcomes = {judge(one, data) for data in inputs}
    assert "accepted" in outcomes
    assert len(outcomes) > 1


@every_target
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_change_makes_a_reader_fail_in_another_way(name, data):
    one = target(name)
    source = random.Random(data.draw(st.integers(0, 2**32), label="changes"))
    changed = data.draw(st.sampled_from(list(one.seeds())), label="seed")
    for _ in range(data.draw(st.integers(1, 3), label="times")):
        changed = mutated(one, changed, source)
    judge(one, changed)


@every_target
def test_a_short_run_of_atheris_finds_nothing(name, tmp_path):
    try:
        import atheris  # noqa: F401
    except ImportError:
        missing("atheris", "pip install atheris (wheels exist for Linux and CPython 3.11 to 3.13)")
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "fuzz",
        name,
        "--runs",
        "500",
        "--folder",
        str(tmp_path / "found"),
        "--json",
        str(figures),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(figures.read_text())["targets"][name]
    assert told["executions"] == 500
    assert len(told["outcomes"]) > 1


class _RefusedError(EdgekitError):
    code = "refusal"


def _target(read) -> Target:
    return Target("x", read, (_RefusedError,), lambda: (b"seed",), lambda data, random: data)


def _raising(error):
    def read(_data):
        raise error

    return read


def _slow(_data):
    import time

    start = time.thread_time()
    while time.thread_time() - start < 1.05:
        pass


def test_the_oracle_lets_documented_refusals_pass_and_nothing_else():
    assert judge(_target(lambda _data: None), b"") == "accepted"
    assert judge(_target(_raising(_RefusedError("no"))), b"") == "refusal"
    with pytest.raises(KeyError):
        judge(_target(_raising(KeyError("x"))), b"")
    with pytest.raises(OracleError, match="not one line"):
        judge(_target(_raising(_RefusedError(""))), b"")
    with pytest.raises(OracleError, match="of processor time"):
        judge(_target(_slow), b"")
