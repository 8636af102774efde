"""Where a training stands, on the disk: its own state or none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgekit_converters.compress.losses import TrainingOptions
from edgekit_converters.compress.train import _load, _save, _State

OPTIONS = TrainingOptions(key="run")
NETWORK: Any = SimpleNamespace(variables=[None] * 2, others=[None])  # of it, only how many there are is asked


@pytest.fixture
def state(tmp_path):
    drawn = np.random.default_rng(3)
    values = [drawn.normal(size=shape).astype(np.float32) for shape in ((3, 2), (2,), (2,))]
    moments = [np.zeros_like(value) for value in (*values[:2], *values[:2])]
    _save(tmp_path / "state", OPTIONS, _State(values, moments, values, 7, 5, score=(0.5, 1.0)))
    return tmp_path / "state"


def test_it_comes_back(state):
    found = _load(state, OPTIONS, NETWORK)
    assert (found.step, found.best_step, found.score) == (7, 5, (0.5, 1.0))
    assert [value.shape for value in found.values] == [(3, 2), (2,), (2,)]


def test_another_runs_state_is_none(state):
    assert _load(state, replace(OPTIONS, key="another"), NETWORK) is None


def test_with_one_bit_flipped_it_is_none(state):
    stored = state.read_bytes()
    for place in range(0, len(stored), 7):
        damaged = bytearray(stored)
        damaged[place] ^= 1 << place % 8
        state.write_bytes(damaged)
        assert _load(state, OPTIONS, NETWORK) is None
    for end in range(0, len(stored), 101):
        state.write_bytes(stored[:end])
        assert _load(state, OPTIONS, NETWORK) is None


def test_what_others_could_have_written_is_none(state):
    state.chmod(0o666)
    assert _load(state, OPTIONS, NETWORK) is None
