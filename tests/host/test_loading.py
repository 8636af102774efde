"""Models that come and go while the server runs, and what it counts."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
import tiny
from prometheus_client.parser import text_string_to_metric_families
from served import Serving

from edgekit.host.http1 import ServeError
from edgekit.host.models import Repository
from edgekit.host.server import Protection
from edgekit_runtime.bundle import reader
from edgekit_runtime.remote.oip import encode_request

LONG = 30.0
ADMIN, BOARD = "a" * 40, "b" * 40
BODY = encode_request({"image": tiny.RED[None]}, binary=False).body()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Two versions of tiny."""
    folder = tmp_path_factory.mktemp("bundles")
    return tiny.bundle(folder), tiny.bundle(folder, "onnx-f32", version="2")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def protection(tmp_path):
    lines = [f"{name} {sha256(token.encode()).hexdigest()} 10000 {role}" for name, token, role in
             (("op", ADMIN, "admin"), ("board", BOARD, ""))]  # fmt: skip
    (tmp_path / "tokens.txt").write_text("\n".join(lines))
    return Protection(tokens=tmp_path / "tokens.txt")


def ask(host, target, body=None, token=ADMIN, method="POST"):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
    try:
        connection.request(method, target, body, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def infer(host, version=""):
    return ask(host, f"/v2/models/tiny{version}/infer", BODY, BOARD)[0]


def states(host):
    return {(one["name"], one["version"]): one["state"] for one in ask(host, "/v2/repository/index")[1]}


def test_a_model_of_the_folder_is_answered_from_when_it_is_loaded_until_it_is_unloaded(bundles, folder, protection):
    for bundle in bundles:
        shutil.copy(bundle, folder)
    with Serving(folder=folder, protection=protection) as host:
        assert states(host) == {("tiny", "1"): "UNAVAILABLE", ("tiny", "2"): "UNAVAILABLE"}
        assert ask(host, "/v2/repository/index", b'{"ready": true}')[1] == []
        assert "model_repository" in ask(host, "/v2", method="GET")[1]["extensions"]
        assert infer(host) == 404
        assert ask(host, "/v2/repository/models/tiny/load") == (200, {})
        assert states(host) == {("tiny", "1"): "READY", ("tiny", "2"): "READY"}
        assert [infer(host, version) for version in ("", "/versions/1", "/versions/2")] == [200] * 3
        only_one = json.dumps({"parameters": {"version": "1"}}).encode()
        assert ask(host, "/v2/repository/models/tiny/unload", only_one) == (200, {})
        assert [infer(host, version) for version in ("", "/versions/1", "/versions/2")] == [200, 404, 200]
        assert ask(host, "/v2/repository/models/tiny/unload") == (200, {})
        assert infer(host) == 404
        assert ask(host, "/v2/repository/models/tiny/unload")[0] == 404
        assert host.call(lambda: host.api._lanes) == {}
        assert ask(host, "/v2/repository/models/tiny/load", only_one) == (200, {})
        assert infer(host) == 200


def test_only_an_admin_may_and_only_out_of_the_folder(bundles, folder, protection, tmp_path):
    shutil.copy(bundles[0], folder)
    (folder / "linked.ekb").symlink_to(bundles[1])
    with Serving(folder=folder, protection=protection) as host:
        for what in ("load", "unload"):
            assert ask(host, f"/v2/repository/models/tiny/{what}", token=BOARD)[0] == 403
            assert ask(host, f"/v2/repository/models/tiny/{what}", token="nobody")[0] == 401
            assert ask(host, f"/v2/repository/models/tiny/{what}", method="GET")[0] == 405
        for name in ("nobody", "..%2Fbundles%2Ftiny", "%2Fetc%2Fpasswd", "tiny.ekb", "linked"):
            assert ask(host, f"/v2/repository/models/{name}/load")[0] == 404
        assert states(host) == {("tiny", "1"): "UNAVAILABLE"}
        wrong = json.dumps({"parameters": {"version": 1}}).encode()
        assert ask(host, "/v2/repository/models/tiny/load", wrong)[0] == 400
        assert ask(host, "/v2/repository/models/tiny/load", b"[")[0] == 400
    with Serving(bundles[0], protection=protection) as host:
        assert ask(host, "/v2/repository/models/tiny/load")[0] == 404
        assert ask(host, "/v2", method="GET")[1]["extensions"] == ["binary_tensor_data"]


def test_what_cannot_be_loaded_says_why_and_what_answered_before_answers_still(bundles, folder, protection):
    data = bytearray(bundles[1].read_bytes())
    data[-100] ^= 1
    (folder / "second.ekb").write_bytes(data)
    (folder / "other.ekb").write_text("hello")
    with Serving(bundles[0], folder=folder, protection=protection) as host:
        status, said = ask(host, "/v2/repository/models/tiny/load")
        assert status == 400
        assert "cannot be loaded" in said["error"]
        listed = {(one["name"], one["version"]): one for one in ask(host, "/v2/repository/index")[1]}
        assert (listed["tiny", "1"]["state"], listed["tiny", "2"]["state"]) == ("READY", "UNAVAILABLE")
        assert listed["tiny", "2"]["reason"] in said["error"]
        assert listed["other", ""]["reason"]
        assert infer(host) == 200


class Held:
    """Stands before the opening of a bundle until it is let go."""

    def __init__(self, repository):
        self.entered, self.let = threading.Event(), threading.Event()
        self._open, repository._opener = repository._opener, self

    def __call__(self, path):
        self.entered.set()
        assert self.let.wait(LONG)
        return self._open(path)


def test_a_model_is_not_ready_before_it_is_warm_and_others_are_answered_meanwhile(bundles, folder, protection):
    shutil.copy(bundles[1], folder)
    with Serving(bundles[0], folder=folder, protection=protection) as host, ThreadPoolExecutor(1) as pool:
        held = Held(host.repository)
        loading = pool.submit(ask, host, "/v2/repository/models/tiny/load")
        assert held.entered.wait(LONG)
        assert ask(host, "/v2/models/tiny/versions/2/ready", method="GET")[0] == 503
        assert states(host)["tiny", "2"] == "LOADING"
        assert [infer(host), infer(host, "/versions/2")] == [200, 503]
        held.let.set()
        assert loading.result(LONG) == (200, {})
        assert ask(host, "/v2/models/tiny/versions/2/ready", method="GET")[0] == 200


def test_ready_means_that_every_batch_size_has_run(folder, protection, tmp_path):
    path = tiny.bundle(tmp_path, "tflite-f32, any number")
    ran = []
    with Serving(folder=folder, protection=protection) as host:
        shutil.copy(path, folder)
        opener = host.repository._opener

        def noting(path):
            served = opener(path)
            ran.append(set(served.model._journey.device.engine.seconds))
            return served

        host.repository._opener = noting
        assert ask(host, "/v2/repository/models/tiny/load")[0] == 200
        costs = host.repository.all()[0].model._journey.device.costs
        assert set(costs.sizes) <= ran[0]


def test_a_client_that_leaves_ends_no_load_halfway(bundles, folder, protection):
    shutil.copy(bundles[0], folder)
    with Serving(folder=folder, protection=protection) as host:
        held = Held(host.repository)
        connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
        connection.request("POST", "/v2/repository/models/tiny/load", None, {"Authorization": f"Bearer {ADMIN}"})
        assert held.entered.wait(LONG)
        connection.close()
        held.let.set()
        until = time.monotonic() + LONG
        while states(host)["tiny", "1"] != "READY":
            assert time.monotonic() < until
        assert infer(host) == 200


def test_unloading_waits_for_requests_that_were_let_in(bundles, folder, protection):
    with Serving(bundles[0], folder=folder, protection=protection, cache=False) as host, ThreadPoolExecutor(2) as pool:
        entered, let = threading.Event(), threading.Event()
        engine = host.model._journey.device.engine
        run = engine.run

        def waits(tensors):
            entered.set()
            assert let.wait(LONG)
            return run(tensors)

        engine.run = waits
        asked = pool.submit(infer, host)
        assert entered.wait(LONG)
        unloading = pool.submit(ask, host, "/v2/repository/models/tiny/unload")
        until = time.monotonic() + LONG
        while ask(host, "/v2/models/tiny", method="GET")[0] != 404:
            assert time.monotonic() < until
        assert not unloading.done()
        let.set()
        assert (asked.result(LONG), unloading.result(LONG)) == (200, (200, {}))


def test_a_folder_that_is_none_is_one_clear_error(tmp_path):
    with pytest.raises(ServeError, match="not a folder"):
        Serving(folder=tmp_path / "absent")


def test_the_metrics_are_a_page_that_prometheus_reads(bundles, folder, protection):
    with Serving(bundles[0], folder=folder, protection=protection, cache=False, instances=2) as host:
        assert [infer(host) for _ in range(3)] == [200] * 3
        assert infer(host, "/versions/9") == 404
        connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {BOARD}"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    tiny_model = ("model", "tiny"), ("version", "1")
    assert samples["edgekit_host_responses_total", ("status", "200")] == 3
    assert samples["edgekit_host_responses_total", ("status", "404")] == 1
    assert samples["edgekit_host_responses_total", ("status", "503")] == 0
    assert samples["edgekit_requests_total", tiny_model[0], ("source", "device"), tiny_model[1]] == 3
    assert samples["edgekit_requests_total", ("copy", "2"), tiny_model[0], ("source", "device"), tiny_model[1]] == 0
    assert samples[("edgekit_host_items", *tiny_model)] == 0
    assert 0 < samples[("edgekit_host_expected_seconds", *tiny_model)] < LONG
    assert 0 <= samples[("edgekit_host_margin_seconds", *tiny_model)] < LONG


def test_a_bundle_is_read_once_so_that_what_is_described_is_what_runs(bundles, monkeypatch):
    read, reads = reader.read_file, []
    monkeypatch.setattr(reader, "read_file", lambda *given, **named: (reads.append(given[0]), read(*given, **named))[1])
    with Repository.open([bundles[1]], cache=False) as repository:
        (served,) = repository.all()
        assert served.manifest is served.model.manifest
    assert len(reads) == 1
