"""Tokens: the file, the rates on a clock that the test owns, and both over a real socket."""

from __future__ import annotations

import http.client
import json
import os
from hashlib import sha256

import pytest
import tiny
from refusing import has_code
from served import Serving

from edgekit.host.access import Tokens
from edgekit.host.http1 import RequestError, ServeError
from edgekit.host.server import Protection
from edgekit_runtime.remote.oip import encode_request

LONG = 30.0
BOARD, OPERATOR = "b" * 40, "o" * 40


def line(name, token, rate="10", *more):
    return " ".join([name, sha256(token.encode()).hexdigest(), rate, *more])


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text(
        "# who may ask\n\n" + line("board", BOARD, "2") + "  # 2 a second\n" + line("op", OPERATOR, "1", "admin")
    )
    return path


def test_a_client_is_known_by_its_token_alone(file):
    tokens = Tokens.read(file)
    assert (tokens.admit(bearer(BOARD), 0).name, tokens.admit(bearer(BOARD), 0).admin) == ("board", False)
    assert tokens.admit({"authorization": f"bearer  {OPERATOR} "}, 0).admin is True


@pytest.mark.parametrize(
    "headers",
    [{}, bearer(""), bearer("x"), bearer(BOARD + "x"), bearer(BOARD[:-1]), {"authorization": BOARD},
     {"authorization": f"Basic {BOARD}"}, bearer("é" * 40), bearer("x" * 10_000), bearer(sha256(b"x").hexdigest())],
)  # fmt: skip
def test_any_other_token_is_401_and_the_message_does_not_repeat_it(file, headers):
    with pytest.raises(RequestError) as caught:
        Tokens.read(file).admit(headers, 0)
    assert (caught.value.status, caught.value.headers) == (401, {"WWW-Authenticate": "Bearer"})
    assert BOARD[:8] not in str(caught.value)


def test_a_rate_holds_over_time_and_says_when_to_come_back(file):
    tokens, refused = Tokens.read(file), []
    for step in range(1000):  # 100 a second for 10 s, of a client that has 2
        try:
            tokens.admit(bearer(BOARD), step / 100)
        except RequestError as error:
            refused.append((error.status, error.headers["Retry-After"]))
    assert refused == [(429, "1")] * (1000 - (2 + 2 * 10 - 1))
    tokens.admit(bearer(OPERATOR), 10)  # another client has its own


def test_many_items_in_one_request_count_as_many(file):
    tokens = Tokens.read(file)
    tokens.admit(bearer(BOARD), 0).charge(20)
    with pytest.raises(RequestError) as caught:
        tokens.admit(bearer(BOARD), 1)
    assert caught.value.headers == {"Retry-After": "9"}
    assert tokens.admit(bearer(BOARD), 10.5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "lists no clients"),
        ("# nobody\n", "lists no clients"),
        ("board", "expected a name"),
        ("board abc 5", "the hash is not"),
        (line("board", BOARD, "0"), "the rate must be"),
        (line("board", BOARD, "nan"), "the rate must be"),
        (line("board", BOARD, "5", "root"), "expected a name"),
        (line("board", BOARD) + "\n" + line("board", OPERATOR), "duplicate client 'board'"),
    ],
)
def test_a_file_that_does_not_add_up_is_refused_with_its_line(tmp_path, text, why):
    path = tmp_path / "tokens.txt"
    path.write_text(text)
    with pytest.raises(ServeError, match=why, check=has_code("serve-tokens")):
        Tokens.read(path)
    with pytest.raises(ServeError, match="cannot read", check=has_code("serve-tokens")):
        Tokens.read(tmp_path / "absent")


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_a_file_that_others_may_write_is_refused(file):
    file.chmod(0o666)
    with pytest.raises(ServeError, match="write", check=has_code("serve-tokens")):
        Tokens.read(file)


# Over a socket.


@pytest.fixture
def host(tmp_path, file):
    file.write_text(line("board", BOARD, "1000") + "\n" + line("slow", "s" * 40, "0.001"))
    with Serving(tiny.bundle(tmp_path), cache=False, protection=Protection(tokens=file)) as serving:
        yield serving


def ask(host, method, target, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=LONG)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_without_a_token_a_server_says_only_that_it_lives(host):
    for open_to_all in ("/v2/health/live", "/v2/health/ready"):
        assert ask(host, "GET", open_to_all)[0] == 200
    for closed in ("/v2", "/v2/models/tiny", "/metrics", "/v2/health", "/v2/health/live/x", "/"):
        status, headers, body = ask(host, "GET", closed)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert b"Authorization: Bearer TOKEN" in body
        assert ask(host, "GET", closed, Authorization=f"Bearer {BOARD}")[0] in (200, 404)


def test_a_body_without_a_token_is_refused_before_it_is_read(host):
    wire = encode_request({"image": tiny.RED[None]})
    assert ask(host, "POST", "/v2/models/tiny/infer", wire.body(), **wire.headers)[0] == 401
    assert host.call(lambda: host.server._reserved) == 0
    named = {**wire.headers, "Authorization": f"Bearer {BOARD}"}
    assert ask(host, "POST", "/v2/models/tiny/infer", wire.body(), **named)[0] == 200


def test_who_asks_too_often_is_told_when_to_come_back(host):
    slow = {"Authorization": "Bearer " + "s" * 40}
    assert ask(host, "GET", "/v2", **slow)[0] == 200
    status, headers, body = ask(host, "GET", "/v2", **slow)
    assert (status, int(headers["Retry-After"]) > 900) == (429, True)
    assert json.loads(body) == {"error": "'slow' exceeds its rate of 0.001 requests per second"}


def test_whether_a_model_is_ready_costs_nothing_of_the_rate_and_needs_a_token_all_the_same(host):
    slow = {"Authorization": "Bearer " + "s" * 40}
    for target in ["/v2/models/tiny/ready", "/v2/models/tiny/versions/1/ready"] * 3:
        assert ask(host, "GET", target, **slow)[0] == 200
        assert ask(host, "GET", target)[0] == 401
    assert [ask(host, "GET", "/v2/models/tiny", **slow)[0] for _ in range(2)] == [200, 429]
    assert ask(host, "GET", "/v2/models/tiny/ready", **slow)[0] == 200


def test_a_file_that_changed_holds_from_the_next_second_on_and_a_wrong_one_changes_nothing(host, file, caplog):
    def look():
        for check in host.server._every_second:
            check()

    known = {"Authorization": f"Bearer {BOARD}"}
    file.write_text("nonsense")
    host.call(look)
    assert ask(host, "GET", "/v2", **known)[0] == 200
    assert "the previous version stays in use" in caplog.text
    file.write_text(line("board", "another", "1000"))
    host.call(look)
    assert ask(host, "GET", "/v2", **known)[0] == 401
    assert ask(host, "GET", "/v2", Authorization="Bearer another")[0] == 200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_place_of_the_tokens_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ServeError, match="not a regular file"):
        Tokens.read(tmp_path / "pipe")
