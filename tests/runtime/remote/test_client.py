"""The client against servers that answer well, oddly, late, in drips, or not at all: real sockets on loopback."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from ports import closed_port
from refusing import has_code
from scripted import Scripted, http, reset

from edgekit_runtime.remote.client import HostClient, ModelIdentity, server_timing
from edgekit_runtime.remote.endpoint import Deadline, Endpoint
from edgekit_runtime.remote.oip import HEADER_LENGTH, InferResponse, decode_request, encode_response
from edgekit_runtime.remote.pool import Pool
from edgekit_runtime.system.errors import HostError

X = {"x": np.arange(6, dtype=np.float32).reshape(1, 6)}
LONG = 20.0
SOON_S = 5.0
"""More than a busy machine makes of a tenth of a second, less than the servers here hold on for."""
DIGEST, MODEL = "ab" * 32, "0" * 64
OURS = ModelIdentity(MODEL, "1", DIGEST)
BINARY = {"name": "s", "version": "1", "extensions": ["binary_tensor_data"]}
PLAIN = {"name": "s", "version": "1", "extensions": []}


def doubling(asked, *headers, binary=True):
    """What a good server answers to an inference."""
    request = decode_request(asked.body, asked.headers.get(HEADER_LENGTH.lower()))
    wire = encode_response(InferResponse({"y": request.inputs["x"] * 2}, "m", "1"), binary=["y"] if binary else [])
    return http(200, wire.body(), *(f"{k}: {v}" for k, v in wire.headers.items()), *headers)


def server(infer, about=BINARY):
    """A server whose `/v2` says `about` and whose inference is `infer(asked, connection)`."""

    def answer(asked, connection):
        if asked.line.startswith("POST"):
            return infer(asked, connection)
        return http(200, about)

    return Scripted(answer)


def ask(url, timeout_s=LONG, **options):
    with HostClient(url, model="m", **options) as client:
        return client.infer(X, timeout_s)


def test_an_answer_comes_back_with_its_times():
    with server(lambda asked, _: doubling(asked, "Server-Timing: queue;dur=0.25, infer;dur=0.5")) as host:
        answer = ask(host.url)
    np.testing.assert_array_equal(answer.outputs["y"], X["x"] * 2)
    assert not answer.outputs["y"].flags.writeable
    assert (answer.queue_ms, answer.infer_ms) == (0.25, 0.5)
    assert answer.network_ms == pytest.approx(max(0.0, answer.total_ms - 0.75))


def test_the_host_is_told_what_is_left_of_the_time():
    with server(lambda asked, _: doubling(asked)) as host:
        ask(host.url, timeout_s=LONG)
    asked = host.asked[-1]
    assert asked.line == "POST /v2/models/m/infer HTTP/1.1"
    assert 0.5 * LONG * 1e6 < asked.json["parameters"]["timeout"] < LONG * 1e6


def test_connections_are_kept_and_the_greeting_is_not_repeated():
    with server(lambda asked, _: doubling(asked)) as host, HostClient(host.url, model="m") as client:
        for _ in range(4):
            client.infer(X, LONG)
    assert [a.line.split()[1] for a in host.asked] == ["/v2", *["/v2/models/m/infer"] * 4]
    assert {a.connection for a in host.asked} == {0}


def test_a_connection_that_died_while_it_was_kept_is_replaced_silently():
    def infer(asked, connection):
        said = doubling(asked)
        connection.sendall(said)
        # ends the connection after the answer, without having said so

    with server(infer) as host, HostClient(host.url, model="m") as client:
        for _ in range(3):
            np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], X["x"] * 2)
    assert len({a.connection for a in host.asked}) == 3


def test_a_streamed_answer_that_is_closed_twice_gives_its_connection_back_once():
    with Scripted(lambda asked, _: http(200, asked.body)) as host:
        endpoint = Endpoint(host.url, connect_timeout_s=LONG)
        with closing(Pool(endpoint, limit=2)) as pool:

            def ask(said):
                return pool.stream("/v2", Deadline(LONG), {}, (said,))

            reply = ask(b'"once"')
            assert reply.read(100) == b'"once"'
            reply.close()
            reply.close()
            together = [ask(b'"one"'), ask(b'"other"')]
            reply.end()  # by a thread that is late
            assert [one.read(100) for one in together] == [b'"one"', b'"other"']
            together[0].close()
            assert ask(b'"again"').read(100) == b'"again"'
    assert [one.connection for one in host.asked] == [0, 0, 1, 0]


def test_no_more_connections_than_allowed_are_open_at_once():
    gate, entered, most, now = threading.Event(), threading.Semaphore(0), [0], set()
    lock = threading.Lock()

    def infer(asked, _):
        with lock:
            now.add(asked.connection)
            most[0] = max(most[0], len(now))
        entered.release()
        assert gate.wait(LONG)
        with lock:
            now.discard(asked.connection)
        return doubling(asked)

    with server(infer) as host, HostClient(host.url, model="m", connections=2) as client, ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(client.infer, X, LONG) for _ in range(6)]
        assert entered.acquire(timeout=LONG)
        assert entered.acquire(timeout=LONG)
        with pytest.raises(HostError, check=has_code("host-late")):
            client.infer(X, 0.02)
        gate.set()
        for future in futures:
            np.testing.assert_array_equal(future.result(LONG).outputs["y"], X["x"] * 2)
    assert most[0] == 2


# Capabilities.


def test_a_host_that_advertises_nothing_is_tried_with_binary_once_and_remembered():
    with server(lambda asked, _: doubling(asked), PLAIN) as host, HostClient(host.url, model="m") as client:
        client.infer(X, LONG)
        client.infer(X, LONG)
    assert [HEADER_LENGTH.lower() in a.headers for a in host.asked[1:]] == [True, True]


@pytest.mark.parametrize("no", [400, 415, 422, 500, "hang up", "reset"])
def test_a_host_that_will_not_have_binary_gets_json_and_is_remembered(no):
    def infer(asked, connection):
        if HEADER_LENGTH.lower() not in asked.headers:
            return doubling(asked, binary=False)
        if no == "reset":
            reset(connection)
        return http(no, {"detail": [{"msg": "bad"}]}) if isinstance(no, int) else None

    with server(infer, PLAIN) as host, HostClient(host.url, model="m") as client:
        for _ in range(3):
            np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], X["x"] * 2)
    assert [HEADER_LENGTH.lower() in a.headers for a in host.asked if "POST" in a.line][-3:] == [False] * 3
    with (
        server(infer, PLAIN) as host,
        pytest.raises(HostError, match="FP16 has no JSON form; this host takes", check=has_code("host-refused")),
    ):
        HostClient(host.url, model="m").infer({"x": X["x"].astype(np.float16)}, LONG)


def test_an_unknown_model_is_not_asked_for_twice():
    with server(lambda *_: http(404, {"error": "no model 'm'"}), PLAIN) as host:
        with pytest.raises(HostError, match="404 no model 'm'", check=has_code("host-refused")) as caught:
            ask(host.url)
        assert caught.value.status == 404
        assert len(host.asked) == 2


@pytest.mark.parametrize("binary", [True, False])
def test_a_server_that_tells_nothing_of_itself_answers_all_the_same(binary):
    def answer(asked, _):
        if asked.line.startswith("GET"):
            return http(404, {"error": "not found"})
        return doubling(asked) if binary else doubling(asked, binary=False)

    with Scripted(answer) as host, HostClient(host.url, model="m") as client:
        for _ in range(2):
            np.testing.assert_array_equal(client.infer(X, LONG).outputs["y"], X["x"] * 2)
        assert [asked.line.split()[1] for asked in host.asked] == ["/v2", *["/v2/models/m/infer"] * 2]
        with pytest.raises(HostError, match="404 not found", check=has_code("host-refused")):
            ask(host.url, expects=OURS)


def test_a_json_answer_to_a_binary_question_is_understood():
    with server(lambda asked, _: doubling(asked, binary=False)) as host:
        assert ask(host.url).outputs["y"].tolist() == (X["x"] * 2).tolist()


# Odd and broken answers: each one a typed word.

STATUSES = {
    "busy": (http(503, {"error": "Request timeout expired"}), "host-busy", "503 Request timeout expired"),
    "too many": (http(429, b"slow down"), "host-busy", "429 slow down"),
    "plain text": (http(400, b"failed to\nparse", "Content-Type: text/plain"), "host-refused", "400 failed to parse"),
    "a detail": (http(422, {"detail": [{"loc": ["x"]}]}), "host-refused", '422 .*"loc"'),
    "nothing": (http(404, b""), "host-refused", "status 404"),
    "a redirect": (http(301, b"", "Location: http://elsewhere"), "host-refused", "status 301"),
    "a gateway's timeout": (http(504, b"upstream"), "host-late", "504 upstream"),
    "a crash": (http(500, b"<h1>oops\x00</h1>" * 99), "host-protocol", "500 <h1>oops"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "host-protocol", "not HTTP"),
    "no tensors": (http(200, b"ok"), "host-protocol", "not JSON"),
    "a lying header": (http(200, {}, f"{HEADER_LENGTH}: 99999"), "host-protocol", "says that the JSON takes"),
    "a size beyond reason": (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", "host-protocol", "larger"),
    "a size that is no number": (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "host-protocol", "not JSON"),
    "a header without end": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "host-protocol", "not HTTP"),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n", "host-protocol", "not HTTP"),
}


@pytest.mark.parametrize(("said", "code", "why"), STATUSES.values(), ids=STATUSES.keys())
def test_an_odd_answer_is_a_typed_error_that_names_the_host(said, code, why):
    def infer(_, connection):
        connection.sendall(said)

    with server(infer) as host, pytest.raises(HostError, match=why) as caught:
        ask(host.url)
    assert caught.value.code == code
    assert host.url in caught.value.where


@pytest.mark.parametrize("about", [b"hello", b"[]", {"extensions": 3}, {"extensions": [1, None]}])
def test_a_host_that_describes_itself_oddly_is_asked_all_the_same(about):
    def answer(asked, _):
        return doubling(asked) if asked.line.startswith("POST") else http(200, about)

    with Scripted(answer) as host:
        assert ask(host.url).outputs["y"].shape == (1, 6)


def test_a_chunked_answer_is_read():
    def infer(asked, _):
        whole = doubling(asked)
        head, _, body = whole.partition(b"\r\n\r\n")
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 50]), body[i : i + 50]) for i in range(0, len(body), 50))
        return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"

    with server(infer) as host:
        assert ask(host.url).outputs["y"].tolist() == (X["x"] * 2).tolist()


def test_an_answer_that_ends_with_the_connection_is_read():
    def infer(asked, connection):
        head, _, body = doubling(asked).partition(b"\r\n\r\n")
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)

    with server(infer) as host:
        assert ask(host.url).outputs["y"].tolist() == (X["x"] * 2).tolist()


def test_an_answer_cut_short_is_an_unreachable_host():
    def infer(asked, connection):
        connection.sendall(doubling(asked)[:-3])

    with (
        server(infer) as host,
        pytest.raises(HostError, match="broke before an answer", check=has_code("host-unreachable")),
    ):
        ask(host.url)


def test_a_refusal_before_the_body_was_read_is_heard():
    big = {"x": np.zeros((1, 4_000_000), np.float32)}
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            first, _ = listener.accept()
            first.recv(65536)
            first.sendall(http(200, BINARY, "Connection: close"))
            first.close()
            second, _ = listener.accept()
            second.recv(1024)
            second.sendall(http(413, {"error": "too large"}, "Connection: close"))
            second.shutdown(socket.SHUT_WR)
            while second.recv(1 << 20):
                pass
            second.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(HostError, match="413 too large", check=has_code("host-refused")):
            HostClient(f"http://127.0.0.1:{listener.getsockname()[1]}", model="m").infer(big, LONG)
        thread.join(LONG)


# Time.


def took(call, *arguments):
    start = time.monotonic()
    with pytest.raises(HostError, check=has_code("host-late")):
        call(*arguments)
    return time.monotonic() - start


DRIPS = {
    "the status line": b"HTTP/1.1 200 OK\r\n",
    "the headers": b"X-Something: a long one\r\n" * 40,
    "the body": b"Content-Length: 1000\r\n\r\n" + b"y" * 900,
    "endless continues": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
}


@pytest.mark.parametrize("where", DRIPS)
def test_a_server_that_drips_bytes_holds_nobody_beyond_the_deadline(where):
    def infer(_, connection):
        if where in ("the headers", "the body"):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for byte in DRIPS[where]:
            connection.sendall(bytes([byte]))
            if host.ended.wait(0.01):
                return

    with server(infer) as host, HostClient(host.url, model="m") as client:
        assert took(client.infer, X, 0.15) < SOON_S


def test_a_server_that_reads_nothing_holds_nobody_beyond_the_deadline():
    big = {"x": np.zeros((1, 8_000_000), np.float32)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HostClient(f"http://127.0.0.1:{listener.getsockname()[1]}", model="m")
        assert took(client.infer, big, 0.1) < SOON_S


def test_a_server_that_accepts_and_says_nothing_is_late():
    with server(lambda *_: host.ended.wait(LONG) and None) as host, HostClient(host.url, model="m") as client:
        assert took(client.infer, X, 0.1) < SOON_S
        assert took(client.ping, 0.0) < SOON_S


def test_a_late_answer_is_never_taken_for_the_next_one():
    gate = threading.Event()

    def infer(asked, _):
        if asked.json["inputs"][0]["shape"] == [1, 2]:
            gate.wait(LONG)
        return doubling(asked)

    with server(infer) as host, HostClient(host.url, model="m", connections=1) as client:
        assert client.infer(X, LONG)
        with pytest.raises(HostError, check=has_code("host-late")):
            client.infer({"x": np.zeros((1, 2), np.float32)}, 0.05)
        gate.set()
        assert client.infer(X, LONG).outputs["y"].shape == (1, 6)


def test_a_name_that_takes_long_to_look_up_is_late_and_no_second_thread_is_started(monkeypatch):
    gate = threading.Event()
    lookups = []

    def slow(*_, **__):
        lookups.append(1)
        gate.wait(LONG)
        raise socket.gaierror("not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = HostClient("http://far-away.invalid:1", model="m")
    for _ in range(3):
        assert took(client.infer, X, 0.03) < SOON_S
    assert len(lookups) == 1
    gate.set()
    with pytest.raises(HostError, match="cannot be resolved", check=has_code("host-unreachable")):
        client.infer(X, LONG)


# Gone.


def test_nothing_listening_is_unreachable_at_once():
    refused = pytest.raises(HostError, match="nothing listens there", check=has_code("host-unreachable"))
    with closed_port() as port, refused:
        ask(f"http://127.0.0.1:{port}")


def test_a_host_that_dies_in_the_middle_is_unreachable_and_leaves_no_thread():
    before = set(threading.enumerate())
    with server(lambda *_: None) as host, HostClient(host.url, model="m") as client:
        with pytest.raises(HostError, check=has_code("host-unreachable")):
            client.infer(X, LONG)
        host.stop()
        with pytest.raises(HostError, check=has_code("host-unreachable")):
            client.infer(X, LONG)
    assert set(threading.enumerate()) <= before


def test_a_host_that_comes_back_is_greeted_anew():
    about = [BINARY]
    host = Scripted(lambda asked, _: doubling(asked) if "POST" in asked.line else http(200, about[0]))
    with host, HostClient(host.url, model="m") as client:
        client.infer(X, LONG)
        host.stop()
        with pytest.raises(HostError, check=has_code("host-unreachable")):
            client.infer(X, LONG)
        assert client._known is None


# Which host.


def edgekit_host(digest=DIGEST, model_id=MODEL, infer=doubling):
    model = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 6]}], "outputs": [],
             "edgekit": {"contract_digest": digest, "model_id": model_id}}  # fmt: skip

    def answer(asked, _):
        if asked.line.startswith("POST"):
            return infer(asked)
        return http(200, BINARY if asked.line.split()[1] == "/v2" else model)

    return Scripted(answer)


def test_an_edgekit_host_is_asked_for_our_model_version_and_contract():
    with edgekit_host() as host:
        assert ask(host.url, expects=OURS).outputs["y"].shape == (1, 6)
    asked = host.asked[-1]
    assert asked.line.split()[1] == "/v2/models/m/versions/1/infer"
    assert (asked.json["parameters"]["edgekit_contract"], asked.json["parameters"]["edgekit_model"]) == (DIGEST, MODEL)


def test_another_contract_another_model_and_a_foreign_server_are_refused():
    with (
        edgekit_host(model_id="1" * 64) as host,
        pytest.raises(HostError, match="another model", check=has_code("host-refused")),
    ):
        ask(host.url, expects=OURS)
    with (
        edgekit_host("cd" * 32) as host,
        pytest.raises(HostError, match="another contract", check=has_code("host-refused")),
    ):
        ask(host.url, expects=OURS)
    with (
        server(lambda asked, _: doubling(asked)) as host,
        pytest.raises(HostError, match="edgekit bundle", check=has_code("host-refused")),
    ):
        ask(host.url, expects=OURS)


def test_a_host_that_serves_another_contract_by_now_is_greeted_anew():
    says = iter([doubling, lambda _: http(409, {"error": "another contract"}), doubling])
    with (
        edgekit_host(infer=lambda asked: next(says)(asked)) as host,
        HostClient(host.url, model="m", expects=OURS) as client,
    ):
        client.infer(X, LONG)
        with pytest.raises(HostError, match="another contract", check=has_code("host-refused")):
            client.infer(X, LONG)
        client.infer(X, LONG)
    greeting, infer = ["/v2", "/v2/models/m/versions/1"], "/v2/models/m/versions/1/infer"
    assert [asked.line.split()[1] for asked in host.asked] == [*greeting, infer, infer, *greeting, infer]


def answering(outputs=None, name="m", version="1", binary=True, **parameters):
    def infer(asked):
        given = {"y": X["x"]} if outputs is None else {"y": np.array(outputs)}
        answer = InferResponse(given, name, version, parameters=parameters)
        wire = encode_response(answer, binary=["y"] if binary else [])
        return http(200, wire.body(), *(f"{k}: {v}" for k, v in wire.headers.items()))

    return infer


NOT_OURS = {
    "another model": (answering(name="n"), "model 'm' was asked for, but 'n' answered"),
    "another version": (answering(version="2"), "version 1 was asked for, but 2 answered"),
    "no model's name": (answering(name=None), "model 'm' was asked for, but 'None' answered"),
    "NaN": (answering([[0.5, np.nan]]), "output 'y' holds NaN or infinity"),
    "infinity": (answering([[np.inf]]), "output 'y' holds NaN or infinity"),
    "half an infinity": (answering(np.array([-np.inf], np.float16)), "output 'y' holds NaN or infinity"),
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_an_answer_of_another_model_or_without_a_finite_number_is_refused(case):
    infer, why = NOT_OURS[case]
    with edgekit_host(infer=infer) as host, pytest.raises(HostError, match=why, check=has_code("host-protocol")):
        ask(host.url, expects=OURS)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_number_that_is_none_is_refused_in_json_too(number):
    def infer(asked):
        return http(
            200, answering([[12345.0]], binary=False)(asked).partition(b"\r\n\r\n")[2].replace(b"12345.0", number)
        )

    with (
        edgekit_host(infer=infer) as host,
        pytest.raises(HostError, match=r"not JSON|too large|NaN or infinity", check=has_code("host-protocol")),
    ):
        ask(host.url, expects=OURS)


@pytest.mark.parametrize(("said", "known"), [("ab" * 32, "ab" * 32), ("ab", None), (7, None)])
def test_the_answer_names_the_artifact_that_gave_it(said, known):
    with edgekit_host(infer=answering(edgekit_artifact=said)) as host:
        assert ask(host.url, expects=OURS).artifact == known


def test_metadata_says_what_the_model_takes():
    with edgekit_host() as host, HostClient(host.url, model="m") as client:
        found = client.greet(LONG)
        assert (found.binary, found.edgekit["contract_digest"]) == (True, DIGEST)
        assert [(i.name, i.datatype, i.shape) for i in found.inputs] == [("x", "FP32", (-1, 6))]
        assert client.ping(LONG) > 0


@pytest.mark.parametrize("status", [200, 400, 401, 404, 429])
def test_a_ping_asks_for_the_model_and_takes_any_answer_that_is_no_trouble_of_the_server(status):
    with Scripted(lambda *_: http(status, b"")) as host, HostClient(host.url, model="m") as client:
        assert client.ping(LONG) > 0
        assert [asked.line.split()[:2] for asked in host.asked] == [["GET", "/v2/models/m/ready"]]


@pytest.mark.parametrize(("status", "code"), [(503, "host-busy"), (408, "host-late"), (500, "host-protocol")])
def test_a_server_in_trouble_answers_no_ping(status, code):
    with (
        Scripted(lambda *_: http(status, b"")) as host,
        HostClient(host.url, model="m") as client,
        pytest.raises(HostError, check=has_code(code)),
    ):
        client.ping(LONG)


@pytest.mark.parametrize(
    "url",
    ["", "gpu-box:8000", "ftp://gpu-box", "http://", "http://box:port", "http://user:word@box", "http://box?x",
        "http://a b"],
)  # fmt: skip
def test_what_is_no_address_is_refused_when_it_is_given(url):
    with pytest.raises(HostError, match="is not a host address", check=has_code("host-address")):
        HostClient(url, model="m")


def test_odd_model_names_and_a_path_in_front_are_spelt_as_the_protocol_wants():
    why = "model 'a/b c' was asked for, but 'm' answered"
    with (
        server(lambda asked, _: doubling(asked)) as host,
        pytest.raises(HostError, match=why, check=has_code("host-protocol")),
    ):
        HostClient(f"{host.url}/serving/", model="a/b c").infer(X, LONG)
    assert host.asked[-1].line == "POST /serving/v2/models/a%2Fb%20c/infer HTTP/1.1"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", {}),
        ("queue;dur=1.5, infer;dur=3", {"queue": 1.5, "infer": 3.0}),
        ('cache;desc="a";dur="2"', {"cache": 2.0}),
        ("queue;dur=-1, infer;dur=nan, x;dur=, y;, ;dur=1e999", {}),
    ],
)
def test_server_timing_is_read_as_far_as_it_makes_sense(header, found):
    assert server_timing(header) == found


# TLS.


def test_https_is_spoken_and_an_unknown_authority_is_unreachable(tmp_path):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"], capture_output=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    speaking = server(lambda asked, _: doubling(asked))
    speaking.tls = secure
    with speaking as host:
        with HostClient(host.url, model="m", tls=trusting) as client:
            for _ in range(2):
                assert client.infer(X, LONG).outputs["y"].shape == (1, 6)
        with pytest.raises(HostError, match="certificate is not accepted", check=has_code("host-unreachable")):
            ask(host.url)
