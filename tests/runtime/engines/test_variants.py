"""Several items at once: right answers for each, in the runs that take the least time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.engines.registry import Engine, EngineInfo
from edgekit_runtime.engines.variants import BatchEngine, least_time
from edgekit_runtime.system.errors import EngineError


class Doubling(Engine):
    """Doubles its input; a size of -1 takes any batch. Refuses a row of zeros, as an int8 division by it would."""

    def __init__(self, size: int, width: int = 3) -> None:
        self.info = EngineInfo("doubling", "1", 1)
        self.inputs = (TensorSpec("x", "x", "int32", (size, width)),)
        self.outputs = (TensorSpec("y", "y", "int32", (size, width)),)
        self.ran: list[int] = []
        self.closed = False

    def run(self, inputs):
        (x,) = inputs
        assert self.inputs[0].shape[0] in (-1, len(x))
        if (x == 0).all(1).any():
            raise EngineError("a row of zeros")
        self.ran.append(len(x))
        return [x * 2]

    def close(self):
        self.closed = True


def items(count, width=3):
    return [[np.full((1, width), n + 1, np.int32)] for n in range(count)]


def doubled(results):
    return [int(result[0][0, 0]) for result in results]


@pytest.fixture
def fixed():
    engines = {size: Doubling(size) for size in (1, 2, 4, 8)}
    return BatchEngine(engines, seconds={1: 1.0, 2: 1.5, 4: 2.0, 8: 3.0}), engines


@pytest.mark.parametrize("count", range(1, 20))
def test_every_item_gets_its_own_answer(fixed, count):
    engine, _ = fixed
    assert doubled(engine.run_batch(items(count))) == [2 * (n + 1) for n in range(count)]


def test_answers_of_one_batch_stay_when_the_next_runs(fixed):
    engine, _ = fixed
    first = engine.run_batch(items(4))
    engine.run_batch(items(4)[::-1])
    assert doubled(first) == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("count", "runs"),
    [(1, (1,)), (2, (2,)), (3, (4,)), (4, (4,)), (5, (8,)), (8, (8,)), (9, (8, 1)), (11, (8, 4)), (16, (8, 8))],
)
def test_what_fits_no_size_is_padded_where_that_takes_less_time(fixed, count, runs):
    engine, engines = fixed
    engine.run_batch(items(count))
    assert engine.plan(count) == runs
    assert sorted(itertools.chain(*(one.ran for one in engines.values())), reverse=True) == list(runs)


def test_nothing_is_padded_where_a_batch_gains_nothing():
    engine = BatchEngine({1: Doubling(1), 4: Doubling(4)}, seconds={1: 1.0, 4: 3.9})
    assert [engine.plan(count) for count in (2, 3, 4, 5)] == [(1, 1), (1, 1, 1), (4,), (4, 1)]


def test_padding_is_never_a_row_of_zeros(fixed):
    engine, _ = fixed
    assert len(engine.run_batch(items(3))) == 3


def test_a_free_batch_axis_takes_any_number_up_to_its_largest():
    single = Doubling(-1)
    engine = BatchEngine({1: single}, any_size=8, seconds={1: 1.0, 4: 1.2, 8: 1.5})
    assert doubled(engine.run_batch(items(11))) == [2 * (n + 1) for n in range(11)]
    assert single.ran == [8, 3]
    assert (engine.sizes, engine.largest) == ((1, 4, 8), 8)


def test_items_of_different_lengths_run_one_by_one():
    single = Doubling(-1, width=-1)
    engine = BatchEngine({1: single}, any_size=8)
    mixed = [*items(2, width=3), *items(1, width=5)]
    assert [result[0].shape for result in engine.run_batch(mixed)] == [(1, 3), (1, 3), (1, 5)]
    assert single.ran == [1, 1, 1]


def test_an_error_is_raised_and_the_next_batch_runs(fixed):
    engine, _ = fixed
    with pytest.raises(EngineError, match="zeros"):
        engine.run_batch([[np.zeros((1, 3), np.int32)], *items(3)])
    assert doubled(engine.run_batch(items(4))) == [2, 4, 6, 8]


def test_closing_closes_all(fixed):
    engine, engines = fixed
    engine.close()
    assert all(one.closed for one in engines.values())


@given(
    count=st.integers(1, 40),
    seconds=st.dictionaries(st.sampled_from([2, 3, 4, 8, 16]), st.floats(0.1, 20), max_size=4),
    single=st.floats(0.1, 5),
)
def test_no_other_way_takes_less_time(count, seconds, single):
    seconds = {1: single, **seconds}
    runs = least_time(count, seconds)
    assert sum(runs) >= count
    assert sum(runs) - min(runs) < count, "no run is without an item"
    total = sum(seconds[size] for size in runs)
    assert total <= count * single + 1e-9
    for size, takes in seconds.items():  # greedy with any one size is no better
        assert total <= takes * -(-count // size) + 1e-9
