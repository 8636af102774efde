"""What a device expects of its hosts: a real server on loopback, and a clock that only the test moves."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tiny
from refusing import has_code
from scripted import Scripted, http
from tiny_host import TinyHost

from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.engines.registry import available
from edgekit_runtime.loading.replay import ReplayExample
from edgekit_runtime.remote.hosts import CONNECTIONS, Hosts
from edgekit_runtime.system.errors import HostError

served = pytest.importorskip("served")
pytestmark = pytest.mark.skipif("litert" not in available(), reason="the host's engine here is LiteRT")
ITEM = {"image": tiny.RED}
SIZE = tiny.RED.nbytes
LONG = 20.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def advance(self, step_s):
        self.now += step_s


def busy(_):
    return http(503, {"error": "it would take too long"})


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def host(clock, tmp_path):
    return TinyHost(read_bundle(tiny.bundle(tmp_path)).manifest)


@pytest.fixture
def hosts(host, clock):
    with Scripted(host) as server:
        made = Hosts([server.url], host.manifest, ReplayExample(ITEM), clock)
        until(made, lambda: made.outlooks(SIZE)[0].ready)
        yield made
        made.close()


def until(hosts, condition):
    deadline = time.monotonic() + LONG
    while not condition() or hosts._hosts[0].probing.locked():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def ask(hosts, left_s=0.2):
    return hosts.infer(0, ITEM, left_s)


def looked(hosts, clock, step_s):
    """The clock moves; requests that look at the hosts come all the time."""
    clock.now += step_s
    hosts.look()
    until(hosts, lambda: True)


def test_a_host_that_said_503_for_a_second_is_asked_again_within_half_a_second(hosts, host, clock):
    host.fault = busy
    with pytest.raises(HostError, check=has_code("host-busy")):
        ask(hosts)
    assert not hosts.outlooks(SIZE)[0].ready
    for _ in range(20):
        looked(hosts, clock, 0.05)
    host.fault = None
    looked(hosts, clock, 0.5)
    until(hosts, lambda: hosts.outlooks(SIZE)[0].ready)


def test_a_busy_host_is_not_flooded_with_questions(hosts, host, clock):
    host.fault = busy
    with pytest.raises(HostError, check=has_code("host-busy")):
        ask(hosts)
    before = host.inferred
    for _ in range(1000):  # ten seconds
        looked(hosts, clock, 0.01)
    assert 20 <= host.inferred - before <= 24


def test_a_host_that_was_slow_is_known_to_be_fast_again_within_a_second(hosts, host, clock):
    host.before = lambda: clock.advance(1.5)
    for _ in range(50):
        ask(hosts, 100.0)
    assert hosts.outlooks(SIZE)[0].chance(200.0) == 0.0
    host.before = lambda: None
    for _ in range(100):
        hosts.matter()
        looked(hosts, clock, 0.01)
    assert hosts.outlooks(SIZE)[0].chance(200.0) > 0.3


def test_a_host_that_matters_is_pinged_four_times_a_second_and_no_more(hosts, host, clock):
    before, inferred = host.pinged, host.inferred
    for _ in range(1000):
        hosts.matter()
        looked(hosts, clock, 0.01)
    assert 35 <= host.pinged - before <= 40
    assert host.inferred == inferred


def test_a_host_that_does_not_matter_is_pinged_every_five_seconds(hosts, host, clock):
    before = host.pinged
    for _ in range(1000):
        looked(hosts, clock, 0.01)
    assert host.pinged - before == 1


def test_what_must_not_travel_has_no_hosts(hosts):
    assert hosts.outlooks(None) == ()


def test_the_host_hears_when_the_answer_is_wanted_not_how_long_the_device_waits(hosts, host):
    hosts.infer(0, ITEM, 0.2, 1.0)
    wanted = host.parameters["timeout"]
    assert 0 < wanted <= 200_000


def test_sixty_four_are_on_their_way_at_once(clock, tmp_path):
    manifest = read_bundle(tiny.bundle(tmp_path)).manifest
    together = threading.Barrier(CONNECTIONS)
    host = TinyHost(manifest)

    def waiting(asked, sock):
        if asked.line.startswith("POST") and host.inferred:
            together.wait(LONG)
        return host(asked, sock)

    with Scripted(waiting) as server:
        hosts = Hosts([server.url], manifest, ReplayExample(ITEM), clock)
        until(hosts, lambda: hosts.outlooks(SIZE)[0].ready)
        asked = [hosts.submit(lambda: hosts.infer(0, ITEM, LONG)) for _ in range(CONNECTIONS)]
        assert all(one.result(LONG) for one in asked)
        hosts.close()


@pytest.mark.parametrize("item", [tiny.RED, (tiny.RED / 255).astype(np.float32)], ids=["pixels", "floats"])
def test_a_host_is_proven_by_what_it_computes_and_not_by_its_cache(item, clock, tmp_path):
    path = tiny.bundle(tmp_path)
    with served.Serving(path) as host:
        hosts = Hosts([host.url], read_bundle(path).manifest, ReplayExample({"image": item}), clock)
        until(hosts, lambda: hosts.outlooks(SIZE)[0].ready)
        for _ in range(10):
            hosts._hosts[0].model.prove(LONG)
        answers = host.model.stats().meter.answers
        hosts.close()
    assert set(answers) == {"device"}
    assert answers["device"] >= 9


def test_a_503_neither_opens_the_breaker_nor_keeps_it_open(hosts, host):
    host.fault = busy
    for _ in range(5):
        with pytest.raises(HostError, check=has_code("host-busy")):
            ask(hosts)
    assert hosts.describe()[0]["breaker"] == "closed"
    assert hosts.describe()[0]["busy"]


def test_a_host_that_is_gone_is_pinged_and_sees_no_example_before_it_is_back(host, clock):
    with Scripted(host) as server:
        made = Hosts([server.url], host.manifest, ReplayExample(ITEM), clock)
        until(made, lambda: made.outlooks(SIZE)[0].ready)
        before, down = host.inferred, [True]
        host.ready = lambda: http(503, {"error": "starting"}) if down else None
        for _ in range(100):
            made.matter()
            looked(made, clock, 0.05)
        assert not made.outlooks(SIZE)[0].ready
        assert host.inferred == before
        down.clear()
        looked(made, clock, 0.5)
        until(made, lambda: made.outlooks(SIZE)[0].ready)
        assert host.inferred == before + 1
        made.close()
