"""A cache that never hits stops looking; one that begins to hit looks again; one that pays is never stopped."""

from __future__ import annotations

import random

import pytest

from edgekit_runtime.cache.tiered import Worth

US = 1e-6


class Board:
    """A journey in miniature: what requests cost with and without a look at the cache, on a clock of its own."""

    def __init__(self, *, compute_s, lookup_s, hit_rate, seed=1):
        self.worth = Worth()
        self.now = 0.0
        self.compute_s, self.lookup_s, self.hit_rate = compute_s, lookup_s, hit_rate
        self.looked = self.hits = 0
        self._random = random.Random(seed)

    def request(self):
        if not self.worth.pays(self.now):
            self.now += self.compute_s
            self.worth.record_saving(self.compute_s)
            return
        self.looked += 1
        self.now += self.lookup_s
        self.worth.costs(self.lookup_s)
        hit = self._random.random() < self.hit_rate
        self.worth.record_lookups(hit, self.now)
        self.hits += hit
        if not hit:
            self.now += self.compute_s
            self.worth.record_saving(self.compute_s)

    def run(self, n):
        for _ in range(n):
            self.request()
        return self


NETS = {"tiny": 12 * US, "small": 100 * US, "MobileNet": 3000 * US, "slow": 0.06}


@pytest.mark.parametrize("net", NETS)
def test_without_a_hit_all_the_looking_costs_less_than_a_hundredth(net):
    board = Board(compute_s=NETS[net], lookup_s=6 * US, hit_rate=0.0).run(200_000)
    spent = board.looked * board.lookup_s
    assert spent <= 0.01 * 200_000 * NETS[net], "which is what looking at every request may cost"


def test_a_tiny_network_gives_up_within_a_hundred_requests():
    board = Board(compute_s=12 * US, lookup_s=6 * US, hit_rate=0.0).run(100)
    assert board.looked < 100
    assert not board.worth.stats().looking


def test_a_slow_network_goes_on_looking_while_a_rare_hit_would_still_pay():
    board = Board(compute_s=0.06, lookup_s=6 * US, hit_rate=0.0).run(5_000)
    assert board.looked == 5_000


@pytest.mark.parametrize("lookup_us", [7.5, 20, 29])
def test_a_lookup_below_a_hundredth_of_what_a_hit_saves_is_always_made(lookup_us):
    """Pictures asked twice, a thousand others between: the second time is a hit, after however many misses."""
    board = Board(compute_s=0.003, lookup_s=lookup_us * US, hit_rate=0.0).run(20_000)
    assert board.looked == 20_000
    assert board.worth.stats().stops == 0


def test_one_slow_lookup_does_not_end_the_looking():
    board = Board(compute_s=0.003, lookup_s=20 * US, hit_rate=0.0).run(1_000)
    for _ in range(5):
        board.worth.costs(0.05)
        board.run(200)
    assert board.worth.stats().stops == 0


def test_lookups_that_became_slow_for_good_are_followed():
    board = Board(compute_s=0.003, lookup_s=20 * US, hit_rate=0.0).run(1_000)
    board.lookup_s = 0.001
    board.run(200)
    assert not board.worth.stats().looking


def test_a_lookup_above_a_hundredth_is_given_up_where_nothing_hits():
    board = Board(compute_s=0.003, lookup_s=40 * US, hit_rate=0.0).run(20_000)
    assert board.looked < 5_000


@pytest.mark.parametrize("hit_rate", [0.01, 0.1, 0.5, 0.99])
def test_a_cache_that_pays_is_never_stopped_for_long(hit_rate):
    board = Board(compute_s=0.003, lookup_s=6 * US, hit_rate=hit_rate).run(50_000)
    assert board.looked >= 0.99 * 50_000


def test_hits_that_save_less_than_looking_costs_do_not_keep_it():
    board = Board(compute_s=12 * US, lookup_s=6 * US, hit_rate=0.2).run(50_000)
    assert board.looked < 0.2 * 50_000


def test_what_begins_to_repeat_is_noticed_within_seconds():
    board = Board(compute_s=100 * US, lookup_s=6 * US, hit_rate=0.0).run(300_000)
    assert not board.worth.stats().looking
    board.hit_rate, start = 0.9, board.now
    while not (board.worth.stats().looking and board.hits > 100):
        board.request()
    assert board.now - start <= 6.0


def test_what_ceases_to_repeat_is_noticed_too():
    board = Board(compute_s=12 * US, lookup_s=6 * US, hit_rate=0.9).run(100_000)
    before = board.looked
    board.hit_rate = 0.0
    board.run(100_000)
    assert board.looked - before < 5_000


def test_nothing_is_decided_before_anything_was_measured():
    worth = Worth()
    for number in range(1000):
        assert worth.pays(float(number))
        worth.record_lookups(False, float(number))


def test_stats_say_what_it_goes_by():
    stats = Board(compute_s=0.003, lookup_s=6 * US, hit_rate=0.5).run(1000).worth.stats()
    assert stats.looking
    assert stats.hit_rate == pytest.approx(0.5, abs=0.1)
    assert stats.lookup_us == pytest.approx(6, rel=0.01)
    assert stats.saves_us == pytest.approx(3000, rel=0.01)
    assert (stats.skipped, stats.stops) == (0, 0)
