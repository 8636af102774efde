"""The server over real sockets, in front of a real Runtime with a tiny bundle."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import numpy as np
import pytest
import tiny
from others import is_ready
from refusing import has_code
from served import Serving

from edgekit.host.http1 import HttpLimits, Patience, ServeError
from edgekit.host.models import Repository
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.remote.client import HostClient, ModelIdentity
from edgekit_runtime.remote.oip import HEADER_LENGTH, decode_response, encode_request
from edgekit_runtime.system.errors import ClosedError, HostError

LONG = 30.0
RED = {"image": tiny.RED[None]}
INFER = "/v2/models/tiny/infer"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def host(path):
    with Serving(path, cache=False) as serving:
        yield serving


@pytest.fixture
def client(host):
    with HostClient(host.url, model="tiny") as made:
        yield made


def ask(host, method, target, body=None, headers=None):
    """(status, headers, parsed body) over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
    try:
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        data = response.read()
        return response.status, response.headers, json.loads(data) if data else None
    finally:
        connection.close()


def raw(host, data, *, half_close=False):
    """Everything that comes back for these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", host.port), LONG) as sock:
        sock.sendall(data)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        received = b""
        while piece := sock.recv(65536):
            received += piece
        return received


def json_request(pixels=None, **changes):
    tensor = {"name": "image", "shape": [1, 8, 8, 3], "datatype": "UINT8"}
    tensor["data"] = (tiny.RED if pixels is None else pixels).ravel().tolist()
    return json.dumps({"inputs": [tensor | changes.pop("tensor", {})], **changes}).encode()


# Answers.


def test_the_canonical_tensor_is_answered_like_on_a_board(host, client):
    for picture in (tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK):
        answer = client.infer({"image": picture[None]}, LONG)
        np.testing.assert_array_equal(answer.outputs["probs"][0], host.model.predict(picture).outputs["probs"])
        assert answer.queue_ms >= 0
        assert answer.infer_ms > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_floats_as_the_original_took_them_are_answered(client, dtype):
    answer = client.infer({"image": (tiny.RED / 255).astype(dtype)[None]}, LONG)
    assert answer.outputs["probs"][0].argmax() == 0
    assert answer.outputs["probs"].dtype == np.float32


def test_several_items_are_each_answered_as_if_alone(client):
    pictures = np.stack([tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK] * 3)
    probs = client.infer({"image": pictures}, LONG).outputs["probs"]
    assert probs.shape == (12, 4)
    assert probs.argmax(1).tolist() == [0, 1, 2, 3] * 3


def test_json_in_json_out(host):
    status, headers, answer = ask(host, "POST", INFER, json_request(id="q7"))
    assert (status, answer["id"], answer["model_name"], answer["model_version"]) == (200, "q7", "tiny", "1")
    (probs,) = answer["outputs"]
    assert (probs["name"], probs["datatype"], probs["shape"]) == ("probs", "FP32", [1, 4])
    assert np.argmax(probs["data"]) == 0
    assert "queue;dur=" in headers["Server-Timing"]


def test_outputs_are_sent_in_the_form_they_were_asked_for_in(host):
    wire = encode_request(RED)
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
    for binary in (True, False):
        asked = json_request(outputs=[{"name": "probs", "parameters": {"binary_data": binary}}])
        connection.request("POST", INFER, asked)
        response = connection.getresponse()
        assert (response.headers[HEADER_LENGTH] is not None) is binary
        assert decode_response(response.read(), response.headers[HEADER_LENGTH]).outputs["probs"].argmax() == 0
    connection.request("POST", INFER, wire.body(), wire.headers)
    assert connection.getresponse().headers[HEADER_LENGTH] is not None
    connection.close()


def test_many_clients_each_get_their_own_answer(host):
    pictures = [tiny.RED, tiny.GREEN, tiny.BLUE, tiny.DARK] * 20
    with HostClient(host.url, model="tiny", connections=8) as many, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda p: int(many.infer({"image": p[None]}, LONG).outputs["probs"].argmax()), pictures))
    assert found == [0, 1, 2, 3] * 20


def test_the_cache_of_the_runtime_answers_too(path):
    with Serving(path) as host, HostClient(host.url, model="tiny") as client:
        for _ in range(3):
            client.infer(RED, LONG)
        assert host.model.stats().meter.answers == {"device": 1, "cache": 2}


# What the protocol has beside inference.


def test_it_says_what_it_is_and_what_it_serves(host, client, path):
    manifest = read_bundle(path).manifest
    found = client.greet(LONG)
    assert found.binary
    assert [(i.name, i.datatype, i.shape) for i in found.inputs] == [("image", "UINT8", (-1, 8, 8, 3))]
    outputs = json.loads(urlopen(f"{host.url}/v2/models/tiny", timeout=LONG).read())["outputs"]
    assert outputs == [{"name": "probs", "datatype": "FP32", "shape": [-1, 4]}]
    assert found.edgekit == {
        "model_id": manifest.model_id,
        "contract_digest": manifest.contract_digest,
        "artifact": manifest.artifacts[0].blob,
        "recipe": "tflite-int8",
        "precision": "int8",
    }
    assert is_ready(host.url, "tiny")
    assert not is_ready(host.url, "other")


@pytest.mark.parametrize(
    ("method", "target", "status", "said"),
    [
        ("GET", "/v2", 200, {"extensions": ["binary_tensor_data"]}),
        ("GET", "/v2/", 200, {"name": "edgekit"}),
        ("GET", "/v2/health/live", 200, {"live": True}),
        ("GET", "/v2/health/ready", 200, {"ready": True}),
        ("GET", "/v2/models/tiny", 200, {"versions": ["1"]}),
        ("GET", "/v2/models/tiny/versions/1", 200, {"name": "tiny"}),
        ("GET", "/v2/models/tiny/versions/1/ready", 200, {"ready": True}),
        ("GET", "/", 404, {"error": "not found; the protocol starts at /v2"}),
        ("GET", "/v2/models/nobody", 404, {"error": "unknown model 'nobody'; models: tiny"}),
        ("GET", "/v2/models/tiny/versions/9", 404, {"error": "'tiny' has no version '9'; versions: 1"}),
        ("GET", "/v2/models/tiny/config", 404, {"error": "unknown path; a model has /ready and /infer"}),
        ("GET", INFER, 405, {"error": "GET not allowed; use POST"}),
        ("DELETE", "/v2", 405, {"error": "DELETE not allowed; use GET"}),
        ("POST", "/v2/models/nobody/infer", 404, {}),
        ("POST", "/v2/models/tiny/versions/1/infer", 400, {}),
    ],
)
def test_every_resource_has_its_status(host, method, target, status, said):
    found, headers, body = ask(host, method, target)
    assert found == status
    assert said.items() <= body.items()
    assert headers["Content-Type"] == "application/json"
    assert (headers["Allow"] is not None) is (status == 405)


def test_the_index_lists_what_is_ready(host):
    status, _, body = ask(host, "POST", "/v2/repository/index", b'{"ready":true}')
    assert (status, body) == (200, [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}])


# Two bundles of one name, another contract.


def test_versions_of_one_model_live_side_by_side(tmp_path):
    first = tiny.bundle(tmp_path)
    second = tiny.bundle(tmp_path, "onnx-f32", version="2")
    with Serving(first, second) as host:
        recipes = {
            target: ask(host, "GET", f"/v2/models/tiny{target}")[2]["edgekit"]["recipe"]
            for target in ("", "/versions/1", "/versions/2")
        }
        assert recipes == {"": "onnx-f32", "/versions/1": "tflite-int8", "/versions/2": "onnx-f32"}
        assert ask(host, "GET", "/v2/models/tiny")[2]["versions"] == ["1", "2"]


def test_one_version_twice_is_refused(path):
    with pytest.raises(ServeError, match="two bundles contain 'tiny' version 1"):
        Serving(path, path)


def test_a_device_with_another_contract_or_model_is_told_so_even_if_the_host_changed_behind_its_back(host, path):
    manifest = read_bundle(path).manifest
    ours = ModelIdentity(manifest.model_id, manifest.version, manifest.contract_digest)
    with HostClient(host.url, model="tiny", expects=ours) as client:
        assert client.infer(RED, LONG).artifact == manifest.artifacts[0].blob
        known = client._known
        for kind, other in (("contract", {"contract_digest": "1" * 64}), ("model", {"model_id": "1" * 64})):
            client._known = replace(known, expects=replace(ours, **other))
            with pytest.raises(HostError, match=rf"409 .*different {kind}", check=has_code("host-refused")):
                client.infer(RED, LONG)


# What does not add up.

WRONG = {
    "no JSON": (b"hello", {}, "the body: not JSON"),
    "no body": (b"", {}, "the body: not JSON"),
    "a wrong shape": (json_request(tensor={"shape": [8, 8, 3]}), {}, r"has shape [8, 8, 3]; expected [-1, 8, 8, 3]"),
    "no item": (json_request(tensor={"shape": [0, 8, 8, 3], "data": []}), {}, "0 items in one request"),
    "a wrong size": (json_request(tensor={"shape": [1, 8, 8, 4]}), {}, "takes 256 values, 192 were sent"),
    "a wrong datatype": (json_request(tensor={"datatype": "INT32"}), {}, "is INT32; expected UINT8 or FP32"),
    "ready for one artifact": (json_request(np.zeros(192, int), tensor={"datatype": "INT8"}), {}, "is INT8"),
    "strings": (json_request(tensor={"datatype": "BYTES"}), {}, "BYTES is not supported"),
    "another input": (json_request(tensor={"name": "x"}), {}, "unknown or missing input 'x'; inputs: image"),
    "another output": (json_request(outputs=[{"name": "y"}]), {}, "unknown output 'y'; outputs: probs"),
    "a lying header": (json_request(), {HEADER_LENGTH: "99999"}, "says that the JSON takes '99999' bytes"),
    "a cut header": (json_request(), {HEADER_LENGTH: "10"}, "not JSON"),
    "a header of nonsense": (json_request(), {HEADER_LENGTH: "ten"}, "says that the JSON takes 'ten' bytes"),
}


@pytest.mark.parametrize(("body", "headers", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_request_that_does_not_add_up_is_400_and_the_connection_lives(host, body, headers, why):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
    connection.request("POST", INFER, body, headers)
    response = connection.getresponse()
    said = json.loads(response.read())
    assert response.status == 400
    assert why in said["error"]
    connection.request("POST", INFER, json_request())
    assert connection.getresponse().status == 200
    connection.close()


def test_too_many_items_are_refused(client):
    with pytest.raises(HostError, match="257 items in one request; 1 to 256", check=has_code("host-refused")):
        client.infer({"image": np.zeros((257, 8, 8, 3), np.uint8)}, LONG)


def test_two_gigabytes_are_refused_before_they_are_sent(host):
    start = time.monotonic()
    said = raw(host, b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: h\r\nContent-Length: 2147483648\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b'{"error": "the body is larger than' in said
    assert time.monotonic() - start < 10


def test_a_client_that_sends_too_much_hears_why(host):
    with HostClient(host.url, model="tiny") as client:
        big = np.zeros((1, 70 * 2**20), np.uint8)
        with pytest.raises(HostError, match="413 the body is larger", check=has_code("host-refused")):
            client.infer({"image": big}, LONG)


def test_garbage_is_400_and_ends_the_connection(host):
    assert raw(host, b"\x16\x03\x01\x02\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_head_without_end_is_431(host):
    assert raw(host, b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000).startswith(b"HTTP/1.1 431 ")


def test_an_engine_that_fails_is_500_without_details_and_the_next_request_works(path, caplog):
    with Serving(path, cache=False) as host, HostClient(host.url, model="tiny") as client:
        run = host.model._journey.device.engine.run

        def broken(tensors):
            raise RuntimeError("secret: /etc/passwd")

        host.model._journey.device.engine.run = broken
        status, _, body = ask(host, "POST", INFER, json_request())
        assert (status, body) == (500, {"error": "internal error"})
        host.model._journey.device.engine.run = run
        assert client.infer(RED, LONG).outputs["probs"].argmax() == 0
        assert host.api.counts[500] == 1
    assert "secret" in caplog.text


# HTTP as clients speak it.


def test_requests_sent_one_behind_another_are_answered_in_order(host):
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n"
    post = json_request()
    middle = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(post), post)
    said = raw(host, one + b"\r\n" + middle + b"\r\n" + one + b"Connection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.index(b'"live"') < said.index(b'"probs"') < said.rindex(b'"live"')


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_request_in_pieces_is_one_request(host, piece):
    wire = encode_request(RED)
    headers = "".join(f"{k}: {v}\r\n" for k, v in wire.headers.items())
    whole = (
        f"POST {INFER} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}Content-Length: {len(wire.body())}\r\n\r\n"
    )
    data = whole.encode() + wire.body()
    with socket.create_connection(("127.0.0.1", host.port), LONG) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), piece):
            sock.sendall(data[at : at + piece])
        received = b""
        while more := sock.recv(65536):
            received += more
    assert received.startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_asks_first_is_told_to_go_on(host):
    body = json_request()
    with socket.create_connection(("127.0.0.1", host.port), LONG) as sock:
        sock.sendall(
            b"POST %s HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % (INFER.encode(), len(body))
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_http_1_0_gets_its_answer_and_the_end(host):
    assert raw(host, b"GET /v2/health/live HTTP/1.0\r\n\r\n").endswith(b'{"live": true}')


def test_a_client_that_never_reads_is_given_no_second_answer_until_it_does(path):
    """Its answers would otherwise pile up in memory without end."""
    ask_once = b"GET /v2/models/tiny HTTP/1.1\r\nHost: h\r\n\r\n"
    with Serving(path) as host, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", host.port))
        sock.setblocking(False)
        deadline = time.monotonic() + LONG
        stuck = None
        while stuck is None:
            with contextlib.suppress(BlockingIOError):
                sock.send(ask_once * 1000)
            stuck = host.call(lambda: next((c for c in host.server._connections if c._blocked and c._paused), None))
            assert time.monotonic() < deadline
        answered = host.call(lambda: host.api.counts[200])
        assert host.call(stuck._wire.get_write_buffer_size) < 2**20
        assert len(stuck._received) < 2**18
        assert host.call(lambda: host.api.counts[200]) == answered
        sock.settimeout(LONG)
        while host.call(lambda: host.api.counts[200]) < answered + 100:
            assert sock.recv(1 << 20)
            assert time.monotonic() < deadline


# Bounds.


def test_no_more_connections_than_allowed(path):
    with Serving(path, cache=False, limits=HttpLimits(connections=2)) as host:
        gate, asked = Gate(host.model), json_request()
        head = f"POST {INFER} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(asked)}\r\n\r\n"
        kept = [socket.create_connection(("127.0.0.1", host.port), LONG) for _ in range(2)]
        for sock in kept:
            sock.sendall(head.encode() + asked)
        deadline = time.monotonic() + LONG
        while host.call(lambda: [c._state for c in host.server._connections]) != ["busy"] * 2:
            assert time.monotonic() < deadline
        assert b"503 " in raw(host, b"")
        gate.open.set()
        for sock in kept:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
            sock.close()
        with HostClient(host.url, model="tiny") as client:
            while True:  # the server hears of the goodbyes in its own time
                try:
                    assert client.infer(RED, LONG)
                    break
                except HostError as error:
                    if error.code not in ("host-busy", "host-unreachable"):
                        raise
                    assert time.monotonic() < deadline


def test_where_it_is_full_the_connection_that_was_idle_the_longest_makes_room(path):
    alive = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
    with Serving(path, limits=HttpLimits(connections=2)) as host, contextlib.ExitStack() as stack:
        kept = []
        for late_s in (0, 1):
            host.call(lambda late_s=late_s: setattr(host.server, "clock", lambda: time.monotonic() + late_s))
            kept.append(stack.enter_context(socket.create_connection(("127.0.0.1", host.port), LONG)))
            kept[-1].sendall(alive)
            assert kept[-1].recv(1000).startswith(b"HTTP/1.1 200")
        host.call(lambda: setattr(host.server, "clock", lambda: time.monotonic() + 2.5))
        new = stack.enter_context(socket.create_connection(("127.0.0.1", host.port), LONG))
        new.sendall(alive)
        assert new.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            assert kept[0].recv(1000) == b""
        kept[1].sendall(alive)
        assert kept[1].recv(1000).startswith(b"HTTP/1.1 200")


@contextlib.contextmanager
def flooding(host, sent, source, floods):
    """A client that opens connections without end, sends this on each and keeps those that the server leaves open."""
    kept, ended = [], threading.Event()

    def flood():
        while not ended.is_set():
            with contextlib.suppress(OSError):
                kept.append(socket.create_connection(("127.0.0.1", host.port), LONG, (source, 0)))
                kept[-1].sendall(sent)
            for old in kept[:-100]:
                old.close()
            del kept[:-100]
            floods[0] += 1

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LONG)
        for sock in kept:
            sock.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: h\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nx",
    ],
    ids=["silent", "a letter", "half a head", "half a body"],
)
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"], ids=["same address", "another"])
def test_who_opens_connections_and_asks_nothing_keeps_nobody_else_waiting(path, sent, source):
    """The 75 s, 10 s and 60 s that a connection may take to send mean nothing then."""
    floods, took = [0], []
    with Serving(path, limits=HttpLimits(connections=60, half_open_a_peer=20)) as host:
        with flooding(host, sent, source, floods):
            until = time.monotonic() + LONG
            while floods[0] < 150:
                assert time.monotonic() < until
                time.sleep(0.01)
            for _ in range(3):
                start = time.monotonic()
                while True:
                    try:
                        assert ask(host, "POST", INFER, json_request())[0] == 200
                        break
                    except ConnectionError:  # of this address too many had not asked yet, and this was the oldest
                        assert source == "127.0.0.1"
                took.append(time.monotonic() - start)
            half_open = host.call(lambda: sum(one.half_open for one in host.server._connections))
        assert half_open <= 21
        assert max(took) < 3


def test_a_board_that_stays_connected_is_not_displaced_by_a_flood_from_elsewhere(path):
    floods = [0]
    with (
        Serving(path, limits=HttpLimits(connections=40, half_open_a_peer=100)) as host,
        socket.create_connection(("127.0.0.1", host.port), LONG) as board,
    ):
        for _ in range(3):
            board.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            assert board.recv(1000).startswith(b"HTTP/1.1 200")
            with flooding(host, b"POST /v2 HTTP/1.1\r\n", "127.0.0.9", floods):
                time.sleep(0.5)
        assert floods[0] > 100


def test_a_flood_of_connections_is_taken_up_to_a_bound(path):
    with Serving(path, limits=HttpLimits(connections=3)) as host, contextlib.ExitStack() as stack:
        flood = [stack.enter_context(socket.create_connection(("127.0.0.1", host.port), LONG)) for _ in range(20)]
        until = time.monotonic() + LONG
        while len(select.select(flood, [], [], LONG)[0]) < 17:
            assert time.monotonic() < until
        assert ask(host, "GET", "/v2/health/live")[0] == 200


def test_bodies_together_have_a_bound(path):
    with Serving(path, limits=HttpLimits(bodies_bytes=1000)) as host:
        head = b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", host.port), LONG) as first:
            first.sendall(head % 900 + b"x")
            deadline = time.monotonic() + LONG
            while not host.call(lambda: host.server._reserved):
                assert time.monotonic() < deadline
            assert raw(host, head % 200).startswith(b"HTTP/1.1 503 ")
        while host.call(lambda: host.server._reserved):
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", b""),
        (b"GET / HT", b"HTTP/1.1 408 "),
        (b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc", b"HTTP/1.1 408 "),
    ],
)
def test_who_is_slow_is_not_waited_for(path, sent, said):
    patience = Patience(idle=50, head=50, body=50)
    with Serving(path, patience=patience) as host:
        sock = socket.create_connection(("127.0.0.1", host.port), LONG)
        with sock:
            sock.sendall(sent)
            deadline = time.monotonic() + LONG
            wanted = "idle" if not sent else "body" if sent.endswith(b"abc") else "head"
            while host.call(lambda: [c._state for c in host.server._connections]) != [wanted]:
                assert time.monotonic() < deadline
            host.call(lambda: host.server.check(host.server.clock() + 49))
            assert host.call(lambda: len(host.server._connections)) == 1
            host.call(lambda: host.server.check(host.server.clock() + 51))
            try:
                received = sock.recv(1000)
            except ConnectionResetError:
                received = b""
            assert received.startswith(said)


# Time.


class Gate:
    """Holds the engine until it is opened."""

    def __init__(self, model):
        self.entered, self.open, self.runs = threading.Semaphore(0), threading.Event(), 0
        self._run = model._journey.device.engine.run
        model._journey.device.engine.run = self

    def __call__(self, tensors):
        self.runs += 1
        self.entered.release()
        assert self.open.wait(LONG)
        return self._run(tensors)


def test_instances_of_a_model_run_side_by_side_and_give_the_same_answers(path):
    with Serving(path, cache=False, instances=2) as host, ThreadPoolExecutor(3) as pool:
        (served,) = host.repository.all()
        gates = [Gate(model) for model in served.models]
        with HostClient(host.url, model="tiny", connections=3) as client:
            asked = [pool.submit(client.infer, {"image": tiny.GREEN[None]}, LONG) for _ in range(3)]
            for gate in gates:  # the third waits behind one of them
                assert gate.entered.acquire(timeout=LONG)
            for gate in gates:
                gate.open.set()
            answers = [one.result(LONG).outputs["probs"].tobytes() for one in asked]
        assert len(set(answers)) == 1
        assert [gate.runs for gate in gates] in ([2, 1], [1, 2])
    for model in served.models:
        with pytest.raises(ClosedError):
            model.predict(tiny.GREEN)


def test_instances_that_would_answer_differently_are_refused(tmp_path, monkeypatch):
    another, opened = tiny.bundle(tmp_path, "onnx-f32").read_bytes(), []

    def replaced_afterwards(path, **options):
        opened.append(open_bundle(path, **options))
        path.write_bytes(another)
        return opened[-1]

    monkeypatch.setattr("edgekit.host.models.open_bundle", replaced_afterwards)
    with pytest.raises(ServeError, match="different artifacts"):
        Repository.open([tiny.bundle(tmp_path)], instances=2)
    for model in opened:
        with pytest.raises(ClosedError):
            model.predict(tiny.RED)


def test_who_would_be_late_is_told_at_once(path):
    with Serving(path, cache=False) as host, HostClient(host.url, model="tiny") as client:
        (lane,) = host.api._lanes.values()
        host.call(lambda: [lane.admission.ran(9000.0) for _ in range(20)])
        gate = Gate(host.model)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.infer, RED, LONG)
            assert gate.entered.acquire(timeout=LONG)
            with pytest.raises(
                HostError, match=r"503 estimated (1\.9\d|2)e\+04 ms, .* ms left", check=has_code("host-busy")
            ):
                client.infer(RED, 8.0)  # who waits these 8 s is told that the time is over, and not this
            gate.open.set()
            assert first.result(LONG)
        assert host.model.stats().meter.requests == 1


def test_an_idle_host_lets_one_in_whatever_it_has_learnt_and_one_good_answer_heals(path):
    with Serving(path, cache=False) as host, HostClient(host.url, model="tiny") as client:
        (lane,) = host.api._lanes.values()
        host.call(lambda: [lane.admission.ran(60_000.0) for _ in range(64)])
        assert client.infer(RED, 8.0)
        assert host.call(lambda: lane.admission.typical_ms) < 8000.0
        host.call(lambda: lane.admission.enter(None))  # as if another one ran
        assert client.infer(RED, 8.0)


def test_what_runs_out_of_time_while_it_waits_is_dropped_and_costs_no_inference(path):
    with Serving(path, cache=False) as host, ThreadPoolExecutor(8) as pool:
        gate = Gate(host.model)
        with HostClient(host.url, model="tiny", connections=8) as client:
            first = [pool.submit(client.infer, RED, LONG) for _ in range(2)]
            assert gate.entered.acquire(timeout=LONG)
            (lane,) = host.api._lanes.values()
            deadline = time.monotonic() + LONG
            while host.call(lambda: lane.ahead) < 2:
                assert time.monotonic() < deadline
            # These are told 10 ms and wait longer for their answer, so that they hear what became of them.
            late = [
                pool.submit(ask, host, "POST", INFER, json_request(parameters={"timeout": 10_000})) for _ in range(3)
            ]
            while host.call(lambda: lane.ahead) < 5 and not all(f.done() for f in late):
                assert time.monotonic() < deadline
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                pass
            gate.open.set()
            assert [f.result(LONG).outputs["probs"].argmax() for f in first] == [0, 0]
            assert {f.result(LONG)[0] for f in late} == {503}
            assert any("passed in the queue" in f.result()[2]["error"] for f in late)
        assert gate.runs == 2


def test_a_client_that_leaves_takes_its_waiting_request_with_it(path):
    with Serving(path, cache=False) as host, ThreadPoolExecutor(4) as pool:
        gate = Gate(host.model)
        with HostClient(host.url, model="tiny", connections=4) as client:
            first = [pool.submit(client.infer, RED, LONG) for _ in range(2)]
            assert gate.entered.acquire(timeout=LONG)
            (lane,) = host.api._lanes.values()
            deadline = time.monotonic() + LONG
            while host.call(lambda: lane.ahead) < 2:
                assert time.monotonic() < deadline
            with pytest.raises(HostError, check=has_code("host-late")):
                client.infer(RED, 0.05)
            while host.call(lambda: lane.ahead) > 2:
                assert time.monotonic() < deadline
            gate.open.set()
            for future in first:
                future.result(LONG)
        assert gate.runs == 2


# The end.


def test_draining_answers_what_was_asked_and_takes_nothing_new(path):
    with Serving(path, cache=False) as host, ThreadPoolExecutor(2) as pool:
        gate = Gate(host.model)
        client = HostClient(host.url, model="tiny")
        asked = pool.submit(client.infer, RED, LONG)
        assert gate.entered.acquire(timeout=LONG)
        stopping = pool.submit(host.stop)
        deadline = time.monotonic() + LONG
        while not host.server.draining:
            assert time.monotonic() < deadline
        gate.open.set()
        assert asked.result(LONG).outputs["probs"].argmax() == 0
        stopping.result(LONG)
        with pytest.raises(HostError, check=has_code("host-unreachable")):
            client.infer(RED, LONG)


def test_draining_ends_even_if_a_request_does_not(path):
    with Serving(path, cache=False) as host, ThreadPoolExecutor(2) as pool:
        gate = Gate(host.model)
        asked = pool.submit(HostClient(host.url, model="tiny").infer, RED, LONG)
        assert gate.entered.acquire(timeout=LONG)
        host.stop(drain_s=0.05)
        with pytest.raises(HostError, check=has_code("host-unreachable")):
            asked.result(LONG)
        gate.open.set()


# Memory.

CHILD = """
import resource, sys
from served import Serving

with Serving(sys.argv[1], cache=False) as host:
    most = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print(host.port, flush=True)
    sys.stdin.read()
"""
BODY = 31 << 20


@pytest.fixture
def small(path):
    """A host in a process of its own, which may take the bodies of eight requests and 250 MB beside them."""
    script = [sys.executable, "-c", CHILD, str(path), str(8 * BODY + (250 << 20))]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as child:
        yield SimpleNamespace(port=int(child.stdout.readline()))
        child.stdin.close()
        assert child.wait(LONG) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is read from /proc")
def test_eight_large_bodies_at_once_neither_take_the_hosts_memory_nor_its_time(small):
    lists = b'{"inputs":[' + b"[]," * ((BODY - 20) // 3) + b"0]}"
    numbers = b'{"inputs":[{"data":[' + b"1.5," * ((2 << 20) - 100) + b"0]}]}"
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, small, "POST", INFER, body) for body in (lists, numbers) * 4]
        while not all(one.done() for one in asked):  # it answers others meanwhile
            assert ask(small, "GET", "/v2/health/live")[0] == 200
    assert [one.result()[0] for one in asked] == [400] * 8
    assert "more than 2,097,152 values" in asked[0].result()[2]["error"]
    assert "it has no name" in asked[1].result()[2]["error"]
    assert ask(small, "POST", INFER, json_request())[0] == 200


def test_an_answer_counts_as_memory_until_it_was_sent(path):
    with Serving(path, cache=False) as host, ThreadPoolExecutor(1) as pool:
        gate = Gate(host.model)
        first = pool.submit(ask, host, "POST", INFER, json_request())
        assert gate.entered.acquire(timeout=LONG)
        (connection,) = host.server._connections
        assert host.call(lambda: host.server._reserved) == len(connection._body) + 16
        gate.open.set()
        assert first.result(LONG)[0] == 200
        deadline = time.monotonic() + LONG
        while host.call(lambda: host.server._reserved):
            assert time.monotonic() < deadline


def test_an_answer_that_would_be_too_large_is_refused_before_any_inference(path, client, monkeypatch):
    monkeypatch.setattr("edgekit.host.models.MAX_ANSWER", 3 * 16)
    with pytest.raises(HostError, match="4 items in one request; 1 to 3", check=has_code("host-refused")):
        client.infer({"image": np.zeros((4, 8, 8, 3), np.uint8)}, LONG)
    with Serving(path, limits=HttpLimits(bodies_bytes=len(json_request()) + 15), cache=False) as host:
        assert ask(host, "POST", INFER, json_request())[0] == 503
        assert host.model.stats().meter.requests == 0


def test_json_without_binary_tensors_has_a_smaller_bound_than_a_body_with_them(host):
    said = raw(host, b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), 33 << 20))
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"send the tensors as binary data" in said


def test_an_answer_of_too_many_values_is_not_written_as_json(host, monkeypatch):
    monkeypatch.setattr("edgekit.host.api.LONG_JSON", 16)
    monkeypatch.setattr("edgekit.host.api.MOST_VALUES", 3)
    status, _, said = ask(host, "POST", INFER, json_request())
    assert status == 400
    assert "the answer has 4 values. Request binary data" in said["error"]
