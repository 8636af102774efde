"""What a device expects of its hosts: a real server on loopback, and a clock that only the test moves."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tiny
from refusing import has_code
from scripted import Scripted, http

from edgekit_runtime.bundle import read_bundle
from edgekit_runtime.engines import available
from edgekit_runtime.errors import HostError
from edgekit_runtime.remote.hosts import Hosts
from edgekit_runtime.remote.oip import InferResponse, encode_response

served = pytest.importorskip("served")
pytestmark = pytest.mark.skipif("litert" not in available(), reason="the host's engine here is LiteRT")
ITEM = {"image": tiny.RED}
LONG = 20.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Host:
    """An edgekit host of the tiny model. busy: it says 503. slow_s: how far an inference moves the clock."""

    def __init__(self, manifest, clock):
        self.manifest, self.clock = manifest, clock
        self.busy, self.slow_s, self.asked = False, 0.0, 0

    def __call__(self, asked, _):
        if asked.line.startswith("POST"):
            self.asked += 1
            self.clock.now += self.slow_s
            return http(503, {"error": "it would take too long"}) if self.busy else self._answer()
        if asked.line.split()[1] == "/v2":
            return http(200, {"name": "edgekit", "extensions": ["binary_tensor_data"]})
        ids = {"model_id": self.manifest.model_id, "contract_digest": self.manifest.contract_digest}
        return http(200, {"name": "tiny", "edgekit": ids})

    def _answer(self):
        probs = {"probs": np.array([[1, 0, 0, 0]], np.float32)}
        wire = encode_response(InferResponse(probs, "tiny", "1"), binary=["probs"])
        return http(200, wire.body(), *(f"{k}: {v}" for k, v in wire.headers.items()))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def host(clock, tmp_path):
    return Host(read_bundle(tiny.bundle(tmp_path)).manifest, clock)


@pytest.fixture
def hosts(host, clock):
    with Scripted(host) as server:
        made = Hosts([server.url], host.manifest, ITEM, clock)
        until(made, lambda: made.prospects()[0].p90_ms is not None)
        yield made
        made.close()


def until(hosts, condition):
    deadline = time.monotonic() + LONG
    while not condition() or hosts._hosts[0].probing.locked():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def test_a_host_that_said_503_is_asked_again_within_half_a_second(hosts, host, clock):
    host.busy = True
    with pytest.raises(HostError, check=has_code("host-busy")):
        hosts.infer(0, ITEM, 200.0)
    assert not hosts.prospects()[0].ready
    for _ in range(20):  # a second of it
        clock.now += 0.05
        hosts.prospects()
        until(hosts, lambda: True)
    host.busy = False
    clock.now += 0.5
    hosts.prospects()
    until(hosts, lambda: hosts.prospects()[0].ready)
    assert hosts.prospects()[0].p90_ms < 1.0


def test_a_busy_host_is_not_flooded_with_questions(hosts, host, clock):
    host.busy = True
    with pytest.raises(HostError, check=has_code("host-busy")):
        hosts.infer(0, ITEM, 200.0)
    before = host.asked
    for _ in range(1000):  # ten seconds
        clock.now += 0.01
        hosts.prospects()
        until(hosts, lambda: True)
    assert 20 <= host.asked - before <= 24


def test_one_good_answer_outweighs_all_slow_ones_before_it(hosts, host, clock):
    host.slow_s = 1.5
    for _ in range(50):
        hosts.infer(0, ITEM, 1e5)
    assert hosts.prospects()[0].p90_ms == pytest.approx(1500.0)
    host.slow_s = 0.0
    clock.now += 0.26
    hosts.explore()
    until(hosts, lambda: hosts.prospects()[0].p90_ms < 1.0)


def test_a_slow_host_is_explored_four_times_a_second_and_no_more(hosts, host, clock):
    before = host.asked
    for _ in range(1000):
        clock.now += 0.01
        hosts.explore()
        until(hosts, lambda: True)
    assert 35 <= host.asked - before <= 40


@pytest.mark.parametrize("item", [tiny.RED, (tiny.RED / 255).astype(np.float32)], ids=["pixels", "floats"])
def test_a_host_is_measured_by_what_it_computes_and_not_by_its_cache(item, clock, tmp_path):
    path = tiny.bundle(tmp_path)
    with served.Serving(path) as host:
        hosts = Hosts([host.url], read_bundle(path).manifest, {"image": item}, clock)
        for _ in range(10):
            until(hosts, lambda: True)
            clock.now += 1.0
            hosts.explore()
        until(hosts, lambda: True)
        answers = host.model.stats().meter.answers
        hosts.close()
    assert set(answers) == {"device"}
    assert answers["device"] >= 9


def test_a_503_neither_opens_the_breaker_nor_keeps_it_open(hosts, host):
    host.busy = True
    for _ in range(5):
        with pytest.raises(HostError, check=has_code("host-busy")):
            hosts.infer(0, ITEM, 200.0)
    assert hosts.describe()[0]["breaker"] == "closed"
    assert hosts.describe()[0]["busy"]
