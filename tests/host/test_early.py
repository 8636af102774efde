"""Inferences that would be too late: refused by their JSON, before their tensors have come."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
import tiny
from served import Serving

from edgekit_runtime.remote.oip import HEADER_LENGTH, encode_request, peek_request
from edgekit_runtime.system.errors import WireError

LONG = 30.0


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    with Serving(tiny.bundle(tmp_path_factory.mktemp("bundle")), cache=False) as serving:
        yield serving


@pytest.fixture
def busy(host):
    """A host that believes that an item is ahead, and that each takes nine seconds."""
    (lane,) = host.api._lanes.values()
    host.call(lambda: [lane.admission.ran(9000.0) for _ in range(20)])
    ticket = host.call(lambda: lane.admission.enter(None))
    yield host
    host.call(lambda: lane.admission.leave(ticket, answered=False))


def inference(timeout_us=50_000, target="/v2/models/tiny/infer", length=None, **changes):
    """(head and JSON, tensor) of a request."""
    wire = encode_request({"image": tiny.RED[None]}, timeout_us=timeout_us)
    text = json.dumps(json.loads(wire.json) | changes).encode() if changes else wire.json
    whole = len(text) + (len(wire.tensors[0]) if length is None else length)
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {whole}\r\n{HEADER_LENGTH}: {len(text)}\r\n\r\n"
    return head.encode() + text, bytes(wire.tensors[0])


def answer(stream):
    """(status, headers, value) of the next response."""
    status = int(stream.readline().split()[1])
    headers = dict(line.decode().lower().strip().split(": ", 1) for line in iter(stream.readline, b"\r\n"))
    return status, headers, json.loads(stream.read(int(headers["content-length"])))


@pytest.fixture
def wire(busy):
    with socket.create_connection(("127.0.0.1", busy.port), LONG) as sock, sock.makefile("rb") as stream:
        yield sock, stream


@pytest.mark.parametrize("target", ["/v2/models/tiny/infer", "/v2/models/tiny/versions/1/infer"])
def test_a_request_that_would_be_late_is_refused_before_its_tensors_came_and_the_connection_stays(busy, wire, target):
    sock, stream = wire
    text, tensor = inference(target=target)
    for _ in range(3):
        sock.sendall(text)
        status, headers, value = answer(stream)
        assert (status, headers["retry-after"], "connection" in headers) == (503, "1", False)
        assert "ms left" in value["error"]
        sock.sendall(tensor[:50])
        sock.sendall(tensor[50:] + b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert answer(stream)[0] == 200
    assert busy.call(lambda: busy.server._reserved) == 0


def test_a_long_body_of_a_refused_request_is_thrown_away_and_takes_no_memory(busy, wire):
    sock, stream = wire
    every_byte = busy.server.limits.bodies_bytes
    busy.call(lambda: busy.server.reserve(every_byte))
    text, _ = inference(length=900_000)
    sock.sendall(text + bytes(450_000))
    assert answer(stream)[0] == 503
    sock.sendall(bytes(450_000) + b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n" + text)
    assert [answer(stream)[0] for _ in range(2)] == [200, 503]
    busy.call(lambda: busy.server.release(every_byte))
    assert busy.call(lambda: busy.server._reserved) == 0


def test_a_body_with_much_left_to_come_ends_the_connection(busy, wire):
    sock, stream = wire
    sock.sendall(inference(length=2 * 2**20)[0])
    status, headers, _ = answer(stream)
    assert (status, headers["connection"], stream.read()) == (503, "close", b"")
    assert busy.call(lambda: busy.server._reserved) == 0


def test_many_that_are_sent_at_once_are_each_refused_in_their_order(wire):
    sock, stream = wire
    text, tensor = inference()
    sock.sendall((text + tensor) * 500 + b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert [answer(stream)[0] for _ in range(501)] == [503] * 500 + [200]


@pytest.mark.parametrize(("changes", "wanted"), [({"parameters": {"timeout": "soon"}}, 400), ({"parameters": {}}, 200)])
def test_a_request_whose_time_is_not_known_is_read_to_its_end(wire, changes, wanted):
    sock, stream = wire
    sock.sendall(b"".join(inference(**changes)))
    assert answer(stream)[0] == wanted


def test_a_client_that_leaves_what_it_announced_unsent_is_let_go(busy, wire):
    sock, stream = wire
    sock.sendall(inference()[0])
    assert answer(stream)[0] == 503
    before = busy.call(lambda: len(busy.server._connections))
    busy.call(lambda: busy.server.check(busy.server.clock() + 60))
    assert stream.read() == b""
    until = time.monotonic() + LONG
    while busy.call(lambda: len(busy.server._connections)) >= before:
        assert time.monotonic() < until


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([2**31, 2**31, 2**31, 3], "has shape [2147483648, 2147483648, 2147483648, 3]; expected [-1, 8, 8, 3]"),
        ([2**31, 8, 8, 3], "2147483648 items in one request; 1 to 256 are allowed"),
        ([1025, 8, 8, 3], "1025 items in one request"),
        ([0, 8, 8, 3], "0 items in one request"),
    ],
)
def test_a_shape_that_is_not_taken_is_400_before_its_tensors_came_also_where_others_wait(busy, wire, shape, said):
    sock, stream = wire
    every_byte = busy.server.limits.bodies_bytes
    busy.call(lambda: busy.server.reserve(every_byte))
    (entry,) = json.loads(encode_request({"image": tiny.RED[None]}).json)["inputs"]
    text, _ = inference(length=700_000, inputs=[entry | {"shape": shape, "parameters": {"binary_data_size": 700_000}}])
    sock.sendall(text)
    status, _, value = answer(stream)
    assert (status, said in value["error"]) == (400, True)
    sock.sendall(bytes(700_000) + b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert answer(stream)[0] == 200
    busy.call(lambda: busy.server.release(every_byte))


def test_shapes_and_time_are_read_from_the_json_alone():
    asked = {"inputs": [{"name": "x", "shape": [3, 2]}], "parameters": {"timeout": 5}}
    assert peek_request(json.dumps(asked).encode()) == ({"x": (3, 2)}, 5)
    for wrong in ([{"name": "x", "shape": [True]}], [{"name": "x", "shape": [-7]}], {"shape": [3]}, [{"shape": [3]}]):
        with pytest.raises(WireError):
            peek_request(json.dumps({"inputs": wrong, "parameters": None}).encode())


def test_a_host_that_ends_reads_what_it_refused_to_its_end_and_closes(tmp_path):
    with Serving(tiny.bundle(tmp_path), cache=False) as host:
        (lane,) = host.api._lanes.values()
        host.call(lambda: (lane.admission.ran(9000.0), lane.admission.enter(None)))
        with socket.create_connection(("127.0.0.1", host.port), LONG) as sock, sock.makefile("rb") as stream:
            text, tensor = inference()
            sock.sendall(text)
            assert answer(stream)[0] == 503
            ending = threading.Thread(target=host.stop, args=(LONG,))
            ending.start()
            until = time.monotonic() + LONG
            while not host.server.draining:
                assert time.monotonic() < until
            sock.sendall(tensor)
            assert stream.read() == b""
            ending.join(LONG)
