"""Property tests try other examples in each run, and a slow machine fails none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from property_examples import examples


def test_no_property_test_has_a_deadline():
    assert settings.default.deadline is None


@pytest.mark.parametrize("ci", ["true", ""])
def test_ci_does_not_try_the_same_examples_each_time(ci):
    script = """
import property_examples as examples
examples.load_profile()
from hypothesis import given, strategies as st
tried = []
@given(st.binary(min_size=32, max_size=32))
def property(value): tried.append(value)
property()
print(len(tried), tried)
"""
    environ = {
        **os.environ,
        "CI": ci,
        "PYTHONPATH": str(Path(__file__).parent / "support"),
        "EDGEKIT_TEST_EXAMPLES": "0.2",
    }
    runs = [
        subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert [run.split()[0] for run in runs] == ["20", "20"]
    assert runs[0] != runs[1]


def test_a_share_leaves_ten_examples():
    assert examples(1) == 10
