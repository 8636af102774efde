"""The tier that hosts share, against a real server; the breaker's clock is the test's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
from redis_server import RedisServer

from edgekit_runtime import CacheOptions, open_bundle
from edgekit_runtime.cache.memory_tier import MISS
from edgekit_runtime.cache.shared import READERS
from edgekit_runtime.cache.stored_answers import KeptForm
from edgekit_runtime.system.errors import OptionError

LONG = 30.0


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture
def make(server):
    """A tier of the server: make(...)."""
    from edgekit_runtime.cache.shared import SharedCache

    made = []

    def make(namespace=b"model", **options):
        url, wait_s = options.pop("url", server.url), options.pop("wait_s", LONG)
        made.append(SharedCache(url, KeptForm(namespace), wait_s=wait_s, **options))
        return made[-1]

    yield make
    server.go_on()
    for tier in made:
        tier.close()


def outputs(fill=1, size=4):
    return {"y": np.full(size, fill, np.uint8)}


def redis_of(server):
    import redis

    return redis.Redis.from_url(server.url)


def test_one_host_finds_what_another_computed_and_no_other_model_does(make):
    one, two, other = make(b"a"), make(b"a"), make(b"b")
    one.put(b"k", outputs(7))
    assert one.sync()
    assert two.get(b"k")["y"].tolist() == [7] * 4
    assert other.get(b"k") is MISS
    other.put(b"k", outputs(8))
    assert other.sync()
    one.flush()
    assert one.sync()
    assert two.get(b"k") is MISS
    assert other.get(b"k")["y"][0] == 8


def test_the_server_forgets_by_itself(make, server):
    one = make(b"ttl", ttl_s=100.0)
    one.put(b"k", outputs())
    day = make(b"day")
    day.put(b"k", outputs())
    assert one.sync()
    assert day.sync()
    left = {key.split(b":")[2]: redis_of(server).ttl(key) for key in redis_of(server).keys("edgekit:2:*")}
    assert 0 < left[b"ttl".hex().encode()] <= 100
    assert 86_000 < left[b"day".hex().encode()] <= 86_400


def test_values_are_bounded_both_ways(make, server):
    small = make(b"small", max_bytes=1000)
    assert small.put(b"k", outputs(size=2000)) is False
    assert small.stats().lost == 1
    small.put(b"k", outputs())
    assert small.sync()
    (name,) = redis_of(server).keys("edgekit:2:" + b"small".hex() + ":*")
    redis_of(server).set(name, b"x" * 2000)  # another program's
    assert small.get(b"k") is MISS


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 200])
def test_a_value_that_changed_is_a_miss(make, server, damage):
    one = make(b"damaged")
    one.put(b"k", outputs())
    assert one.sync()
    name = "edgekit:2:" + b"damaged".hex() + ":k"
    value = bytearray(redis_of(server).get(name))
    value[-12] ^= 1
    redis_of(server).set(name, damage or bytes(value))
    assert one.get(b"k") is MISS
    redis_of(server).delete(name)
    redis_of(server).lpush(name, 1)  # of another kind
    assert one.get(b"k") is MISS


def test_a_server_that_hangs_is_left_alone_after_five_and_asked_again_later(make, server):
    clock = Clock()
    one = make(b"hangs", wait_s=LONG, clock=clock)
    one.put(b"k", outputs(3))
    assert one.sync()
    assert one.get(b"k")["y"][0] == 3
    server.hold()
    failed = 0
    while one._breaker.state == "closed":  # each exchange is given up by our own thread
        assert one.get(b"k") is MISS
        failed += 1
    assert failed == 5
    for _ in range(100):
        assert one.get(b"k") is MISS
    assert one.stats().skipped == 100
    assert one.put(b"new", outputs()) is False
    server.go_on()
    assert one.get(b"k") is MISS
    clock.now += 0.25
    assert one.get(b"k")["y"][0] == 3
    assert one._breaker.state == "closed"


def test_a_lookup_that_takes_longer_than_it_may_is_a_miss_and_the_next_does_not_wait_behind_it(make, server):
    one = make(b"late", wait_s=0.0)
    server.hold()
    for _ in range(READERS + 1):
        assert one.get(b"k") is MISS
    stats = one.stats()
    assert (stats.late, stats.skipped, stats.failed) == (READERS, 1, 0)


def test_callers_look_up_side_by_side_and_only_one_more_than_there_are_readers_is_skipped(make):
    one = make(b"together")
    one.put(b"k", outputs(5))
    assert one.sync()
    strlen, together = one._server.strlen, threading.Barrier(READERS + 1)

    def waiting(name):
        together.wait(LONG)  # all are on their way
        together.wait(LONG)  # the one too many has heard
        return strlen(name)

    one._server.strlen = waiting
    with ThreadPoolExecutor(READERS) as callers:
        asked = [callers.submit(one.get, b"k") for _ in range(READERS)]
        together.wait(LONG)
        assert one.get(b"k") is MISS
        together.wait(LONG)
        assert [found.result(LONG)["y"][0] for found in asked] == [5] * READERS
    stats = one.stats()
    assert (stats.hits, stats.skipped, stats.late, stats.failed) == (READERS, 1, 0, 0)
    one._server.strlen = strlen
    assert one.get(b"k")["y"][0] == 5


def test_a_server_that_is_gone_costs_no_answer_and_is_used_again_when_it_is_back(make, tmp_path):
    clock = Clock()
    with RedisServer(tmp_path) as own:
        one = make(b"gone", url=own.url, clock=clock)
        one.put(b"k", outputs())
        assert one.sync()
        own.kill()
        for _ in range(20):
            assert one.get(b"k") is MISS
        assert one.stats().failed == 5
        own.start()
        clock.now += 1
        assert one.get(b"k") is MISS  # it came back empty
        assert one.put(b"k", outputs())
        assert one.sync()
        assert one.get(b"k") is not MISS


def test_a_flush_that_the_server_did_not_hear_still_holds(make, tmp_path):
    with RedisServer(tmp_path) as own:
        one = make(b"flushed", url=own.url)
        one.put(b"k", outputs())
        assert one.sync()
        own.hold()
        one.flush()
        assert one.get(b"k") is MISS
        assert one.put(b"k", outputs()) is False
        own.go_on()
        assert one.sync()
        assert one.get(b"k") is MISS


def test_a_lookup_that_meets_the_end_of_its_model_is_a_miss(make):
    one = make(b"closing")
    one.put(b"k", outputs())
    assert one.sync()
    one.close()
    assert one.get(b"k") is MISS
    assert one._read(b"k", note=True) is None  # it had looked just before the end
    assert one.put(b"k", outputs()) is False


def test_two_models_answer_from_each_others_work(server, tmp_path):
    path = tiny.bundle(tmp_path)
    options = CacheOptions(memory_mb=1, shared=server.url)
    with open_bundle(path, cache=options) as one, open_bundle(path, cache=options) as two:
        for model in (one, two):
            model._journey.cache._disk._wait_s = LONG
            model._journey.cache._disk_worth._cost_s = None
        first = one.predict(tiny.RED)
        one._journey.cache._disk.put(_key(one), dict(first.outputs))  # a network of microseconds is not worth writing
        assert one._journey.cache._disk.sync()
        assert two._journey.cache.lookup(_key(one)).tier == "shared"
        assert two.stats().cache.shared.hits == 1
        assert two.stats().cache.disk is None
        assert 'tier="shared"' in two.metrics_text()


def _key(model):
    from edgekit_runtime.cache.identity import identify

    return identify({"image": tiny.RED}, model.kept_form.namespace)[0]


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(OptionError, match="redis://"):
        CacheOptions(shared="http://x")
    with pytest.raises(OptionError, match="disk"):
        CacheOptions(shared="redis://x", disk="answers.db")
