"""The order of trials and when to stop, over pretended engines on a pretended clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from edgekit_runtime.loading.tuning_trial import MANY, ROUNDS, Duel, Enter, Leave, Race


class Board:
    """seconds: what a run of each candidate takes, None for one that is refused. Loading takes load_s.

    noise: by how much a run may be longer. Time passes only by what is done here.
    """

    def __init__(self, seconds, *, load_s=0.05, noise=0.0, seed=0):
        self.seconds, self.load_s, self.noise = seconds, load_s, noise
        self.random = random.Random(seed)
        self.now = 0.0
        self.held: set[int] = set()
        self.most_held = 0
        self.entered: list[int] = []
        self.rounds: dict[int, int] = {}

    def race(self, bound_s):
        race = Race(len(self.seconds), bound_s)
        while (step := race.next(self.now)) is not None:
            self.do(step, race)
        return race

    def do(self, step, race):
        if isinstance(step, Enter):
            self.now += self.load_s
            self.entered.append(step.candidate)
            if self.seconds[step.candidate] is None:
                return
            self.held.add(step.candidate)
            self.most_held = max(self.most_held, len(self.held))
            champion = None if race.champion is None else self.seconds[race.champion]
            race.add(step.candidate, self.run(step.candidate), champion)
        elif isinstance(step, Duel):
            self.rounds[step.challenger] = self.rounds.get(step.challenger, 0) + 1
            self.now += 2 * step.block_s
            race.record_round([self.run(step.champion)], [self.run(step.challenger)])
        else:
            assert isinstance(step, Leave)
            self.held.remove(step.candidate)

    def run(self, candidate):
        return self.seconds[candidate] * (1 + self.noise * self.random.random())


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ([0.003], 0),
        ([0.003, 0.002], 1),
        ([0.002, 0.003, 0.004], 0),
        ([0.009, 0.007, 0.005, 0.003], 3),
        ([None, 0.003], 1),
        ([None, 0.003, None, 0.001], 3),
        ([0.003, None, None], 0),
        ([None, None], None),
    ],
)
def test_the_fastest_that_passes_wins(seconds, best):
    board = Board(seconds)
    assert board.race(5.0).champion == best
    assert board.entered == list(range(len(seconds)))
    assert board.held == ({best} if best is not None else set())


def test_at_a_tie_the_more_promising_one_stays():
    assert Board([0.0030, 0.0029]).race(5.0).champion == 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_let_the_slower_one_win(seed):
    board = Board([0.0030, 0.0024, 0.0040], noise=0.3, seed=seed)
    assert board.race(5.0).champion in (0, 1)
    assert Board([0.0030, 0.0015], noise=0.3, seed=seed).race(5.0).champion == 1


class Busy(Board):
    """Now and then others take the processor: one run in three takes up to four times as long."""

    def run(self, candidate):
        held_up = 1 + 3 * self.random.random() if self.random.random() < 0.33 else 1.0
        return super().run(candidate) * held_up


def test_a_busy_board_settles_on_nothing_that_is_clearly_slower():
    """Of 300 races of two: the slower one is taken seldom, and then mostly in races that are not settled."""
    settled, wrong = 0, 0
    for seed in range(300):
        for seconds, best in (((0.003, 0.002), 1), ((0.002, 0.003), 0)):
            race = Busy(seconds, seed=seed).race(60.0)
            settled += race.settled
            wrong += race.settled and race.champion != best
    assert wrong <= 0.02 * settled
    assert settled > 300


def test_a_quiet_board_settles_and_one_without_time_for_rounds_does_not():
    for seconds in ((0.003, 0.002), (0.002, 0.003), (0.0030, 0.0029), (0.002,), (0.009, 0.007, None, 0.003)):
        assert Board(seconds, noise=0.05).race(5.0).settled
    short = Board([0.003, 0.001], load_s=2.0).race(3.0)
    assert (short.champion, short.settled) == (0, False)


@pytest.mark.parametrize("seed", range(30))
def test_there_is_one_measure_for_all(seed):
    """Ratios are to the champion of the end, whoever was it at the time; the hopeless one ran no round."""
    board = Board([0.009, 0.0085, 0.005, 0.004, 0.0041, 0.1], noise=0.02, seed=seed)
    race = board.race(60.0)
    assert race.ratios[race.champion] == (1.0, 1.0)
    assert race.ratios.keys() == {0, 1, 2, 3, 4}
    for number, seconds in enumerate(board.seconds[:-1]):
        assert race.ratios[number] == pytest.approx((seconds / board.seconds[race.champion],) * 2, rel=0.06)
    assert min(p50 for p50, _ in race.ratios.values()) > 0.95 - 1e-9


def test_no_more_than_two_are_in_memory():
    assert Board([0.005, 0.004, 0.003, 0.002, 0.001]).race(5.0).champion == 4
    board = Board([0.005, 0.004, 0.003])
    board.race(5.0)
    assert board.most_held == 2


def test_effort_goes_where_it_is_close():
    board = Board([0.0010, 0.0025, 0.0013, 0.00101, 0.1])
    board.race(60.0)
    assert board.rounds == {1: 2, 2: 3, 3: MANY}, "the hopeless one never duels"


def test_a_close_duel_leaves_time_for_those_that_wait():
    board = Board([0.010, 0.0101, 0.0099, 0.0102], load_s=0.5)
    board.race(5.0)
    assert board.entered == [0, 1, 2, 3]
    assert min(board.rounds.values()) > ROUNDS


def test_slow_candidates_that_are_close_have_equal_shares_of_the_time():
    """Each duel ran its fourteen rounds, and the last candidates did not enter."""
    board = Board([0.060, 0.058, 0.061, 0.059, 0.062, 0.057], load_s=0.3, noise=0.1)
    board.race(5.0)
    assert board.entered == [0, 1, 2, 3, 4, 5]
    assert min(board.rounds.values()) > ROUNDS


def test_when_the_bound_is_over_nobody_else_enters():
    board = Board([0.002, 0.003, 0.001, 0.001], load_s=2.0)
    board.race(5.0)
    assert board.entered == [0, 1, 2]


def test_the_first_that_passes_is_looked_for_whatever_the_bound():
    board = Board([None, None, 0.002, 0.001], load_s=4.0)
    assert board.race(5.0).champion == 2


@settings(max_examples=examples(60))
@given(
    seconds=st.lists(st.one_of(st.none(), st.floats(1e-6, 1.0)), min_size=1, max_size=12),
    load_s=st.floats(0.0, 3.0),
    bound_s=st.floats(0.5, 10.0),
    noise=st.floats(0, 0.5),
)
def test_it_always_ends_with_one_that_passed_and_frees_the_others(seconds, load_s, bound_s, noise):
    board = Board(seconds, load_s=load_s, noise=noise)
    race = board.race(bound_s)
    assert board.most_held <= 2
    entered_well = [n for n in board.entered if seconds[n] is not None]
    assert race.champion in entered_well if entered_well else race.champion is None
    assert board.held == ({race.champion} if entered_well else set())
    if entered_well:
        refused_first = board.entered.index(entered_well[0]) + 1
        assert board.now <= max(bound_s, refused_first * load_s) + load_s + 0.5
